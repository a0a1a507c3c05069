"""`Rounds`: how often every optimizer of a program has had its turn."""

from typing import Any
from weakref import WeakSet

__all__ = ["Rounds"]

_PATIENCE = 64


class Rounds:
    """Counts rounds of optimizers that take turns, such as the two of an adversarial network.

    A round is over once each optimizer that ever ended a step has ended one in it. One that has
    not come back while another ended 64 steps is no longer waited for.
    """

    def __init__(self) -> None:
        self.number = 0
        self._known: WeakSet[Any] = WeakSet()
        self._seen: dict[int, int] = {}

    def end(self, by: Any) -> None:
        """Note that a step was ended by an optimizer, or by nobody in particular."""
        if by is None:
            self.number += 1
            return
        self._known.add(by)
        self._seen[id(by)] = self._seen.get(id(by), 0) + 1
        if self._seen[id(by)] > _PATIENCE:
            for other in [other for other in self._known if id(other) not in self._seen]:
                self._known.discard(other)
        if all(id(other) in self._seen for other in self._known):
            self.number += 1
            self._seen.clear()
