"""The caller's buffers: what may be one, and how they are filled."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.trajectory._knots import concrete

__all__ = ["fill"]


def fill(
    buffers: Mapping[str, Any], values: Sequence[Tensor], inputs: Mapping[str, Tensor]
) -> None:
    """Copy values into a caller's buffers, outside of the graph; all are checked before the first.

    Arguments:
        buffers: the tensors to fill by name, or ``None`` for one that is not asked for.
        values: one for each buffer, of its shape.
        inputs: the tensors that nothing may be written into, by name.

    Raises:
        ArgumentTypeError: a buffer is no tensor, or has a dtype that cannot hold the result.
        ArgumentError: a buffer of another shape, or one that shares memory with an input, with
            another buffer or with itself.
    """
    given = {name: buffer for name, buffer in buffers.items() if buffer is not None}
    if not given:
        return
    wanted = dict(zip(buffers, values, strict=True))
    for name, buffer in given.items():
        _check_kind(name, buffer, wanted[name])
    _check_apart(given, inputs)
    with torch.no_grad():
        for name, buffer in given.items():
            buffer.detach().copy_(wanted[name].detach())


def _check_kind(name: str, buffer: Any, values: Tensor) -> None:
    if not isinstance(buffer, Tensor) or buffer.layout is not torch.strided:
        raise ArgumentTypeError(
            f"The out buffer {name} is not a dense tensor.",
            given=str(buffer.layout) if isinstance(buffer, Tensor) else type(buffer).__name__,
            expected="a strided tensor or None",
        )
    if buffer.shape != values.shape:
        raise ArgumentError(
            f"The out buffer {name} has the wrong shape.",
            given=f"{tuple(buffer.shape)}",
            expected=f"{tuple(values.shape)}",
        )
    if not torch.can_cast(values.dtype, buffer.dtype):
        raise ArgumentTypeError(
            f"The out buffer {name} has a dtype that cannot hold the result.",
            given=str(buffer.dtype),
            expected=f"a dtype like {values.dtype}",
        )


def _check_apart(buffers: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> None:
    # While a graph is traced the compiler keeps apart what shares memory.
    known = {name: concrete(tensor) for name, tensor in {**inputs, **buffers}.items()}
    for name, buffer in buffers.items():
        plain = known[name]
        if plain is not None and _overlaps_itself(plain):
            raise ArgumentError(
                f"The out buffer {name} has elements that share their memory.",
                given=f"shape {tuple(buffer.shape)} with strides {buffer.stride()}",
                expected="memory for each element, as torch.empty makes it",
            )
    pairs = [*itertools.combinations(buffers, 2), *itertools.product(buffers, inputs)]
    for name, other in pairs:
        one, two = known[name], known[other]
        if one is not None and two is not None and _share_memory(one, two):
            raise ArgumentError(
                f"The out buffer {name} shares memory with {other}.",
                expected="a buffer of its own memory",
                mend=f"Pass None, or torch.empty_like({name}).",
            )


def _share_memory(one: Tensor, other: Tensor) -> bool:
    if one.device != other.device or not one.numel() or not other.numel():
        return False
    if one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        return False
    if _end(one) <= other.data_ptr() or _end(other) <= one.data_ptr():
        return False
    if (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype):
        between = abs(int(one.storage_offset() - other.storage_offset()))
        if _lie_apart((2, *one.shape), (between, *one.stride())):
            return False
    return bool(torch.isin(_bytes(one), _bytes(other)).any())


def _overlaps_itself(tensor: Tensor) -> bool:
    if _lie_apart(tensor.shape, tensor.stride()):
        return False
    places = _bytes(tensor)
    return places.unique().numel() < places.numel()


def _lie_apart(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether each stride exceeds all that the smaller ones reach; if not, elements may overlap."""
    reach = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1 and stride < reach:
            return False
        reach += stride * (size - 1)
    return True


def _end(tensor: Tensor) -> int:
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    last = sum(stride * (size - 1) for stride, size in pairs)
    return tensor.data_ptr() + (last + 1) * tensor.element_size()


def _bytes(tensor: Tensor) -> Tensor:
    """The places in memory of all bytes of a tensor, each as often as it is used."""
    places = torch.arange(tensor.element_size(), device="cpu") + tensor.data_ptr()
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        step = stride * tensor.element_size()
        places = (places[:, None] + torch.arange(size, device="cpu") * step).flatten()
    return places
