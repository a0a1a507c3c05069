"""`Store`: rows of statistics waiting on their device, and the identities that go with them.

A store is driven by the host: it numbers calls, microbatches and steps, and hands each row of a
preallocated buffer to one kernel. Nothing is read back until `Store.flush`, which copies each
device's buffer once.
"""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import numpy as np
import torch

from pullback.internal.torch import temporarily_clear_interpreter_stack, whole_batch
from pullback.tracking.measure._dispatch import (
    Backend,
    check_measurable,
    choose_backend,
    measure_into,
)
from pullback.tracking.measure._layout import WIDTH, Direction
from pullback.tracking.measure._statistics import hide_unknown
from pullback.tracking.run._identity import Key, Phase, Place
from pullback.tracking.run._log import Measured
from pullback.tracking.watch._measures import Measures

__all__ = ["Rounds", "Seen", "Store", "find_store", "register_store"]

Absorb = Callable[[list[tuple[Key, Place]], np.ndarray, Measured], None]

_handles = itertools.count(1)
_stores: "WeakValueDictionary[int, Store]" = WeakValueDictionary()

ROWS = 256  # 0.6 MB a device; a fuller buffer is flushed in the middle of a step, losing nothing
PATIENCE = 64  # steps after which an optimizer that has not come back is no longer waited for
VISITS = 1 << 16  # tensors whose visits are counted: earlier graphs are hardly alive

Seen = tuple[Key, Place] | None
"""Which value was measured, and when, as its gradient has to know; nothing where none was."""


def register_store(store: Any) -> int:
    """A handle for a store, or for what also observes and follows, as long as it is there."""
    handle = next(_handles)
    _stores[handle] = store
    return handle


find_store = _stores.get
"""The store of a handle, or nothing if it is gone: compiled code can outlive a tracker."""


