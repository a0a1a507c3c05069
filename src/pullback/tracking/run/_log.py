"""`Log`: what was measured, on the host; and `Run`, as every report and file reads it."""

import warnings
from collections import deque
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import torch

from pullback.errors import ProgramError, RecordingError, UnsupportedError
from pullback.tracking.formats import QuantisationNoise
from pullback.tracking.measure._layout import COUNT
from pullback.tracking.measure._statistics import Statistics, finite_counts, merge_rows
from pullback.tracking.run._identity import Key, Observation, Place, Sink
from pullback.tracking.run._points import Points, decode_points, encode_points

__all__ = ["PREDECESSORS", "Log", "Measured", "Run", "Series", "reduce_totals"]

Measured = dict[tuple[Key, Place], dict[str, np.ndarray]]
"""What statistics of one's own made of rows, by name."""

PREDECESSORS = 5
_NOTHING = Statistics(0).to_row()


@dataclass(frozen=True, slots=True)
class Series:
    """One tensor over the run.

    Arguments:
        key: which tensor.
        total: all that was ever measured of it, merged.
        points: its moments, as many as the history still holds.
    """

    key: Key
    total: Statistics
    points: Points


@dataclass(frozen=True, slots=True)
class Run:
    """A recorded run.

    Arguments:
        series: every tensor, in the order of its first appearance.
        first_nonfinite: the first tensor, in the order of execution, that held a NaN or an
            infinity, if there was one.
        predecessors: the tensors measured just before that one, oldest first, each with its scale
            (root mean square).
        every: the cadence it was recorded at, in steps.
        dropped: how many moments the history no longer holds.
        skipped: tensors that could not be measured, with the reason.
        truncated: the file that the run was read from ends in the middle of a line.
        title: the model, or the program, that was tracked.
        noise: what simulated formats lost, or one with blocks would, of each module and factor.
        advice: what to keep in higher precision, if blocks were measured: one sentence.
    """

    series: tuple[Series, ...]
    first_nonfinite: Observation | None = None
    predecessors: tuple[tuple[Key, float], ...] = ()
    every: int = 1
    dropped: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    truncated: bool = False
    title: str = "model"
    noise: tuple[QuantisationNoise, ...] = ()
    advice: str = ""


