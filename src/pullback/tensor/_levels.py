"""Look below the wrappers that transforms put around tensors."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.autograd import forward_ad

from pullback.internal import torch as _functorch

__all__ = [
    "concrete",
    "is_differentiated",
    "out_of_place",
    "primal",
    "requires_grad_somewhere",
    "same_view",
    "vjp",
]

# torch.func.vjp without auxiliary output: its annotation does not tell the two apart.
vjp: Any = torch.func.vjp


T = TypeVar("T")


def out_of_place(derive: Callable[[Callable[..., Any]], T]) -> T:
    """Derive something of a rule; if its changes in place stand in the way, of a pure copy of it.

    Arguments:
        derive: does the work, given what wraps the rule.
    """
    try:
        return derive(lambda rule: rule)
    except RuntimeError as error:
        if not any(sign in str(error) for sign in ("inplace operation", "written-to tensor")):
            raise
    return derive(torch.func.functionalize)


def concrete(tensor: torch.Tensor) -> torch.Tensor | None:
    """The plain tensor with values below all transforms, or ``None`` while tracing.

    Below `torch.func.vmap` the result has its batch dimensions wherever they are stored.
    """
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or isinstance(
        tensor, _functorch.FakeTensor
    ):
        return None
    if tensor.is_meta:
        return None
    return tensor.detach()


def same_view(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same view of the same storage, as ``x.detach()`` is of ``x``."""
    while _functorch.is_functorch_wrapped_tensor(tensor):
        if not _functorch.is_functorch_wrapped_tensor(other):
            return False
        if _functorch.maybe_get_level(tensor) != _functorch.maybe_get_level(other):
            return False
        if _functorch.maybe_get_bdim(tensor) != _functorch.maybe_get_bdim(other):
            return False
        tensor, other = _functorch.get_unwrapped(tensor), _functorch.get_unwrapped(other)
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
        and tensor.untyped_storage()._cdata == other.untyped_storage()._cdata
    )


def requires_grad_somewhere(tensor: torch.Tensor) -> bool:
    """Whether a tensor is part of a graph at any level of transforms."""
    while not tensor.requires_grad:
        if not _functorch.is_functorch_wrapped_tensor(tensor):
            return False
        tensor = _functorch.get_unwrapped(tensor)
    return True


def primal(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without the tangent that it has at the innermost forward-mode level."""
    if not _functorch.is_batchedtensor(tensor):
        value, tangent = forward_ad.unpack_dual(tensor, level=0)
        return tensor if tangent is None else value
    level, dim = _functorch.maybe_get_level(tensor), _functorch.maybe_get_bdim(tensor)
    inside = _functorch.get_unwrapped(tensor)
    with _functorch.current_interpreter().lower():
        value = primal(inside)
    return tensor if value is inside else _functorch.add_batch_dim(value, dim, level)


def is_differentiated(tensor: torch.Tensor) -> bool:
    """Whether a gradient or tangent of the tensor is tracked at any level of transforms."""
    while _functorch.is_functorch_wrapped_tensor(tensor):
        if _functorch.is_gradtrackingtensor(tensor):
            return True
        tensor = _functorch.get_unwrapped(tensor)
    return tensor.requires_grad
