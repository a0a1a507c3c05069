"""What rules write to tensors that existed before them, put back where they ran to no effect.

Rules run once more than they are called where forward runs right before the backward of an item,
and where another way to batch them is left. A counter or a running mean would be moved each time.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from pullback.internal.torch import (
    FunctionMode,
    current_interpreter,
    disable_functorch,
    disable_torch_function,
    is_functorch_wrapped_tensor,
    maybe_get_level,
    peek_interpreter_stack,
)
from pullback.tensor._functions import REQUIRING, Done, facts
from pullback.tensor._levels import memory_of
from pullback.tensor._operations import tensors_in

__all__ = ["Written"]

# These change running statistics among their arguments, which no name or schema of theirs says.
_RUNNING = {"batch_norm", "instance_norm"}


class Written(FunctionMode):
    """Copies what is written to before it is.

    Arguments:
        keeps_made: leave what was made meanwhile as it is: somebody may have kept it.
    """

    def __init__(self, *, keeps_made: bool) -> None:
        super().__init__()
        self._keeps_made = keeps_made
        around = peek_interpreter_stack()
        self._level = 0 if around is None else around.level()
        self._made: set[int] = set()  # by its memory, which nothing that existed before shares
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name, changes, _, custom = facts(func)
        if func not in REQUIRING and (changes or custom or kwargs or name in _RUNNING):
            self._keep(name, func, args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        if self._keeps_made:
            known = set(map(memory_of, tensors_in(*args, kwargs)))
            self._made.update(set(map(memory_of, tensors_in(result))) - known)
        return result

    def _keep(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = tensors_in(*args, *kwargs.values())
        written = (
            given[1:] if name in _RUNNING else Done(func, args, kwargs, given, None).written(name)
        )
        with disable_torch_function():
            for tensor in written:
                if id(tensor) not in self._before and not self._is_made(tensor):
                    with _at_level_of(tensor):
                        self._before[id(tensor)] = tensor, tensor.detach().clone()

    def _is_made(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor was made meanwhile: one of a transform within, too, which ends."""
        within = is_functorch_wrapped_tensor(tensor) and maybe_get_level(tensor) > self._level
        return within or memory_of(tensor) in self._made

    def put_back(self) -> None:
        """Give all that was written the values that it had; what has another shape now keeps it."""
        with torch.no_grad(), disable_torch_function():
            for tensor, before in reversed(self._before.values()):
                if tensor.shape == before.shape:
                    with _at_level_of(tensor):
                        tensor.copy_(before)


@contextmanager
def _at_level_of(tensor: torch.Tensor) -> Iterator[None]:
    """Where a tensor may be written: a transform lets none of outside be."""
    with ExitStack() as stack:
        if not is_functorch_wrapped_tensor(tensor):
            stack.enter_context(disable_functorch())
        else:
            while (around := peek_interpreter_stack()) and around.level() > maybe_get_level(tensor):
                stack.enter_context(current_interpreter().lower())
        yield
