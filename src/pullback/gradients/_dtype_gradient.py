"""`dtype_gradient`: the value as it is, the gradient rounded to a dtype."""

from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentTypeError
from pullback.gradients._check import check_tensor
from pullback.gradients._module import module_of
from pullback.internal._dtypes import PACKED
from pullback.tensor import Function

__all__ = ["DtypeGradient", "DtypeGradientFunction", "dtype_gradient"]


class DtypeGradientFunction(Function):
    """The Function behind `dtype_gradient`: rounding is not linear, and declared so."""

    gradient = "nonlinear"

    @staticmethod
    def forward(x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a view of ``x``: no copy."""
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the dtype."""
        ctx.dtype = inputs[1]

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        """Return the cotangent rounded to the dtype, in its own dtype."""
        return cotangent.to(ctx.dtype).to(cotangent.dtype), None


def dtype_gradient(x: Tensor, dtype: torch.dtype) -> Tensor:
    r"""Return ``x`` unchanged and round the gradient that flows back to it to a dtype.

    .. math:: y = x, \qquad \bar x = \operatorname{round}_d(\bar y)

    The gradient keeps the dtype of ``x``, as autograd demands, and takes only values that
    ``dtype`` has: what would be lost if gradients were kept or sent in it. Values beyond its
    range, infinity too, do what torch's cast does: infinity, NaN, or (of float8_e4m3fn, from torch
    2.12 on) the largest value. Rounding is not linear and declared ``nonlinear``: forward mode is
    refused by name. At second order the rounding passes gradients straight through. The result
    shares its memory with ``x``.

    For number formats without a torch dtype, stochastic rounding and saturation, see
    `pullback.tracking.simulate_format`.

    Arguments:
        x: shape (...), any floating or complex dtype.
        dtype: the dtype to round to, floating for a real ``x`` and complex for a complex one.

    Returns:
        A view of ``x``.

    Raises:
        ArgumentTypeError: ``x`` or ``dtype`` has no usable type.
        UnsupportedError: a sparse or nested tensor, or torch.export with gradients.

    Example:
        >>> import torch
        >>> from pullback.gradients import dtype_gradient
        >>> x = torch.ones(1, requires_grad=True)
        >>> (dtype_gradient(x, torch.bfloat16) * 1.001).sum().backward()
        >>> x.grad
        tensor([1.])
    """
    check_tensor(x, "dtype_gradient")
    _check_dtype(dtype, "dtype_gradient")
    if dtype.is_complex != x.is_complex():
        raise ArgumentTypeError(
            "dtype_gradient: the dtype and x are not both real or both complex.",
            given=f"dtype={dtype} for x of dtype {x.dtype}",
            expected="a complex dtype for a complex x, a floating one for a real x",
        )
    return DtypeGradientFunction.apply(x, dtype)


def _check_dtype(dtype: torch.dtype, function: str) -> None:
    usable = isinstance(dtype, torch.dtype) and (dtype.is_floating_point or dtype.is_complex)
    if not usable or dtype in PACKED:
        raise ArgumentTypeError(
            f"{function}: not a dtype that gradients can be rounded to.",
            given=f"dtype={dtype!r}",
            expected="a floating or complex torch.dtype with one value an element",
        )


DtypeGradient = module_of(
    dtype_gradient,
    ">>> DtypeGradient(torch.bfloat16)(torch.ones(1))\ntensor([1.])",
    _check_dtype,
)
