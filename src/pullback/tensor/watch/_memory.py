"""What rules make and write while they run, told by modes of torch.

- A kernel that torch does not look into returns a tensor that no function of torch made. It looks
  like a constant that existed before, but its memory was taken meanwhile, and torch was asked for
  it (`Allocations`).
- torch writes a batched value into no tensor that all items of a batch share. One that a rule has
  just made, ``torch.zeros(n)`` to add gradients to, is of one item though, as all is that the rule
  computes of one. Which these are shows when the rule runs: what it makes and only reads, such as a
  mask that it keeps for other calls, stays as it is (`Factories`).
- Rules run once more than they are called where forward runs right before the backward of an item,
  and where another way to batch them is left. A counter or a running mean would be moved each time.
  What they write to tensors that existed before is put back (`Mutations`).
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from pullback.internal.torch import (
    FunctionMode,
    TorchDispatchMode,
    current_interpreter,
    disable_functorch,
    disable_torch_function,
    is_functorch_wrapped_tensor,
    maybe_get_level,
    peek_interpreter_stack,
    schema_of,
    storage_of,
)
from pullback.tensor.values._functions import REQUIRING, FunctionCall, facts, tensors_in
from pullback.tensor.values._levels import is_differentiable, memory_of

__all__ = ["Allocations", "Factories", "Mutations"]


class Allocations(TorchDispatchMode):
    """Collects the storages that torch makes while it is active.

    Attributes:
        storages: one number for each. One that existed before keeps its own meanwhile.
    """

    def __init__(self) -> None:
        super().__init__()
        self.storages: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if all(each.alias_info is None for each in schema_of(func).returns):
            for tensor in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
                    self.storages.add(storage_of(tensor))
        return result


class Factories(FunctionMode):
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


# These change running statistics among their arguments, which no name or schema of theirs says.
_RUNNING = {"batch_norm", "instance_norm"}


class Mutations(FunctionMode):
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
            given[1:]
            if name in _RUNNING
            else FunctionCall(func, args, kwargs, given, None).written(name)
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
