"""The names of ``torchlogix.functional``."""

from decimal import Decimal
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from pullback.gradients._check import (
    Factor,
    check_factor,
    check_floating,
    check_strided,
    multiply,
    refuse_export,
    widen,
)
from pullback.internal.torch import is_known_to_export
from pullback.tensor import Function

__all__ = ["GradFactor"]


class GradFactor(Function):
    """Identity with the gradient times a factor.

    Example:
        >>> import torch
        >>> from pullback.compat.torchlogix.functional import GradFactor
        >>> x = torch.ones(2, requires_grad=True)
        >>> GradFactor.apply(x, 2.0).sum().backward()
        >>> x.grad
        tensor([2., 2.])
    """

    gradient = "surrogate"

    @staticmethod
    def forward(ctx: Any, x: Tensor, f: Factor) -> Tensor:
        """Return ``x``, and keep the factor: a number as ``ctx.f``, a tensor as a saved one.

        Arguments:
            ctx: the context.
            x: shape (...), any dtype; booleans and integers have no gradient to multiply.
            f: a number or a tensor that broadcasts to ``x``.

        Raises:
            ArgumentTypeError: ``x`` is no tensor, or ``f`` neither a number nor a tensor.
            ArgumentError: ``f`` does not broadcast to ``x``.
            UnsupportedError: a sparse or nested ``x``.
        """
        check_strided(x, "GradFactor")
        if isinstance(f, Tensor):
            ctx.save_for_backward(f)  # which notices where it is changed before backward
        else:
            ctx.f = f
        if x.is_floating_point() or x.is_complex():
            check_floating(x, "GradFactor")
            check_factor(_numeric(f), x, "GradFactor", name="f", allow_nan=True)
        return x.view_as(x)

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Return a view of ``x``, whose gradient is multiplied by ``f``.

        Arguments:
            args: ``x`` and ``f``, as forward takes them.
            kwargs: the same by name.

        Raises:
            UnsupportedError: torch.export with gradients, beside what forward refuses.
        """
        refuse_export("GradFactor", is_known_to_export)
        return super().apply(*args, **kwargs)

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return ``grad_y * f``, and zeros for a tensor ``f`` that needs a gradient.

        Arguments:
            ctx: the context of forward.
            grad_y: the gradient of the result.
        """
        given = ctx.f if hasattr(ctx, "f") else ctx.saved_tensors[0]
        factor = _numeric(given)
        of_x = multiply(grad_y, factor)
        # Of a context of one's own nothing is asked but the factor, as there.
        learned = isinstance(given, Tensor) and any(getattr(ctx, "needs_input_grad", ())[1:])
        return of_x, torch.zeros_like(given) if learned else None


def _numeric(f: Any) -> Any:
    """A factor as torch multiplies by it: booleans, fractions and decimals as numbers."""
    if isinstance(f, bool | Fraction | Decimal):
        return float(f)
    if isinstance(f, Tensor) and f.dtype == torch.bool:
        return f.float()
    return widen(f) if isinstance(f, Tensor) and f.is_floating_point() else f
