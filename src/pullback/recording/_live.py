"""Keep a call with its objects as they are, for a check in the process that made it.

A copy of this file is imported into the program that is recorded.
"""

import copy
from typing import Any

import torch

from pullback.internal.torch import (
    FakeTensor,
    FunctionalTensor,
    are_functorch_transforms_active,
    pytree,
)
from pullback.recording._recorder import Call
from pullback.recording.codec._encode import TENSORS

__all__ = ["copy_call", "place_of"]


def copy_call(args: tuple[Any, ...], keywords: dict[str, Any], limit: int) -> Call | None:
    """Copy the tensors of a call; other arguments are kept as they are, in this process.

    Arguments:
        args: the positional arguments.
        keywords: those by keyword.
        limit: the most bytes of tensors that may be copied.

    Returns:
        The call, with live arguments and no tensors beside them; ``None`` where a tracer passes
        through, and nobody calls.

    Raises:
        RuntimeError: the call cannot be copied; the message is the reason.
    """
    if are_functorch_transforms_active():
        raise RuntimeError("applied under a torch.func transform only")
    given = pytree.tree_leaves((args, keywords))
    tensors = [v for v in given if isinstance(v, torch.Tensor)]
    if any(isinstance(v, (FakeTensor, FunctionalTensor)) or v.is_meta for v in tensors):
        return None
    size = sum(value.numel() * value.element_size() for value in tensors)
    if size > limit:
        raise RuntimeError(f"its tensors hold more than {limit / 2**20:.3g} MiB")

    # A module reaches its parameters by itself: a copy of one would be another tensor to it.
    reached = {id(p) for v in given if isinstance(v, torch.nn.Module) for p in v.parameters()}

    def copied(value: Any) -> Any:
        if id(value) in reached:
            return value
        if type(value) in TENSORS:
            return value.detach().clone().requires_grad_(value.requires_grad)
        if isinstance(value, torch.Tensor):
            return _other_tensor(value)
        return copy.copy(value) if isinstance(value, (set, bytearray)) else value

    with torch.no_grad():
        arguments, named = pytree.tree_map(copied, (tuple(args), keywords))
    place = place_of(0)
    return Call(arguments, named, [], size, 1 if place is None else place[1])


def place_of(number: int) -> tuple[int, int, int] | None:
    """Which rank makes the call, of how many, and the how manieth of its Function it is.

    ``None`` in a process that is no rank.
    """
    dist = torch.distributed
    if not dist.is_available() or not dist.is_initialized():
        return None
    return dist.get_rank(), dist.get_world_size(), number


def _other_tensor(value: torch.Tensor) -> torch.Tensor:
    """A tensor of a class of its own, quantised for example, copied as its class copies it."""
    name = type(value).__name__
    try:
        copied = copy.deepcopy(value) if value.is_leaf else value.detach().clone()
    except Exception as error:
        raise RuntimeError(f"a tensor of type {name} cannot be copied ({error})") from error
    if type(copied) is not type(value):
        raise RuntimeError(f"a tensor of type {name} cannot be copied")
    return copied
