"""A program that a type checker accepts in its strict mode; it runs as well.

Lines that end with `# error` must be refused.
"""

from typing import assert_type

import torch
from torch import Tensor

import pullback
from pullback.tensor import Context


class Scale(pullback.Function):
    """In split form: apply takes what forward takes."""

    gradient = "surrogate"

    @staticmethod
    def forward(x: Tensor, factor: float) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Context, cotangent: Tensor) -> tuple[Tensor, None]:
        factor: float = ctx.factor
        return cotangent * factor, None


class Split(pullback.Function):
    """In combined form: apply takes what forward takes after the context."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, at: int = 1) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x)
        ctx.at = at
        return x[:at].clone(), x[at:].clone()

    @staticmethod
    def backward(ctx: Context, first: Tensor, second: Tensor) -> tuple[Tensor, None]:
        return torch.cat([first, second]), None


class Cube(torch.autograd.Function):
    """What a package holds."""

    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Context, *cotangents: Tensor) -> Tensor:  # as torch declares it
        x: Tensor = ctx.saved_tensors[0]
        return 3 * x**2 * cotangents[0]


@pullback.custom_vjp
def square(x: Tensor) -> Tensor:
    """x * x."""
    return x * x


square.defvjp(lambda x: (x * x, x), lambda x, cotangent: 2 * x * cotangent)


def main() -> None:
    x = torch.ones(3, dtype=torch.float64)
    assert_type(Scale.apply(x, 2.0), Tensor)
    assert_type(Scale.apply(x, factor=2.0), Tensor)
    assert_type(Split.apply(x), tuple[Tensor, Tensor])
    assert_type(Split.apply(x, at=2), tuple[Tensor, Tensor])
    assert_type(square(x), Tensor)
    Right = pullback.complete(Cube)
    assert_type(Right, type[pullback.Function])
    y: Tensor = Right.apply(x)
    report = pullback.check(Scale, x, 2.0, clauses=["linear", "double"], gradient="surrogate")
    assert_type(report.ok, bool)
    assert y.shape == x.shape
    pullback.Case("scale", Scale, lambda generator: (torch.randn(3, generator=generator), 2.0))


def mistakes(x: Tensor) -> None:
    Scale.apply(x, "two")  # error
    Scale.apply(x)  # error
    Split.apply("x")  # error
    square(3)  # error
    pullback.check(Scale, x, 2.0, clauses=["lineer"])  # error
    pullback.check(Scale, x, 2.0, gradient="roughly")  # error
    pullback.nothing()  # error


if __name__ == "__main__":
    main()
