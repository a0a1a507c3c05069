"""What the Functions of this room share: the value is left alone, a rule shapes the gradient."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from pullback.tensor import Function

__all__ = ["ShapeFunction"]


class ShapeFunction(Function):
    """``x -> x`` without a copy, and ``g -> shape(g, *kept)`` of what was given beside ``x``.

    What is kept is one tensor, or numbers and other plain values. A tensor that requires a
    gradient gets exactly zero: the value does not depend on it. So a class of which ``shape`` is
    all that is its own may be ``_direct``: nothing is changed or returned as it was given.
    """

    gradient: ClassVar[Literal["exact", "surrogate", "nonlinear"]] = "surrogate"

    shape: Callable[..., Tensor]

    @staticmethod
    def forward(*inputs: Any) -> Tensor:  # by place alone: there is no signature to bind at a call
        """Return a view of ``x``, the first: no copy."""
        return inputs[0].view_as(inputs[0])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep what follows ``x``: a tensor so that a change is noticed, the rest as it is."""
        if isinstance(inputs[1], Tensor):  # which is alone then
            ctx.save_for_backward(inputs[1])
        else:
            ctx.kept = inputs[1:]

    @classmethod
    def backward(cls, ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        """Return the shaped cotangent, and the zeros that a tensor gets."""
        kept = ctx.kept if hasattr(ctx, "kept") else ctx.saved_tensors
        needs = ctx.needs_input_grad
        return (
            cls.shape(cotangent, *kept) if needs[0] else None,
            *[torch.zeros_like(kept[i]) if needs[i + 1] else None for i in range(len(kept))],
        )
