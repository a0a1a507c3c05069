"""What is linear in the cotangent, told by the functions that a backward calls.

A map is linear in what it is given if each step is: a sum of values that are linear, a product of
one that is with one that does not depend on it, a rearrangement of one. Zeros are linear. What is
not in these lists may be linear all the same; that is for an evaluation to show.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["ZERO", "is_linear"]

# Linear in their first argument, whatever the others are, on which they do not depend.
_FIRST = frozenset(
    ["H", "T", "bfloat16", "block_diag", "broadcast_to", "cdouble", "cfloat", "chunk", "clone", "complex32", "conj", "contiguous", "cumsum", "data", "diag", "diag_embed", "diagonal", "diff", "div", "divide", "double", "dsplit", "expand", "expand_as", "fft", "fft2", "fftn", "flatten", "flip", "fliplr", "flipud", "float", "gather", "half", "hfft", "hsplit", "ifft", "ifft2", "ifftn", "ihfft", "imag", "index_select", "irfft", "irfft2", "irfftn", "mH", "mT", "mean", "movedim", "moveaxis", "narrow", "neg", "negative", "nanmean", "permute", "positive", "ravel", "real", "repeat", "repeat_interleave", "reshape", "reshape_as", "resolve_conj", "resolve_neg", "rfft", "rfft2", "rfftn", "roll", "rot90", "select", "split", "split_with_sizes", "squeeze", "sum", "sum_to_size", "swapaxes", "swapdims", "t", "tensor_split", "tile", "to", "trace", "transpose", "tril", "triu", "true_divide", "type", "type_as", "unbind", "unflatten", "unfold", "unsqueeze", "view", "view_as", "view_as_complex", "view_as_real", "vsplit", "__getitem__", "__neg__", "__pos__", "__truediv__", "div_", "neg_", "squeeze_", "unsqueeze_", "t_", "transpose_", "tril_", "triu_", "requires_grad_", "cholesky_solve"]
)
# Linear in each of their arguments.
_EACH = frozenset(
    ["__matmul__", "__mul__", "__rmatmul__", "__rmul__", "bilinear", "bmm", "chain_matmul", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "conv_tbc", "dot", "einsum", "inner", "ger", "kron", "matmul", "mm", "mul", "mul_", "__imul__", "multi_dot", "multiply", "multiply_", "mv", "outer", "tensordot", "vdot"]
)
# Linear where all of their arguments are.
_ALL = frozenset(
    ["__add__", "__iadd__", "__isub__", "__radd__", "__rsub__", "__sub__", "add", "add_", "cat", "column_stack", "concat", "concatenate", "copy_", "dstack", "hstack", "row_stack", "stack", "sub", "sub_", "subtract", "vstack"]
)
ZERO = frozenset(["new_zeros", "zero_", "zeros", "zeros_like"])


def is_linear(
    name: str, args: Sequence[Any], kwargs: dict[str, Any], linear: Callable[[Any], bool | None]
) -> bool | None:
    """Whether a result is linear in what was given; ``None`` if it does not depend on that.

    Arguments:
        name: of the function of torch.
        args: its arguments.
        kwargs: those by name.
        linear: the same of a tensor.
    """
    if name in ZERO:
        return True
    given = [*_parts(args), *_parts(tuple(kwargs.values()))]
    found = [linear(each) for each in given if isinstance(each, torch.Tensor)]
    if all(each is None for each in found):
        return None
    if False in found:
        return False
    if name == "__get__" or name in _FIRST:
        return found.count(True) == 1 and isinstance(args[0], torch.Tensor) and bool(found[0])
    if name in _EACH:
        return found.count(True) == 1
    if name in _ALL:
        numbers = [each for each in args if isinstance(each, (int, float, complex))]
        scaled = all(not isinstance(v, torch.Tensor) for v in kwargs.values())
        return all(each is True for each in found) and scaled and not any(numbers)
    if name in ("where", "masked_fill", "masked_fill_"):
        chosen = args[1:] if name == "where" and args and _is_mask(args[0]) else args[::2]
        return len(args) == 3 and all(
            linear(each) is True if isinstance(each, torch.Tensor) else each == 0 for each in chosen
        )
    if name in ("__setitem__", "index_add", "index_add_", "scatter_add", "scatter_add_"):
        values = [each for each in args if isinstance(each, torch.Tensor) and not _is_index(each)]
        return (
            not kwargs
            and all(linear(each) is True for each in values)
            and not isinstance(args[-1], (int, float))
        )
    return False


def _parts(values: Sequence[Any]) -> list[Any]:
    parts = []
    for value in values:
        parts += _parts(value) if isinstance(value, (list, tuple)) else [value]
    return parts


def _is_mask(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.bool


def _is_index(value: torch.Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex())
