"""`Record`: where `track` writes, for those who place it in their own code."""

from functools import partial
from typing import Any

from pullback.errors import ArgumentError
from pullback.internal._arguments import checked
from pullback.tracking.measure._dispatch import Backend
from pullback.tracking.measure._layout import Direction
from pullback.tracking.measure._statistics import Statistics
from pullback.tracking.watch._recorder import Recorder

__all__ = ["Record"]


@checked
class Record(Recorder):
    """Statistics of one tensor in the program, kept apart by call, direction, order and step.

    Arguments:
        name: how the tensor is called in every report.
        every: only steps divisible by this are measured; `Record.step` ends a step.
        history: how many moments are kept for drawing; totals are kept of all.
        backend: ``"auto"``, or the kernel to use or refuse: ``"cpu"``, ``"reference"``,
            ``"triton"``.

    Raises:
        ArgumentError: an empty name, or a cadence or history below 1.

    Example:
        >>> import torch
        >>> from pullback.tracking import track
        >>> record = Record("logits")
        >>> _ = track(torch.ones(3), record)
        >>> record.flush()
        >>> record.total("forward").count
        3
    """

    def __init__(
        self, name: str, *, every: int = 1, history: int = 1000, backend: Backend = "auto"
    ) -> None:
        if not name:
            raise ArgumentError("A record needs a name.", given=repr(name), expected="some text")
        super().__init__(name, every, history, backend)
        self._made = partial(Record, name, every=every, history=history, backend=backend)
        self.name = name
        self.store = self._store

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, of a module that holds it for one, has seen nothing.
        return self._made, ()

    def flush(self) -> None:
        """Bring what was measured to the host without ending the step."""
        self._store.flush()

    def total(
        self,
        direction: Direction = "forward",
        *,
        call: int = 0,
        order: int | None = None,
        recomputed: bool = False,
        visit: int = 0,
    ) -> Statistics:
        """The merged statistics of one tensor.

        Arguments:
            direction: ``"forward"``, ``"backward"`` or ``"tangent"``.
            call: the number of the use within a step.
            order: of differentiation; by default 0 for ``"forward"`` and 1 otherwise.
            recomputed: the one seen while a checkpoint was computed again.
            visit: which of several passes over the same graph.

        Raises:
            ArgumentError: no such tensor was measured; the message lists those that were.
        """
        return self._find(self.name, direction, call, order, recomputed=recomputed, visit=visit)
