"""Look below the wrappers that transforms put around tensors."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch.autograd import forward_ad

from pullback.internal import torch as _functorch
from pullback.internal.torch import (
    disable_functorch,
    get_unwrapped,
    innermost,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    is_gradtrackingtensor,
    is_legacy_batchedtensor,
    is_traced,
    maybe_get_bdim,
    maybe_get_level,
    storage_of,
    unwrap_if_dead,
)
from pullback.tensor._writable import Writable

__all__ = [
    "IN_PLACE",
    "alive",
    "are_numbers",
    "concrete",
    "is_differentiated",
    "is_freed",
    "nodes",
    "out_of_place",
    "primal",
    "same_view",
    "sample",
    "tracking_level",
    "tracking_levels",
    "vjp",
    "wrapper_level",
]

# What autograd says where it does not allow a change in place, and what vmap says.
IN_PLACE = ("inplace operation", "written-to tensor")
_VMAP = "(self, *extra_args) is not possible"
# torch.func.vjp without auxiliary output: its annotation does not tell the two apart.
vjp: Any = torch.func.vjp


T = TypeVar("T")


def out_of_place(derive: Callable[[Callable[..., Any]], T]) -> T:
    """Derive something of a rule; if its changes in place stand in the way, of a pure copy of it.

    Arguments:
        derive: does the work, given what wraps the rule.
    """
    try:
        return derive(_as_it_is)
    except RuntimeError as error:
        if not _is_in_place(error):
            raise
        together = "multiple views" in str(error)
    with Writable():
        if together:
            try:
                return derive(_as_it_is)
            except RuntimeError as error:
                if not _is_in_place(error):
                    raise
        return derive(torch.func.functionalize)


def _as_it_is(rule: Callable[..., Any]) -> Callable[..., Any]:
    return rule


def _is_in_place(error: RuntimeError) -> bool:
    return any(sign in str(error) for sign in (*IN_PLACE, _VMAP))


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


def are_numbers(found: Iterable[torch.Tensor | None], known: Iterable[torch.Tensor]) -> bool:
    """Whether no entry is NaN, or not all that it comes from is finite; so while tracing."""
    plain = [concrete(tensor) for tensor in found if tensor is not None]
    if not any(tensor is not None and bool(tensor.isnan().any()) for tensor in plain):
        return True
    sources = [concrete(tensor) for tensor in known]
    return not all(tensor is None or bool(tensor.isfinite().all()) for tensor in sources)


def sample(tensor: torch.Tensor) -> torch.Tensor | None:
    """One item of a tensor as the innermost transform sees it, or ``None`` while tracing."""
    dims = []
    while is_functorch_wrapped_tensor(tensor):
        if is_batchedtensor(tensor):
            dims.append(maybe_get_bdim(tensor))
        tensor = get_unwrapped(tensor)
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_meta:
        return None
    if is_legacy_batchedtensor(tensor):  # of torch.autograd.functional
        return None
    with disable_functorch(), torch.no_grad():
        for dim in reversed(dims):
            tensor = tensor.select(dim, 0)
        return tensor.detach()


def is_freed(tensor: torch.Tensor) -> bool:
    """Whether a tensor has lost its memory, as ``storage.resize_(0)`` takes it."""
    tensor = innermost(tensor)
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    if not plain or tensor.layout is not torch.strided or tensor.is_meta or not tensor.numel():
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
    plain = (torch.Tensor, torch.nn.Parameter)
    return (
        type(tensor) in plain
        and type(other) in plain
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
    levels = set()
    while is_functorch_wrapped_tensor(tensor):
        if is_gradtrackingtensor(tensor) and tensor.requires_grad:
            levels.add(maybe_get_level(tensor))
        tensor = get_unwrapped(tensor)
    return levels | {0} if tensor.requires_grad else levels


def nodes(tensor: torch.Tensor) -> list[Any]:
    """The last operation of a tensor's history, of each level that has one."""
    found = [tensor.grad_fn]
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
        found.append(tensor.grad_fn)
    return [node for node in found if node is not None]


def wrapper_level(tensor: torch.Tensor) -> int:
    """The innermost level of `torch.func` that wraps a tensor for derivatives; 0 for none."""
    while is_functorch_wrapped_tensor(tensor):
        if is_gradtrackingtensor(tensor):
            return maybe_get_level(tensor)
        tensor = get_unwrapped(tensor)
    return 0


def primal(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without the tangent that it has at the innermost forward-mode level."""
    if not is_batchedtensor(tensor):
        value, tangent = forward_ad.unpack_dual(tensor, level=0)
        return tensor if tangent is None else value
    level, dim = maybe_get_level(tensor), maybe_get_bdim(tensor)
    inside = get_unwrapped(tensor)
    with _functorch.current_interpreter().lower():
        value = primal(inside)
    return tensor if value is inside else _functorch.add_batch_dim(value, dim, level)


def is_differentiated(tensor: torch.Tensor) -> bool:
    """Whether a gradient or tangent of the tensor is tracked at any level of transforms."""
    while is_functorch_wrapped_tensor(tensor):
        if is_gradtrackingtensor(tensor):
            return True
        tensor = get_unwrapped(tensor)
    return tensor.requires_grad
