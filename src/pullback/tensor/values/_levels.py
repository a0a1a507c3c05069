"""Look below the wrappers that transforms put around tensors."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.autograd import forward_ad

from pullback.internal import torch as _functorch
from pullback.internal.torch import (
    TransformType,
    add_legacy_batch_dim,
    disable_functorch,
    forward_level,
    get_interpreter_stack,
    get_unwrapped,
    innermost,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    is_gradtrackingtensor,
    is_legacy_batchedtensor,
    is_traced,
    is_view,
    legacy_batch_level,
    maybe_get_bdim,
    maybe_get_level,
    remove_legacy_batch_dim,
    storage_of,
    unwrap_if_dead,
)

__all__ = [
    "alive",
    "apart",
    "are_batched",
    "are_differentiated_below",
    "concrete",
    "indexed",
    "is_coarse",
    "is_differentiable",
    "is_differentiated",
    "is_freed",
    "is_viewing",
    "memory_of",
    "nodes",
    "primal",
    "same_view",
    "tangent_of",
    "tracking_level",
    "tracking_levels",
    "vjp",
]

# torch.func.vjp without auxiliary output: its annotation does not tell the two apart.
vjp: Any = torch.func.vjp


_ENDED = -2  # the level of a wrapper whose transform has ended


def alive(tensor: Any) -> Any:
    """The tensor below all wrappers of transforms that have ended; other values as they are."""
    while isinstance(tensor, torch.Tensor):
        inside = unwrap_if_dead(tensor)
        if inside is tensor:
            break
        tensor = inside
    return tensor


def concrete(tensor: torch.Tensor) -> torch.Tensor | None:
    """The plain tensor with values below all transforms, or ``None`` while tracing.

    Below `torch.func.vmap` the result has its batch dimensions wherever they are stored.
    """
    tensor = innermost(tensor)
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or isinstance(
        tensor, _functorch.FakeTensor
    ):
        return None
    if tensor.is_meta or is_legacy_batchedtensor(tensor) or is_traced():
        return None
    return tensor.detach()


def are_batched(cotangents: Iterable[torch.Tensor | None]) -> bool:
    """Whether a batch of `is_grads_batched` is among cotangents.

    Each backward asks: a generator would cost as much again.
    """
    for cotangent in cotangents:
        if cotangent is not None and is_legacy_batchedtensor(cotangent):
            return True
    return False


def is_freed(tensor: torch.Tensor) -> bool:
    """Whether a tensor has lost its memory, as ``storage.resize_(0)`` takes it."""
    tensor = innermost(tensor)
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    if not plain or tensor.layout is not torch.strided or tensor.is_meta or not tensor.numel():
        return False
    if is_legacy_batchedtensor(tensor):
        return False
    return tensor.untyped_storage().size() == 0


def same_view(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same view of the same storage, as ``x.detach()`` is of ``x``."""
    while is_functorch_wrapped_tensor(tensor):
        if not is_functorch_wrapped_tensor(other):
            return False
        if maybe_get_level(tensor) != maybe_get_level(other):
            return False
        if maybe_get_bdim(tensor) != maybe_get_bdim(other):
            return False
        tensor, other = get_unwrapped(tensor), get_unwrapped(other)
    if is_functorch_wrapped_tensor(other):
        return False
    plain = (torch.Tensor, torch.nn.Parameter)
    return (
        type(tensor) in plain
        and type(other) in plain
        and not is_legacy_batchedtensor(tensor)
        and not is_legacy_batchedtensor(other)
        and tensor.dtype is other.dtype
        and not tensor.is_complex()
        and tensor.layout is other.layout is torch.strided
        and tensor.device == other.device
        and tensor.shape == other.shape
        and tensor.stride() == other.stride()
        and tensor.storage_offset() == other.storage_offset()
        # Not is_set_to, which torch.func.vmap cannot pass on.
        and storage_of(tensor) == storage_of(other)
    )


def tracking_level(tensor: torch.Tensor) -> int:
    """The innermost level of `torch.func` that differentiates a tensor in reverse; 0 for none."""
    while is_functorch_wrapped_tensor(tensor):
        if is_gradtrackingtensor(tensor) and tensor.requires_grad:
            return maybe_get_level(tensor)
        tensor = get_unwrapped(tensor)
    return 0


def tracking_levels(tensor: torch.Tensor) -> set[int]:
    """All levels that differentiate a tensor in reverse; 0 is autograd below `torch.func`."""
    levels = set[int]()
    while is_functorch_wrapped_tensor(tensor):
        if is_gradtrackingtensor(tensor) and tensor.requires_grad:
            levels.add(maybe_get_level(tensor))
        tensor = get_unwrapped(tensor)
    # Where a level is of forward mode, torch's own Functions do not pass the flag on.
    forward = {it.level() for it in get_interpreter_stack() or () if it.key() == TransformType.Jvp}
    levels -= {_ENDED, *forward}
    return levels | {0} if tensor.requires_grad else levels


