"""What a rule makes anew under vmap, and writes to, as a tensor of each item.

torch writes a batched value into no tensor that all items share. One that a rule has just made,
``torch.zeros(n)`` to add gradients to, is of one item though, as all is that the rule computes of
one. Which these are shows when the rule runs: what it makes and only reads, such as a mask that it
keeps for other calls, stays as it is.
"""

from collections.abc import Iterable
from typing import Any

import torch

from pullback.internal.torch import FunctionMode, disable_torch_function
from pullback.tensor._functions import facts
from pullback.tensor._levels import is_differentiable, memory_of
from pullback.tensor._operations import tensors_in

__all__ = ["Fresh"]


class Fresh(FunctionMode):
    """Gives some of what is made anew, while it is active, the batch dimensions of some tensors.

    Arguments:
        tensors: the arguments of a rule. Each level of vmap around it batches one of them.
        places: which of the tensors that the rule makes, counted as it makes them.

    Attributes:
        refused: the places of those that a function could not write to.
    """

    def __init__(self, tensors: Iterable[torch.Tensor], places: Iterable[int]) -> None:
        super().__init__()
        self.refused: set[int] = set()
        self._places = frozenset(places)
        self._made: list[torch.Tensor] = []  # kept, so that their memory stays theirs
        self._memories: dict[int, int] = {}
        self._one = torch.zeros(())
        for tensor in tensors:
            self._one = self._one + tensor.new_zeros((), dtype=torch.float32, device="cpu")

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            result = func(*args, **kwargs)
        except Exception:
            if args and isinstance(args[0], torch.Tensor):
                place = self._memories.get(memory_of(args[0]))
                self.refused |= set() if place is None else {place}
            raise
        plain = type(result) is torch.Tensor and not result.requires_grad
        if not plain or not is_differentiable(result) or not _makes(func, args, kwargs):
            return result
        with disable_torch_function():
            return self._keep(result)

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        place = len(self._made)
        if place in self._places:
            shape, dtype, device = tensor.shape, tensor.dtype, tensor.device
            tensor = self._one.new_empty(shape, dtype=dtype, device=device).copy_(tensor)
        self._made.append(tensor)
        self._memories[memory_of(tensor)] = place
        return tensor


def _makes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a function makes a tensor of numbers alone, or a copy."""
    name, changes, constant, _ = facts(func)
    if changes or kwargs.get("out") is not None:
        return False
    anew = constant or name == "clone" or name.startswith("new_")
    return anew or not tensors_in(*args, *kwargs.values())
