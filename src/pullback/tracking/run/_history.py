"""`History`: what arrived on the host: totals, the last moments, the first non-finite tensor."""

import warnings
from collections import deque
from collections.abc import Iterable
from itertools import groupby

import numpy as np

from pullback.errors import ArgumentError, RecordingError
from pullback.tracking.measure._layout import COUNT, WIDTH
from pullback.tracking.measure._statistics import Statistics, finite_counts, merge_rows
from pullback.tracking.run._identity import Key, Place
from pullback.tracking.run._observation import Observation, Sink
from pullback.tracking.run._points import Points, decode_points, encode_points
from pullback.tracking.run._run import Series, no_points

__all__ = ["History", "Measured"]

Measured = dict[tuple[Key, Place], dict[str, np.ndarray]]
"""What statistics of one's own made of rows, by name."""

PREDECESSORS = 5


class History:
    """The totals of every tensor, its last moments, and the first that was not finite.

    What arrives is handed on to sinks as well.

    Moments are in a ring of frames; a frame is one moment of training, four bytes a tensor. Which
    tensors a frame is of is almost always the same from one frame to the next, so it is stored once
    and shared.

    Arguments:
        limit: how many frames are kept; the oldest makes room for the newest.

    Raises:
        ArgumentError: the limit is not positive.
    """

    def __init__(self, limit: int) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ArgumentError(
                "A history keeps at least one moment.",
                given=f"history={limit}",
                expected="a number of steps, 1 or more",
            )
        self.dropped = 0
        self.first_nonfinite: Observation | None = None
        self.sinks: list[Sink] = []
        self.measured: dict[Key, deque[tuple[Place, dict[str, np.ndarray]]]] = {}
        self._limit = limit
        self._latest: tuple[list[tuple[Key, Place]], np.ndarray, Measured] = ([], np.empty(0), {})
        self._numbers: dict[Key, int] = {}
        self._rows = np.zeros((16, WIDTH))
        self.predecessors: deque[tuple[Key, float]] = deque(maxlen=PREDECESSORS)
        self._frames: deque[tuple[Place, bytes, np.ndarray]] = deque(maxlen=limit)
        self._layouts: dict[bytes, bytes] = {}

    def absorb(
        self, identities: list[tuple[Key, Place]], rows: np.ndarray, measured: Measured
    ) -> None:
        """Take in rows in the order of their execution, and hand them on."""
        self._latest = identities, rows, measured
        numbers = [self._number(key) for key, _ in identities]
        self._merge(np.asarray(numbers), rows)
        self._look_for_nonfinite(identities, rows)
        moments = groupby(range(len(rows)), key=lambda index: identities[index][1])
        for place, indices in moments:
            chosen = list(indices)
            self._add_frame(place, [numbers[i] for i in chosen], rows[chosen])
        for (key, place), found in measured.items():
            kept = self.measured.setdefault(key, deque(maxlen=self._limit))
            kept.append((place, found))
        if self.sinks:
            observations = self.latest()
            for sink in list(self.sinks):
                self._hand(sink, observations)

    def _hand(self, sink: Sink, observations: list[Observation]) -> None:
        try:
            sink.write(observations)
        except RecordingError as error:  # a full disk does not end somebody's training
            self.sinks.remove(sink)
            warnings.warn(f"The rest of the run is not written: {error}", stacklevel=2)

    def latest(self) -> list[Observation]:
        """The rows that were taken in last, in the order of execution, in full."""
        identities, rows, measured = self._latest
        return [
            Observation(key, place, Statistics.from_row(row), measured.get((key, place), {}))
            for (key, place), row in zip(identities, rows, strict=True)
        ]

    def statistics(self, key: Key) -> Statistics | None:
        """All that was measured of a tensor, merged."""
        number = self._numbers.get(key)
        return None if number is None else Statistics.from_row(self._rows[number])

    def totals(self) -> dict[Key, Statistics]:
        """The merged statistics of every tensor."""
        return {key: Statistics.from_row(self._rows[n]) for key, n in self._numbers.items()}

    def series(self) -> tuple[Series, ...]:
        """Every tensor in the order of its first appearance."""
        points = self._points()
        return tuple(
            Series(key, total, points.get(self._numbers[key], no_points()))
            for key, total in self.totals().items()
        )

    @property
    def nbytes(self) -> int:
        """How many bytes the ring holds now."""
        points = sum(points.nbytes for _, _, points in self._frames)
        return points + sum(len(layout) for layout in self._layouts)

    def _number(self, key: Key) -> int:
        number = self._numbers.setdefault(key, len(self._numbers))
        if number == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        if number >= len(self._numbers) - 1 and not self._rows[number].any():
            self._rows[number] = Statistics(0).to_row()
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

    def _add_frame(self, place: Place, numbers: Iterable[int], rows: np.ndarray) -> None:
        layout = np.fromiter(numbers, np.int32).tobytes()
        layout = self._layouts.setdefault(layout, layout)
        if len(self._frames) == self._frames.maxlen:
            self.dropped += 1
        self._frames.append((place, layout, encode_points(rows)))
        if len(self._layouts) > 2 * len(self._frames) + 2:
            kept = {layout for _, layout, _ in self._frames}
            self._layouts = {layout: layout for layout in kept}

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
