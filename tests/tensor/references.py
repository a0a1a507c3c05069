"""Kernels that torch cannot look into, their plain references, and all that is asked of a pair."""

import copy
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch
from torch.autograd import forward_ad

Tensor = torch.Tensor


@dataclass(frozen=True)
class Case:
    """A kernel, its reference and its inputs."""

    name: str
    kernel: Any
    plain: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    call: Callable[..., Any] | None = None  # the kernel, where it is not called as it is

    def inputs(self, *batch: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(0)
        return [
            torch.randn(*batch, *shape, generator=generator, dtype=torch.float64)
            for shape in self.shapes
        ]


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(query, key, value)


def plain_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.softmax(query @ key.mT / math.sqrt(query.shape[-1]), -1) @ value


@numba.njit(cache=True)
def _exp_sine(x: Any, w: Any) -> Any:
    y = np.empty_like(x)
    for i in range(x.size):
        y.flat[i] = math.exp(w.flat[i]) * math.sin(x.flat[i])
    return y


@numba.njit(cache=True)
def _exp_sine_adjoint(x: Any, w: Any, u: Any) -> Any:
    of_x, of_w = np.empty_like(x), np.empty_like(x)
    for i in range(x.size):
        of_x.flat[i] = math.exp(w.flat[i]) * math.cos(x.flat[i]) * u.flat[i]
        of_w.flat[i] = math.exp(w.flat[i]) * math.sin(x.flat[i]) * u.flat[i]
    return of_x, of_w


def _arrays(*tensors: Tensor) -> list[Any]:
    return [tensor.detach().contiguous().numpy() for tensor in tensors]


class Numba(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return torch.from_numpy(_exp_sine(*_arrays(x, w)))

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, ...]:
        found = _exp_sine_adjoint(*_arrays(*ctx.saved_tensors, cotangent))
        return tuple(map(torch.from_numpy, found))


def only_forward(x: Tensor, w: Tensor) -> Tensor:
    return torch.from_numpy(_exp_sine(*_arrays(x, w)))


def plain_exp_sine(x: Tensor, w: Tensor) -> Tensor:
    return w.exp() * x.sin()


@torch.library.custom_op("pullback_tests::exp_sine", mutates_args=())
def operator(x: Tensor, w: Tensor) -> Tensor:
    return torch.from_numpy(_exp_sine(*_arrays(x, w)))


@operator.register_fake
def _(x: Tensor, w: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("pullback_tests::exp_sine_adjoint", mutates_args=())
def adjoint(x: Tensor, w: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    of_x, of_w = _exp_sine_adjoint(*_arrays(x, w, u))
    return torch.from_numpy(of_x), torch.from_numpy(of_w)


@adjoint.register_fake
def _(x: Tensor, w: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


operator.register_autograd(
    lambda ctx, u: adjoint(*ctx.saved_tensors, u),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


@torch.library.custom_op("pullback_tests::exp_sine_alone", mutates_args=())
def operator_alone(x: Tensor, w: Tensor) -> Tensor:
    return torch.from_numpy(_exp_sine(*_arrays(x, w)))


@operator_alone.register_fake
def _(x: Tensor, w: Tensor) -> Tensor:
    return torch.empty_like(x)


CASES = [
    Case("attention", attention, plain_attention, ((3, 2), (4, 2), (4, 2))),
    Case("numba", Numba, plain_exp_sine, ((2, 3), (2, 3)), Numba.apply),
    Case("operator", operator, plain_exp_sine, ((2, 3), (2, 3))),
    Case("numba without backward", only_forward, plain_exp_sine, ((2, 3), (2, 3))),
    Case("operator without backward", operator_alone, plain_exp_sine, ((2, 3), (2, 3))),
]


def caller(completed: Any) -> Any:
    return completed.apply if isinstance(completed, type) else completed


class Holder(torch.nn.Module):
    def __init__(self, completed: Any) -> None:
        super().__init__()
        self.completed = completed

    def forward(self, *tensors: Tensor) -> Any:
        return caller(self.completed)(*tensors)


def needing(tensors: list[Tensor]) -> list[Tensor]:
    return [x.clone().requires_grad_() for x in tensors]


def same_first_order(case: Case, f: Any) -> None:
    """Outputs and gradients are the kernel's own, to the last bit."""
    kernel = case.call or case.kernel
    own, given = needing(case.inputs()), needing(case.inputs())
    expected, got = kernel(*own), f(*given)
    assert torch.equal(expected, got)
    assert torch.equal(f(*case.inputs()), got)
    if "without" in case.name:
        expected = case.plain(*own)
    u = torch.randn_like(got.detach())
    pairs = zip(
        torch.autograd.grad(expected, own, u),
        torch.autograd.grad(got, given, u),
        strict=True,
    )
    assert all(torch.equal(one, other) for one, other in pairs)


def same_transforms(case: Case, f: Any) -> None:
    """Every transform gives what it gives of the reference."""
    xs, ts = case.inputs(), [x.cos() for x in case.inputs()]
    every = tuple(range(len(xs)))

    def loss(g: Any) -> Any:
        return lambda *given: g(*given).square().sum()

    def dual(g: Any) -> Any:
        with forward_ad.dual_level():
            pairs = zip(xs, ts, strict=True)
            return forward_ad.unpack_dual(g(*(forward_ad.make_dual(x, t) for x, t in pairs)))

    def forward_of_gradient(g: Any) -> Any:
        first = torch.func.grad(loss(g), every)
        return torch.func.jvp(first, tuple(xs), tuple(ts))

    for transform in (
        lambda g: torch.func.jvp(g, tuple(xs), tuple(ts)),
        dual,
        lambda g: torch.func.jacfwd(g, every)(*xs),
        lambda g: torch.func.jacrev(g, every)(*xs),
        lambda g: torch.func.hessian(loss(g), every)(*xs),
        forward_of_gradient,
        lambda g: torch.func.vmap(g)(*case.inputs(3)),
        lambda g: torch.func.vmap(torch.func.grad(loss(g), every))(*case.inputs(3)),
        lambda g: torch.func.vmap(torch.func.grad(lambda x: loss(g)(x, *xs[1:])))(
            case.inputs(3)[0]
        ),
        lambda g: torch.func.grad(lambda x: torch.func.grad(loss(g))(x, *xs[1:]).sum())(xs[0]),
    ):
        torch.testing.assert_close(transform(f), transform(case.plain))


def same_second_order(case: Case, f: Any) -> None:
    """Autograd differentiates a gradient, also of a loss that is not linear in the output."""

    def twice(g: Any) -> Any:
        xs = needing(case.inputs())
        y = g(*xs)
        first = torch.autograd.grad((y.square() * y).sum(), xs, create_graph=True)
        pairs = zip(xs, first, strict=True)
        return torch.autograd.grad(sum((x.sin() * slope).sum() for x, slope in pairs), xs)

    torch.testing.assert_close(twice(f), twice(case.plain))
    assert torch.autograd.gradcheck(f, needing(case.inputs()), check_batched_grad=True)
    assert torch.autograd.gradgradcheck(f, needing(case.inputs()), check_batched_grad=True)


def same_compiled(case: Case, f: Any) -> None:
    """Compiled in one graph it gives the same."""
    xs = needing(case.inputs())
    expected, got = f(*xs), torch.compile(f, fullgraph=True, backend="eager")(*xs)
    torch.testing.assert_close(got, expected)
    first, second = (torch.autograd.grad(y.square().sum(), xs) for y in (expected, got))
    torch.testing.assert_close(second, first)


def same_compiled_derivative(case: Case, f: Any) -> None:
    """So does a derivative of it."""
    x, *others = case.inputs()

    def slope(x: Tensor) -> Tensor:
        return torch.func.grad(lambda x: torch.func.grad(lambda x: f(x, *others).sum())(x).sum())(x)

    compiled = torch.compile(slope, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), slope(x))


def same_copies(case: Case, completed: Any) -> None:
    """A module that holds it is pickled and copied, and answers as before."""
    module, xs = Holder(completed), case.inputs()
    expected = module(*xs)
    for again in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(again(*xs), expected)
        slope = torch.func.grad(lambda x: again(x, *xs[1:]).sum())(xs[0])  # noqa: B023
        assert slope.shape == xs[0].shape