class Store:
    """Rows on their devices, and what each of them is.

    At each flush ``absorb`` gets identities, in the order of execution, their rows, and what
    statistics of one's own made of them.
    """

    def __init__(
        self,
        absorb: Absorb,
        every: int = 1,
        backend: Backend = "auto",
    ) -> None:
        self.handle = register_store(self)
        self.every = every
        self.backend: Backend = backend
        self.backends_used: dict[str, Backend] = {}
        self.step = 0
        self.microbatch = 0
        self.active = True
        self.closed = False
        self.touched = False  # whether anything happened in this step, measured or not
        self.ended = False  # an optimizer ended the last step
        self._enders: WeakSet[Any] = WeakSet()  # the optimizers that stepped at its end
        self._before = Place(0, 0), False  # where the last step ended, and whether it is measured
        self._late = False  # the optimizer that steps now belongs to it
        self.inside = False  # a model's own forward is running
        self.between: Callable[[], None] = lambda: None  # called where one pass ends
        self.loss_scale: Callable[[], torch.Tensor | None] = lambda: None
        self.measures = Measures({})
        self.skipped: dict[str, str] = {}  # what could not be measured, with the reason
        self._absorb = absorb
        self._lock = threading.RLock()
        self._rows: dict[torch.device, list[np.ndarray] | torch.Tensor] = {}
        self._used: dict[torch.device, int] = {}
        self._waiting: list[tuple[Key, Place, torch.device, int]] = []
        self._calls: dict[tuple[str, bool], int] = {}
        self._visits: dict[Place, dict[Key, int]] = {}
        self._visited = 0  # how many tensors are in it
        self._where: dict[tuple[Key, Place], tuple[torch.device, int, tuple[Key, Place]]] = {}
        self._seen_roots: set[str] = set()
        self._rounds = Rounds()
        self.phase: Phase = "training"

    def begin(self, root: str = "", training: bool = True) -> None:
        """Note that a forward pass of a model starts, in training or in evaluation mode.

        The same model starting again before a step ends means the next microbatch.
        """
        with self._lock:
            self.touched = True
            self.phase = "training" if training else "evaluation"
            if root in self._seen_roots:
                self._seen_roots.clear()
                self.microbatch += 1
                self._calls.clear()
                self.between()
            self._seen_roots.add(root)

    def observe(
        self, values: torch.Tensor, name: str, recomputed: bool = False, first: Seen = None
    ) -> Seen:
        """Measure a value, number its call, and return what its gradient has to know.

        ``first`` is what it was when it was measured before, under another name.
        """
        self.touched = True
        if not self.active:
            return None
        with self._lock:
            number = self._calls.get((name, recomputed), 0)
            self._calls[name, recomputed] = number + 1
            key = Key(name, number, recomputed=recomputed, phase=self.phase)
            seen = key, self._now
            self._write(values, *seen, first)
        return seen

    def follow(
        self,
        values: torch.Tensor,
        names: Sequence[Seen],
        order: int = 1,
        direction: Direction = "backward",
    ) -> None:
        """Measure the gradient (of any order) of a value, once for all of the value's names.

        Where the optimizer runs in the backward pass, a step ends before most gradients come.
        """
        first: Seen = None
        with self._lock, temporarily_clear_interpreter_stack():
            values = whole_batch(values)  # of a batch of gradients, all of them
            for key, place in [] if self.closed else filter(None, names):
                own = key._replace(direction=direction, order=order), place
                self._write(values, *own, first)
                first = first or own

    def begin_update(self, by: Any) -> None:
        """Note that an optimizer is about to step what is measured.

        Where nothing happened since another one ended a step, it belongs to that step too; if it
        has ended it itself, this is a step in which no module is called.
        """
        self._late = not self.touched and bool(self._enders) and by not in self._enders
        self.touched = self.touched or not self._late

    @property
    def moment_of_update(self) -> Place | None:
        """When an optimizer steps, or nothing if that step is not measured."""
        place, active = self._before if self._late else (self._now, self.active)
        return place if active and not self.closed else None

    @property
    def _now(self) -> Place:
        return Place(self.step, self.microbatch)

    def observe_update(self, values: torch.Tensor, key: Key) -> None:
        """Measure what an optimizer holds or does."""
        place = self.moment_of_update
        if place is not None:
            with self._lock:
                self._write(values, key, place)

    def observe_factor(self, values: torch.Tensor, key: Key) -> None:
        """Measure what blocks lose of a weight or an input of a layer that multiplies."""
        if self.active and values.is_floating_point():
            with self._lock:
                key = key._replace(phase=self.phase)
                with temporarily_clear_interpreter_stack():
                    plain = whole_batch(values)
                    self.measures.take(plain, 1.0, key, self._now, self.measures.blocks)

    def advance(self, by: Any = None) -> None:
        """End the step, if anything happened in it, and flush what it measured.

        With several optimizers that take turns (``by``) the cadence counts their rounds, so that
        none of them falls between the steps that are measured.
        """
        if not self.touched:
            self._enders.update(() if by is None else (by,))
            return
        self.flush()
        with self._lock:
            self.between()
            self._before = self._now, self.active
            self._enders = WeakSet(() if by is None else (by,))
            self.step += 1
            self.microbatch = 0
            self.inside = False
            self.touched, self.ended = False, True
            self._calls.clear()
            self._visits.clear()
            self._visited = 0
            self._seen_roots.clear()
            self._rounds.end(by)
            self.active = self._rounds.number % self.every == 0

    def flush(self) -> None:
        """Copy each device's rows to the host, once, and hand them over."""
        with self._lock:
            if not self._waiting:
                return
            waiting, self._waiting = self._waiting, []
            host = {
                device: rows if isinstance(rows, list) else rows[: self._used[device]].cpu().numpy()
                for device, rows in self._rows.items()
            }
            self._used = dict.fromkeys(self._used, 0)
            self._where.clear()
            measured = self.measures.flush()
            rows = np.stack([host[device][index] for _, _, device, index in waiting])
            hide_unknown(rows)
            self._absorb([(key, place) for key, place, _, _ in waiting], rows, measured)

    def close(self) -> None:
        """Flush and measure nothing any more."""
        self.flush()
        self.active, self.closed = False, True
        _stores.pop(self.handle, None)

    def _write(self, values: torch.Tensor, key: Key, place: Place, first: Seen = None) -> None:
        """Measure into a row; or point at that of the first, unless it was flushed meanwhile."""
        found = None if first is None else self._where.get(first)
        if found is not None:
            device, index, same = found
            self.measures.share(same, (self._append(key, place, device, index), place))
            return
        check_measurable(values)
        device = values.device
        index = self._reserve(device)
        # The loss scale was taken before from what an optimizer holds, and is in no tangent.
        scaled = key.direction == "backward" and key.source == "module"
        factor = self._factor(device) if scaled else 1.0
        measure_into(values, self._rows[device][index], factor, self.backends_used[device.type])
        self._used[device] = index + 1
        self.measures.take(values, factor, self._append(key, place, device, index), place)

    def _append(self, key: Key, place: Place, device: torch.device, index: int) -> Key:
        visit = self._count_visit(key, place)
        visited = key._replace(visit=visit) if visit else key
        self._where[key, place] = device, index, (visited, place)
        self._waiting.append((visited, place, device, index))
        return visited

    def _count_visit(self, key: Key, place: Place) -> int:
        """How often a tensor was measured before; a value never was, whose calls are numbered."""
        if not (key.order or key.recomputed or key.source != "module"):
            return 0
        visits = self._visits.setdefault(place, {})
        visit = visits.get(key, 0)
        visits[key] = visit + 1
        self._visited += not visit
        while self._visited > VISITS:  # a step may never end
            self._visited -= len(self._visits.pop(next(iter(self._visits))))
        return visit

    def _reserve(self, device: torch.device) -> int:
        if device not in self._rows:
            self.backends_used[device.type] = choose_backend(self.backend, device)
            on_host = device.type == "cpu"
            self._rows[device] = (
                list(np.empty((ROWS, WIDTH)))
                if on_host
                else torch.empty(ROWS, WIDTH, dtype=torch.float64, device=device)
            )
            self._used[device] = 0
        if self._used[device] == ROWS:
            self.flush()
        return self._used[device]

    def _factor(self, device: torch.device) -> float | torch.Tensor:
        """What takes the loss scale out of a gradient, without reading a device from the host."""
        scale = self.loss_scale()
        if scale is None:
            return 1.0
        if scale.device.type == "cpu":
            return 1.0 / float(scale.detach().numpy())
        return scale.detach().to(device=device, dtype=torch.float64).reciprocal()


class Rounds:
    """Counts rounds of optimizers that take turns, such as the two of an adversarial network.

    A round is over once each optimizer that ever ended a step has ended one in it. One that has
    not come back while another ended 64 steps is no longer waited for.
    """

    def __init__(self) -> None:
        self.number = 0
        self._known: WeakSet[Any] = WeakSet()
        self._seen: Counter[int] = Counter()

    def end(self, by: Any) -> None:
        """Note that a step was ended by an optimizer, or by nobody in particular."""
        if by is None:
            self.number += 1
            return
        self._known.add(by)
        self._seen[id(by)] += 1
        if self._seen[id(by)] > PATIENCE:
            self._known = WeakSet(other for other in self._known if id(other) in self._seen)
        if all(id(other) in self._seen for other in self._known):
            self.number += 1
            self._seen.clear()
