r"""Products whose factors are scaled along a dimension: by channel or by block.

Scales are shared along the dimension that a product sums over, and the three products of a layer
sum over different ones. With :math:`Y = A B`, in :math:`R^{m \times n}`, and Q_d rounding along d,

.. math:: Y = Q_k(A) Q_k(B), \quad
    \bar A = Q_n(\bar Y) Q_n(B)^T, \quad \bar B = Q_m(A)^T Q_m(\bar Y),

each factor rounded anew from the unrounded one, as training in MX formats does (Rouhani et al.,
Microscaling Data Formats for Deep Learning, 2023, figure 8).
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.tensor import Function
from pullback.tracking.formats._products import FACTORS
from pullback.tracking.formats._round import RoundValueFunction
from pullback.tracking.formats._scaled import Format
from pullback.tracking.formats._table import Overflow

__all__ = ["BlockProductFunction", "multiply_by"]

Multiply = Callable[..., Tensor]


class BlockProductFunction(Function):
    """Multiply factors that were rounded for the forward, and go back with others."""

    gradient = "nonlinear"

    @staticmethod
    def forward(  # noqa: PLR0917 - a Function takes its inputs by position
        a: Tensor,
        b: Tensor,
        again_a: Tensor,
        again_b: Tensor,
        noise: Tensor | None,
        number_format: Format | None,
        overflow: Overflow,
    ) -> Tensor:
        """Return ``a @ b``."""
        return a @ b

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the factors for the backward, and how to round the gradient."""
        a, b, again_a, again_b, noise, ctx.number_format, ctx.overflow = inputs
        ctx.shapes = a.shape, b.shape
        ctx.save_for_backward(again_a, again_b, noise)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Any, ...]:
        """Return the gradients of ``a`` and ``b``; the others are the same factors again."""
        a, b, noise = ctx.saved_tensors

        def rounded(dim: int) -> Tensor:
            if ctx.number_format is None:
                return cotangent
            chosen = ctx.number_format.along(dim)
            return RoundValueFunction.apply(cotangent, noise, chosen, ctx.overflow)

        first = second = None
        if ctx.needs_input_grad[0]:
            first = (rounded(-1) @ b.mH).sum_to_size(ctx.shapes[0])
        if ctx.needs_input_grad[1]:
            second = (a.mH @ rounded(-2)).sum_to_size(ctx.shapes[1])
        return first, second, *(None,) * 5


def multiply_by(
    multiply: Multiply, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor:
    """Run a product of torch's by one of matrices ``[..., m, k]`` and ``[..., k, n]``."""
    way = _WAYS.get(function)
    if way is None:
        raise UnsupportedError(
            f"simulate_format cannot scale the factors of {function.__name__} along a dimension.",
            given="a format with per='channel' or a size of blocks",
            expected="linear, matmul, attention",
            mend="Use per='tensor' there, by a Recipe, or leave this part of the model out.",
        )
    given = {name: value for name, value in kwargs.items() if name != "out"}
    for place, name in FACTORS[function]:
        if name in given:  # by whichever name this function has for its second factor
            args = (*args[:place], given.pop(name), *args[place:])
    return way(multiply, *args, **given)


def _matmul(multiply: Multiply, input: Tensor, other: Tensor) -> Tensor:  # noqa: A002 - torch's
    left = input.unsqueeze(0) if input.dim() == 1 else input
    right = other.unsqueeze(-1) if other.dim() == 1 else other
    result = multiply(left, right)
    if other.dim() == 1:
        result = result.squeeze(-1)
    return result.squeeze(-1 if other.dim() == 1 else -2) if input.dim() == 1 else result


def _reflected(multiply: Multiply, input: Tensor, other: Tensor) -> Tensor:  # noqa: A002
    return _matmul(multiply, other, input)


def _linear(
    multiply: Multiply,
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    rows = input.reshape(math.prod(input.shape[:-1]), input.shape[-1])
    multiply = functools.partial(multiply, named=True)
    result = _matmul(multiply, rows, weight.mT if weight.dim() > 1 else weight)
    result = result.reshape(*input.shape[:-1], *result.shape[1:])
    return result if bias is None else _fitting(bias, result) + result


def _added(
    multiply: Multiply,
    input: Tensor,  # noqa: A002
    first: Tensor,
    second: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Tensor:
    product = _matmul(multiply, first, second)
    product = product if alpha == 1 else alpha * product
    return beta * _fitting(input, product) + product if beta else product


def _fitting(term: Tensor, product: Tensor) -> Tensor:
    """What is added to a product, in its dtype: torch casts it under autocast only."""
    if torch.is_autocast_enabled(product.device.type):
        return term.to(product.dtype)
    if term.dtype != product.dtype:
        raise ArgumentTypeError(
            "What is added to a product has another dtype.",
            given=f"{term.dtype} for a product in {product.dtype}",
        )
    return term


def _attend(  # noqa: PLR0917 - torch's signature
    multiply: Multiply,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    # The definition in the documentation of torch's scaled_dot_product_attention.
    _check_mask(attn_mask, is_causal)
    if enable_gqa:
        key, value = (
            each.repeat_interleave(query.shape[-3] // each.shape[-3], -3) for each in (key, value)
        )
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = multiply(query, key.mT) * factor
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    blind = (scores == -torch.inf).all(-1, keepdim=True)  # rows that see nothing attend to nothing
    shares = scores.masked_fill(blind, 0).softmax(-1).masked_fill(blind, 0).to(value.dtype)
    return multiply(functional.dropout(shares, dropout_p), value)


def _check_mask(mask: Tensor | None, is_causal: bool) -> None:
    if mask is not None and is_causal:
        raise ArgumentError(
            "Attention takes a mask or is_causal, not both.",
            mend="Put the causal mask into attn_mask.",
        )
    if mask is not None and mask.dtype != torch.bool and not mask.is_floating_point():
        raise ArgumentTypeError(
            "The mask of attention is boolean or floating.", given=f"dtype {mask.dtype}"
        )


_WAYS: dict[Callable[..., Any], Callable[..., Tensor]] = {
    functional.linear: _linear,
    functional.scaled_dot_product_attention: _attend,
    **dict.fromkeys(
        (
            torch.matmul, torch.linalg.matmul, torch.mm, torch.bmm, torch.mv, torch.dot,
            Tensor.matmul, Tensor.__matmul__, Tensor.mm, Tensor.bmm, Tensor.mv, Tensor.dot,
        ),
        _matmul,
    ),
    Tensor.__rmatmul__: _reflected,
    **dict.fromkeys(
        (torch.addmm, torch.baddbmm, torch.addmv, Tensor.addmm, Tensor.baddbmm, Tensor.addmv),
        _added,
    ),
}  # fmt: skip
