"""`is_grads_batched` with `create_graph`: the derivative of a batch of gradients is there."""

from typing import Any

import pytest
import torch

import pullback
from pullback.errors import UnsupportedError

ROWS = torch.tensor([[1.0, 2.0, -1.0], [0.5, 0.0, 3.0]], dtype=torch.float64)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * cotangent


class CubeOfSquare(Cube):
    """It keeps what forward has computed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.square, ctx.x = x * x, x
        return ctx.square * x

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> torch.Tensor:
        return 3 * ctx.square * cotangent


class TimesSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, cotangent: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cotangent, x)
        return 3 * x**2 * cotangent

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> Any:
        other, x = ctx.saved_tensors
        return 3 * x**2 * cotangent, 6 * x * other * cotangent


class CubeByFunction(Cube):
    """Its backward applies a Function to the batch, which gets no history in torch."""

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> torch.Tensor:
        return TimesSlope.apply(cotangent, *ctx.saved_tensors)


class CubeStopped(Cube):
    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> torch.Tensor:
        return 3 * ctx.saved_tensors[0].detach() ** 2 * cotangent


def of_plain(x: torch.Tensor) -> torch.Tensor:
    return x**3


def twice(function: Any) -> torch.Tensor:
    x = torch.tensor([0.5, -2.0, 3.0], dtype=torch.float64, requires_grad=True)
    (rows,) = torch.autograd.grad(
        function(x), x, ROWS, is_grads_batched=True, create_graph=True, allow_unused=True
    )
    assert torch.equal(rows.detach(), ROWS * (3 * x**2).detach())
    # A sum with what is differentiated: a lost history would be a wrong number, and no error.
    (second,) = torch.autograd.grad((rows**2).sum() + x.sum(), x)
    return second


@pytest.mark.parametrize("cls", [Cube, CubeOfSquare, CubeByFunction])
@pytest.mark.parametrize("keep_inputs", [False, True])
def test_a_batch_of_gradients_is_differentiated(cls: Any, *, keep_inputs: bool) -> None:
    found = twice(pullback.complete(cls, keep_inputs=keep_inputs).apply)
    assert torch.allclose(found, twice(of_plain))


def test_so_is_that_of_a_decorated_function_and_of_a_kernel_with_a_reference() -> None:
    @pullback.custom_vjp
    def cube(x: torch.Tensor) -> torch.Tensor:
        return x**3

    cube.defvjp(lambda x: (x**3, 3 * x**2), lambda slope, cotangent: slope * cotangent)
    assert torch.allclose(twice(cube), twice(of_plain))
    kernel = pullback.complete(CubeStopped, reference=of_plain)
    assert torch.allclose(twice(kernel.apply), twice(of_plain))


def test_a_jacobian_of_rows_at_once_is_differentiated() -> None:
    def loss(function: Any) -> torch.Tensor:
        x = torch.tensor([0.5, -2.0, 3.0], dtype=torch.float64, requires_grad=True)
        jacobian: Any = torch.autograd.functional.jacobian(
            function, x, vectorize=True, create_graph=True
        )
        (found,) = torch.autograd.grad((jacobian**2).sum() + (x**2).sum(), x)
        return found

    assert torch.allclose(loss(pullback.complete(Cube).apply), loss(of_plain))


def test_one_batch_within_another_is_differentiated() -> None:
    def rows_of(function: Any) -> torch.Tensor:
        class Outer(torch.autograd.Function):
            """Its backward takes a batch of gradients, while its own cotangent is a batch."""

            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                ctx.save_for_backward(x)
                return x**2

            @staticmethod
            def backward(ctx: Any, cotangent: torch.Tensor) -> torch.Tensor:
                (x,) = ctx.saved_tensors
                ones = torch.stack([cotangent, 2 * cotangent])
                (rows,) = torch.autograd.grad(
                    function(x), x, ones, is_grads_batched=True, create_graph=True
                )
                return rows.sum(0)

        x = torch.tensor([0.5, -2.0, 3.0], dtype=torch.float64, requires_grad=True)
        (rows,) = torch.autograd.grad(
            Outer.apply(x), x, ROWS, is_grads_batched=True, create_graph=True
        )
        (second,) = torch.autograd.grad((rows**2).sum() + x.sum(), x)
        return second

    assert torch.allclose(rows_of(pullback.complete(Cube).apply), rows_of(of_plain))


def test_what_has_no_second_derivative_is_refused_when_it_is_asked() -> None:
    with pytest.raises(UnsupportedError, match="it detaches a value"):
        twice(pullback.complete(CubeStopped).apply)
