"""See a value of one run reach another: a queue, a cache or the like, that no rerun can renew."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import TensorWeakRef

from pullback.internal.torch import disable_torch_function
from pullback.tensor._operations import tensors_in

__all__ = ["Witness"]


class Witness(TorchFunctionMode):
    """Watches several runs of the same rules, one ``with`` block each.

    Attributes:
        remembered: a tensor that one run made was used by a later one.
        rounds: float64 was rounded to float32, so that the last half of its digits is noise.
    """

    def __init__(self) -> None:
        super().__init__()
        self.remembered = False
        self.rounds = False
        self._earlier: dict[int, TensorWeakRef] = {}
        self._made: dict[int, TensorWeakRef] = {}

    def __enter__(self) -> "Witness":
        self._earlier |= self._made
        self._made = {}
        return super().__enter__()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = _floating(tensors_in(*args, *(kwargs or {}).values()))
        for leaf, _ in given:
            reference = self._earlier.get(id(leaf))
            if reference is not None and reference() is leaf:
                self.remembered = True
        result = func(*args, **(kwargs or {}))
        wide = any(dtype is torch.float64 for _, dtype in given)
        known = {id(leaf) for leaf, _ in given}
        for leaf, dtype in _floating(tensors_in(result)):
            self.rounds = self.rounds or (wide and dtype is torch.float32)
            if id(leaf) not in known:
                self._made[id(leaf)] = TensorWeakRef(leaf)
        return result


def _floating(tensors: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.dtype]]:
    """The floating ones and their dtypes, which are asked for without a word to modes around."""
    with disable_torch_function():
        return [(leaf, leaf.dtype) for leaf in tensors if leaf.is_floating_point()]
