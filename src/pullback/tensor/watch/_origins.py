"""What the tensors that forward has made were computed of, as far as that is in doubt.

The derivative of an output is what the author's backward says. Where backward uses something that
forward has computed of it, the operations of forward count, and of another Function that forward
applies its rules do. Both may say something else than the author's backward.
"""

from collections.abc import Iterable, Sequence

import torch

from pullback.tensor.values._levels import memory_of

__all__ = ["Origins"]


class Origins:
    """The origins of tensors by their ids, which somebody else keeps."""

    def __init__(self) -> None:
        self._parents: dict[int, list[int]] = {}
        self._memories: dict[int, int] = {}
        self._writers: dict[int, list[int]] = {}  # by memory: of what was written there
        self._doubts: set[int] = set()  # outputs of forward, and of other Functions
        self._outputs: list[int] = []
        self._used: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._doubts)

    def add(self, tensor: torch.Tensor, given: Sequence[torch.Tensor]) -> None:
        """Add a tensor that was computed of others."""
        self._memories[id(tensor)] = memory_of(tensor)
        parents = self._parents.setdefault(id(tensor), [])
        parents += [id(each) for each in given if each is not tensor]

    def write(self, tensor: torch.Tensor, given: Sequence[torch.Tensor]) -> None:
        """Add what was written to the memory of a tensor."""
        self._writers.setdefault(memory_of(tensor), []).extend(map(id, given))

    def doubt(self, tensor: torch.Tensor) -> None:
        """Add the result of another Function."""
        self._doubts.add(id(tensor))

    def add_outputs(self, outputs: Iterable[torch.Tensor]) -> None:
        """Add what forward returns."""
        self._outputs += map(id, outputs)
        self._doubts.update(self._outputs)

    def doubts_of(self, number: int) -> set[int]:
        """The outputs of forward and of other Functions that a tensor was computed of."""
        waiting, met = [number], set[int]()
        while waiting:
            each = waiting.pop()
            if each not in met:
                met.add(each)
                waiting += self._parents.get(each, ())
                waiting += self._writers.get(self._memories.get(each, -1), ())
        return met & self._doubts

    def use(self, tensor: torch.Tensor) -> tuple[set[int], bool]:
        """What is in doubt of a tensor that backward uses, and whether the outputs vouch for it.

        They say nothing of another Function that they were not computed by.
        """
        if not self._doubts or id(tensor) in self._used:
            return set(), True
        self._used.add(id(tensor))
        doubts = self.doubts_of(id(tensor))
        return doubts, doubts <= set(self._outputs).union(*map(self.doubts_of, self._outputs))