class Log:
    """The totals of every tensor, its last moments, and the first that was not finite.

    A tracker fills it while a model trains, and a file that is read fills one again. What arrives
    is handed on to sinks as well. Moments are in a ring of frames (``limit``, or all of them); a
    frame is one moment of training, four bytes a tensor. Which tensors a frame is of is almost
    always the same from one frame to the next, so it is stored once and shared.
    """

    def __init__(self, limit: int | None) -> None:
        self.first_nonfinite: Observation | None = None
        self.predecessors: deque[tuple[Key, float]] = deque(maxlen=PREDECESSORS)
        self.sinks: list[Sink] = []
        self.measured: dict[Key, deque[tuple[Place, dict[str, np.ndarray]]]] = {}
        self._dropped = 0
        self._latest: tuple[list[tuple[Key, Place]], np.ndarray, Measured] = ([], np.empty(0), {})
        self._numbers: dict[Key, int] = {}
        self._rows = np.tile(_NOTHING, (16, 1))
        self._frames: deque[tuple[Place, bytes, np.ndarray]] = deque(maxlen=limit)
        self._layouts: dict[bytes, bytes] = {}

    def absorb(
        self, identities: list[tuple[Key, Place]], rows: np.ndarray, measured: Measured
    ) -> None:
        """Take in rows in the order of their execution, and hand them on."""
        self._latest = identities, rows, measured
        self._look_for_nonfinite(identities, rows)
        self._merge(self.add_points(identities, encode_points(rows)), rows)
        for (key, place), found in measured.items():
            kept = self.measured.setdefault(key, deque(maxlen=self._frames.maxlen))
            kept.append((place, found))
        if self.sinks:
            observations = self.latest()
            for sink in list(self.sinks):
                self._hand(sink, observations)

    def add_points(self, identities: list[tuple[Key, Place]], points: np.ndarray) -> np.ndarray:
        """Take in moments alone; give the number of each one's tensor."""
        numbers = np.fromiter((self._number(key) for key, _ in identities), np.int32)
        moments = groupby(range(len(points)), key=lambda index: identities[index][1])
        for place, indices in moments:
            chosen = list(indices)
            self._add_frame(place, numbers[chosen].tobytes(), points[chosen])
        return numbers

    def set_total(self, key: Key, total: Statistics) -> None:
        """Say what all that was measured of a tensor is, merged."""
        number = self._number(key)  # which may make room for it
        self._rows[number] = total.to_row()

    def latest(self) -> list[Observation]:
        """The rows that were taken in last, in the order of execution, in full."""
        identities, rows, measured = self._latest
        return [
            Observation(key, place, Statistics.from_row(row), measured.get((key, place), {}))
            for (key, place), row in zip(identities, rows, strict=True)
        ]

    def totals(self) -> dict[Key, Statistics]:
        """The merged statistics of every tensor, in the order of first appearance."""
        return {key: Statistics.from_row(self._rows[n]) for key, n in self._numbers.items()}

    def run(self, **told: Any) -> Run:
        """All of it as a run, with what else is told of it."""
        points, at = self._points(), np.zeros(0, np.int64)
        none = decode_points(at, at, np.zeros((0, 4), np.uint8))
        totals = self.totals().items()
        series = (Series(key, total, points.get(n, none)) for n, (key, total) in enumerate(totals))
        before = () if self.first_nonfinite is None else tuple(self.predecessors)
        return Run(tuple(series), self.first_nonfinite, before, dropped=self._dropped, **told)

    @property
    def nbytes(self) -> int:
        """How many bytes the ring holds now."""
        points = sum(points.nbytes for _, _, points in self._frames)
        return points + sum(len(layout) for layout in self._layouts)

    def _hand(self, sink: Sink, observations: list[Observation]) -> None:
        try:
            sink.write(observations)
        except RecordingError as error:  # a full disk does not end somebody's training
            self.sinks.remove(sink)
            warnings.warn(f"The rest of the run is not written: {error}", stacklevel=2)

    def _number(self, key: Key) -> int:
        number = self._numbers.setdefault(key, len(self._numbers))
        if number == len(self._rows):
            self._rows = np.concatenate([self._rows, np.tile(_NOTHING, (number, 1))])
        return number

    def _merge(self, numbers: np.ndarray, rows: np.ndarray) -> None:
        """Merge rows into the totals; a tensor that occurs twice takes two rounds."""
        left = np.arange(len(numbers))
        while len(left):
            unique, first = np.unique(numbers[left], return_index=True)
            self._rows[unique] = merge_rows(self._rows[unique], rows[left[first]])
            left = np.delete(left, first)

    def _look_for_nonfinite(self, identities: list[tuple[Key, Place]], rows: np.ndarray) -> None:
        if self.first_nonfinite is not None:
            return
        bad = finite_counts(rows) < rows[:, COUNT]
        index = int(np.argmax(bad)) if bad.any() else len(rows)
        for i in range(max(0, index - PREDECESSORS), index):
            self.predecessors.append((identities[i][0], Statistics.from_row(rows[i]).scale))
        if index < len(rows):
            key, place = identities[index]
            self.first_nonfinite = Observation(key, place, Statistics.from_row(rows[index]))

    def _add_frame(self, place: Place, layout: bytes, points: np.ndarray) -> None:
        layout = self._layouts.setdefault(layout, layout)
        self._dropped += len(self._frames) == self._frames.maxlen
        self._frames.append((place, layout, points))
        if len(self._layouts) > 2 * len(self._frames) + 2:
            self._layouts = {layout: layout for _, layout, _ in self._frames}

    def _points(self) -> dict[int, Points]:
        """For each tensor's number, its points in order."""
        if not self._frames:
            return {}
        numbers = np.concatenate([np.frombuffer(a, np.int32) for _, a, _ in self._frames])
        lengths = [len(points) for _, _, points in self._frames]
        steps = np.repeat([place.step for place, _, _ in self._frames], lengths)
        batches = np.repeat([place.microbatch for place, _, _ in self._frames], lengths)
        points = np.concatenate([points for _, _, points in self._frames])
        order = np.argsort(numbers, kind="stable")
        found, starts = np.unique(numbers[order], return_index=True)
        groups = np.split(order, starts[1:])
        return {
            int(number): decode_points(steps[group], batches[group], points[group])
            for number, group in zip(found, groups, strict=True)
        }


def reduce_totals(totals: dict[Key, Statistics], group: Any = None) -> dict[Key, Statistics]:
    """Merge what each rank measured, in the order of ranks, so that every rank has one answer.

    Ranks may have seen different tensors, or none.
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        raise UnsupportedError(
            "There are no other ranks to merge with.",
            expected="torch.distributed.init_process_group(...) before",
            mend="On one process read totals() directly.",
        )
    gathered: list[Any] = [None] * distributed.get_world_size(group)
    mine = [(tuple(key), statistics.to_dict()) for key, statistics in totals.items()]
    try:
        distributed.all_gather_object(gathered, mine, group=group)
    except RuntimeError as error:  # the backend's own: a peer is gone, or too slow
        raise ProgramError(
            "Another rank did not answer, so the totals were not merged.",
            given=str(error).splitlines()[0][:200],
            expected="every rank of the group to call reduce()",
            mend="The totals of this rank are still in totals() and in its reports.",
        ) from error
    merged: dict[Key, Statistics] = {}
    for rank in gathered:
        for fields, data in rank:
            key, statistics = Key(*fields), Statistics.from_dict(data)
            merged[key] = merged[key].merge(statistics) if key in merged else statistics
    return merged