def nodes(tensor: torch.Tensor) -> list[Any]:
    """The last operation of a tensor's history, of each level that has one."""
    found = [tensor.grad_fn]
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
        found.append(tensor.grad_fn)
    return [node for node in found if node is not None]


def tangent_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tangent at the innermost forward-mode level; torch gives a sparse tensor none."""
    if is_legacy_batchedtensor(tensor):
        return _within_batch(tangent_of, tensor, legacy_batch_level())
    strided = innermost(tensor).layout is torch.strided  # a wrapper of torch 2.7 says that it is
    return forward_ad.unpack_dual(tensor, level=0).tangent if strided else None


def _within_batch(function: Callable[[torch.Tensor], Any], tensor: torch.Tensor, level: int) -> Any:
    """A function of what lies below a batch of `is_grads_batched`, as a batch.

    Such a batch lies above forward mode, whose operations it does not know.
    """
    if not is_legacy_batchedtensor(tensor):
        return function(tensor)
    found = _within_batch(function, remove_legacy_batch_dim(tensor, level), level - 1)
    return None if found is None else add_legacy_batch_dim(found, level)


def primal(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without the tangent that it has at the innermost forward-mode level."""
    if is_legacy_batchedtensor(tensor) and tangent_of(tensor) is not None:
        return _within_batch(primal, tensor, legacy_batch_level())
    if not is_batchedtensor(tensor):
        return tensor if tangent_of(tensor) is None else forward_ad.unpack_dual(tensor, level=0)[0]
    level, dim = maybe_get_level(tensor), maybe_get_bdim(tensor)
    inside = get_unwrapped(tensor)
    with _functorch.current_interpreter().lower():
        value = primal(inside)
    return tensor if value is inside else _functorch.add_batch_dim(value, dim, level)


def apart(tensors: Iterable[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """The tensors without a history or a tangent."""
    return [None if tensor is None else _apart(tensor) for tensor in tensors]


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    if is_legacy_batchedtensor(tensor):  # of torch.autograd.functional, which cannot detach
        with torch.no_grad():
            return tensor.clone()
    return tensor.detach()


def are_differentiated_below(tensors: Iterable[torch.Tensor | None]) -> bool:
    """Whether a tangent may be differentiated: by autograd, or by a transform around this one."""
    around = [level.key() for level in get_interpreter_stack() or ()]
    if sum(key in (TransformType.Grad, TransformType.Jvp) for key in around) > 1:
        return True
    plain = [innermost(tensor) for tensor in tensors if tensor is not None]
    if any(tensor.requires_grad for tensor in plain):
        return True
    if not around or forward_level() < 0:
        return False
    with disable_functorch():
        return any(tangent_of(tensor) is not None for tensor in plain)


def is_differentiated(tensor: torch.Tensor) -> bool:
    """Whether a gradient or tangent of the tensor is tracked at any level of transforms."""
    while is_functorch_wrapped_tensor(tensor):
        if is_gradtrackingtensor(tensor):
            return True
        tensor = get_unwrapped(tensor)
    return tensor.requires_grad


def is_differentiable(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def is_coarse(dtype: torch.dtype) -> bool:
    """Whether it is a floating dtype of a byte, whose few steps are no rounding of a number."""
    return dtype.is_floating_point and dtype.itemsize == 1


def is_viewing(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a view, of which a batched one itself does not tell."""
    inside = innermost(tensor)
    return is_view(inside) or is_legacy_batchedtensor(inside)


def memory_of(tensor: torch.Tensor) -> int:
    """A number of the memory that a tensor lies in; of its own where that cannot be told."""
    inside = innermost(tensor)
    known = inside.layout is torch.strided and not is_legacy_batchedtensor(inside)
    return storage_of(inside) if known else id(tensor)


def indexed(
    tensor: torch.Tensor, indices: Any, values: Any, accumulate: bool = False
) -> torch.Tensor | None:
    """What a tensor is with values at an index, out of place; ``None`` where torch may write them.

    Below several levels of vmap, torch (2.13) writes the values of other items, or raises, where
    what is written is batched by a level that does not batch the index.
    """
    levels = get_interpreter_stack() or ()
    parts = tuple(indices) if isinstance(indices, (tuple, list)) else (indices,)
    tensors = [isinstance(part, torch.Tensor) for part in parts]
    whole = [isinstance(part, slice) and part == slice(None) for part in parts]
    plain = all(map(max, tensors, whole))
    if sum(level.key() == TransformType.Vmap for level in levels) < 2 or not plain:
        return None
    one = values if isinstance(values, torch.Tensor) else tensor.new_full((), values)
    while one.dim() and one.shape[0] == 1:  # as an assignment takes it
        one = one[0]
    places = [part if isinstance(part, torch.Tensor) else None for part in parts]
    return torch.ops.aten.index_put(tensor, places, one.to(tensor.dtype), accumulate)
