"""What rules write to tensors that existed before them, put back where they ran to no effect.

Rules run once more than they are called where forward runs right before the backward of an item,
and where another way to batch them is left. A counter or a running mean would be moved each time.
"""

from typing import Any

import torch

from pullback.internal.torch import FunctionMode, disable_torch_function
from pullback.tensor._functions import Done, facts
from pullback.tensor._levels import memory_of
from pullback.tensor._operations import tensors_in

__all__ = ["Written"]

# These change running statistics among their arguments, which no name or schema of theirs says.
_RUNNING = {"batch_norm", "instance_norm"}


class Written(FunctionMode):
    """Copies what exists before it is written to."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, torch.Tensor] = {}  # by their memory, kept so that it stays theirs
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = facts(func).name
        given = tensors_in(*args, *kwargs.values())
        written = Done(func, args, kwargs, given, None).written(name)
        with disable_torch_function():
            for tensor in given[1:] if name in _RUNNING else written:
                if id(tensor) not in self._before and memory_of(tensor) not in self._made:
                    self._before[id(tensor)] = tensor, tensor.detach().clone()
        result = func(*args, **kwargs)
        known = set(map(memory_of, given))
        for tensor in tensors_in(result):
            if (memory := memory_of(tensor)) not in known:
                self._made[memory] = tensor
        return result

    def put_back(self) -> None:
        """Give all that was written the values that it had; what has another shape now keeps it."""
        with torch.no_grad(), disable_torch_function():
            for tensor, before in reversed(self._before.values()):
                if tensor.shape == before.shape:
                    tensor.copy_(before)
