"""`Log`: what was measured, on the host; and `Run`, as every report and file reads it.

The moments of a tensor are points: four bytes for each, enough to draw and to diagnose.

.. code-block:: text

    bytes 0-1  log2 of the scale (root mean square), signed, counted from -11: in steps of 1/200 as
               far as 139 octaves from there, which float32 does not leave, and of 1/5 beyond;
               -32768 if every finite element is zero, -32767 if nothing is finite
    byte  2    log2(max |x| / scale), in steps of 1/8, so up to 2^31.9
    byte  3    the share of zeros, in 248ths; neither end is reached by rounding. Or, from 249 on,
               248 and what was not finite: 1 NaN, 2 +inf, 4 -inf

A thousand tensors with their gradients over a hundred steps are 0.8 million bytes. Of a moment with
elements that are not finite the share of zeros is not kept: it says nothing there.
"""

import warnings
from collections import deque
from dataclasses import dataclass, field, fields
from itertools import islice
from typing import Any

import numpy as np
import torch

from pullback.errors import ProgramError, RecordingError, UnsupportedError
from pullback.tracking.formats import QuantisationNoise
from pullback.tracking.measure import _layout as layout
from pullback.tracking.measure._layout import COUNT
from pullback.tracking.measure._statistics import Statistics, finite_counts, merge_rows
from pullback.tracking.run._identity import Key, Observation, Place, Sink

__all__ = [
    "ALL_FLAGS",
    "BAD",
    "PREDECESSORS",
    "Log",
    "Measured",
    "Points",
    "Run",
    "Series",
    "decode_points",
    "encode_points",
    "pack_points",
    "reduce_totals",
]

POINT_BYTES = 4
# Half a step of 1/200 octave is .17 % of a scale, half a step of 1/5 is 7 %.
_LEVELS = np.array([-1125.0, -150.0, 128.0, 1103.0])
_CODES = np.array([-32675.0, -27800.0, 27800.0, 32675.0])
ALL_ZERO, NONE_FINITE = -32768, -32767
WHOLE = 248  # a share of one
NAN_SEEN, POSITIVE_SEEN, NEGATIVE_SEEN, EMPTY, NULL = 1, 2, 4, 8, 16
BAD = NAN_SEEN | POSITIVE_SEEN | NEGATIVE_SEEN
ALL_FLAGS = BAD | EMPTY | NULL


@dataclass(frozen=True, slots=True)
class Points:
    """Decoded points of one tensor, each an array with one element a moment.

    Arguments:
        steps: the step of training.
        microbatches: the microbatch within it.
        scale: log2 of the root mean square; NaN where nothing is finite, ``-inf`` for all zeros.
        peak: log2 of the largest ``|x|``, likewise.
        zeros: the share of zeros among all elements; 0 where an element was not finite.
        flags: 1 NaN, 2 +inf, 4 -inf, 8 nothing finite, 16 every finite element is zero.
    """

    steps: np.ndarray
    microbatches: np.ndarray
    scale: np.ndarray
    peak: np.ndarray
    zeros: np.ndarray
    flags: np.ndarray

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, chosen: np.ndarray) -> "Points":
        return Points(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def moments(self) -> list[tuple[int, int]]:
        """The step and the microbatch of each."""
        return list(zip(self.steps.tolist(), self.microbatches.tolist(), strict=True))


def encode_points(rows: np.ndarray) -> np.ndarray:
    """Four bytes for each row of statistics: uint8 of shape ``[n, 4]``."""
    finite = finite_counts(rows)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        deviation = np.sqrt(rows[:, layout.M2] / np.maximum(finite, 1.0))
        scale = np.log2(np.hypot(rows[:, layout.MEAN], deviation))
        peak = np.log2(rows[:, layout.MAX_ABS])
    flags = (
        (rows[:, layout.NANS] > 0) * NAN_SEEN
        + (rows[:, layout.POSITIVE_INFINITIES] > 0) * POSITIVE_SEEN
        + (rows[:, layout.NEGATIVE_INFINITIES] > 0) * NEGATIVE_SEEN
        + (finite == 0) * EMPTY
        + ((finite > 0) & (rows[:, layout.MAX_ABS] == 0)) * NULL
    )
    return pack_points(scale, peak, rows[:, layout.ZEROS] / np.maximum(rows[:, 0], 1.0), flags)


def pack_points(
    scale: np.ndarray, peak: np.ndarray, zeros: np.ndarray, flags: np.ndarray
) -> np.ndarray:
    """The bytes of what `Points` holds of some moments; what was packed before is so again."""
    null = (flags & NULL) > 0
    drawn = ~(null | ((flags & EMPTY) > 0)) & np.isfinite(scale) & np.isfinite(peak)
    level, peak = np.where(drawn, scale, 0.0), np.where(drawn, peak, 0.0)
    stored = np.round(np.interp(level, _LEVELS, _CODES))
    stored = np.where(null, ALL_ZERO, np.where(drawn, stored, NONE_FINITE)).astype("<i2")
    points = np.zeros((len(scale), POINT_BYTES), np.uint8)
    points[:, :2] = stored[:, None].view(np.uint8)
    points[:, 2] = np.clip(np.round((peak - level) * 8), 0, 255)
    share = np.round(zeros * WHOLE)
    share = np.where(zeros > 0, np.maximum(share, 1), share)
    share = np.where(zeros < 1, np.minimum(share, WHOLE - 1), share)
    bad = flags & BAD
    points[:, 3] = np.where(bad > 0, WHOLE + bad, np.clip(share, 0, WHOLE))
    return points


def decode_points(steps: np.ndarray, microbatches: np.ndarray, points: np.ndarray) -> Points:
    """Read what `encode_points` wrote, with the moments it was written at."""
    stored = np.ascontiguousarray(points[:, :2]).view("<i2")[:, 0]
    null, empty = stored == ALL_ZERO, stored == NONE_FINITE
    level = np.interp(stored, _CODES, _LEVELS)
    peak = level + points[:, 2] / 8.0
    for array in (level, peak):
        array[null] = -np.inf
        array[empty] = np.nan
    bad = np.maximum(points[:, 3], WHOLE) - WHOLE
    flags = (bad + empty * EMPTY + null * NULL).astype(np.uint8)
    zeros = np.where(bad > 0, 0.0, points[:, 3] / WHOLE)
    return Points(steps, microbatches, level, peak, zeros, flags)


Measured = dict[tuple[Key, Place], dict[str, np.ndarray]]
"""What statistics of one's own made of rows, by name."""

PREDECESSORS = 5
RECENT = 16  # frames among which one looks for its layout
PARTS = 32  # of a step that is kept in full, each of a buffer's rows at most: 20 MB in all
_NOTHING = Statistics(0).to_row()


@dataclass(frozen=True, slots=True)
class Series:
    """One tensor over the run.

    Arguments:
        key: which tensor.
        total: all that was ever measured of it, merged.
        points: its moments, as many as the history still holds.
        dropped: how many moments it no longer holds.
    """

    key: Key
    total: Statistics
    points: Points
    dropped: int = 0

    @property
    def moments(self) -> int:
        """How many there were."""
        return len(self.points) + self.dropped


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
    skipped: dict[str, str] = field(default_factory=dict)
    truncated: bool = False
    title: str = "model"
    noise: tuple[QuantisationNoise, ...] = ()
    advice: str = ""

    @property
    def dropped(self) -> int:
        """How many moments the history no longer holds."""
        return max((series.dropped for series in self.series), default=0)


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
        # What was taken in of the last step, and in how many parts a step is kept at most.
        self._latest: deque[tuple[list[tuple[Key, Place]], np.ndarray, Measured]]
        self._latest = deque(maxlen=PARTS)
        self._step = -1
        self._numbers: dict[Key, int] = {}
        self._rows = np.tile(_NOTHING, (16, 1))
        self._moments = np.zeros(16, np.int64)  # of each tensor, held or not
        self._frames: deque[tuple[Place, bytes, np.ndarray]] = deque(maxlen=limit)

    def absorb(
        self, identities: list[tuple[Key, Place]], rows: np.ndarray, measured: Measured
    ) -> None:
        """Take in rows in the order of their execution, and hand them on."""
        step = max(place.step for _, place in identities)
        if step != self._step:
            self._latest.clear()
        self._step = step
        self._latest.append((identities, rows, measured))
        self._look_for_nonfinite(identities, rows)
        self._merge(self.add_points(identities, encode_points(rows)), rows)
        for (key, place), found in measured.items():
            kept = self.measured.setdefault(key, deque(maxlen=self._frames.maxlen))
            kept.append((place, found))
        if self.sinks:
            observations = _observations(identities, rows, measured)
            for sink in list(self.sinks):
                self._hand(sink, observations)

    def add_points(self, identities: list[tuple[Key, Place]], points: np.ndarray) -> np.ndarray:
        """Take in moments alone; give the number of each one's tensor."""
        numbers = np.fromiter((self._number(key) for key, _ in identities), np.int32)
        np.add.at(self._moments, numbers, 1)
        moments: dict[Place, list[int]] = {}
        for index, (_, place) in enumerate(identities):
            moments.setdefault(place, []).append(index)
        for place, chosen in moments.items():
            self._add_frame(place, numbers[chosen].tobytes(), points[chosen])
        return numbers

    def set_total(self, key: Key, total: Statistics, moments: int) -> None:
        """Say what all that was measured of a tensor is, merged, and at how many moments."""
        number = self._number(key)  # which may make room for it
        self._rows[number] = total.to_row()
        self._moments[number] = max(self._moments[number], moments)

    def latest(self) -> list[Observation]:
        """What was taken in of the last step, in the order of execution, in full."""
        return [each for part in self._latest for each in _observations(*part)]

    def totals(self) -> dict[Key, Statistics]:
        """The merged statistics of every tensor, in the order of first appearance."""
        return {key: Statistics.from_row(self._rows[n]) for key, n in self._numbers.items()}

    def run(self, **told: Any) -> Run:
        """All of it as a run, with what else is told of it."""
        points, at = self._points(), np.zeros(0, np.int64)
        none = decode_points(at, at, np.zeros((0, 4), np.uint8))
        totals = self.totals().items()
        series = []
        for number, (key, total) in enumerate(totals):
            held = points.get(number, none)
            series.append(Series(key, total, held, int(self._moments[number]) - len(held)))
        before = () if self.first_nonfinite is None else tuple(self.predecessors)
        return Run(tuple(series), self.first_nonfinite, before, **told)

    @property
    def moments(self) -> int:
        """How many moments of all tensors were taken in."""
        return int(self._moments.sum())

    @property
    def nbytes(self) -> int:
        """How many bytes the ring holds now."""
        points = sum(points.nbytes for _, _, points in self._frames)
        return points + sum(map(len, {layout for _, layout, _ in self._frames}))

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
            self._moments = np.concatenate([self._moments, np.zeros_like(self._moments)])
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
        if self._frames and self._frames[-1][0] == place:  # a moment that arrives in parts
            _, layout_before, points_before = self._frames.pop()
            layout, points = layout_before + layout, np.concatenate([points_before, points])
        recent = islice(reversed(self._frames), RECENT)
        layout = next((held for _, held, _ in recent if held == layout), layout)
        self._frames.append((place, layout, points))

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


def _observations(
    identities: list[tuple[Key, Place]], rows: np.ndarray, measured: Measured
) -> list[Observation]:
    return [
        Observation(key, place, Statistics.from_row(row), measured.get((key, place), {}))
        for (key, place), row in zip(identities, rows, strict=True)
    ]


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
    try:
        distributed.all_gather_object(gathered, totals, group=group)
    except RuntimeError as error:  # the backend's own: a peer is gone, or too slow
        raise ProgramError(
            "Another rank did not answer, so the totals were not merged.",
            given=str(error).splitlines()[0][:200],
            expected="every rank of the group to call reduce()",
            mend="The totals of this rank are still in totals() and in its reports.",
        ) from error
    merged: dict[Key, Statistics] = {}
    for rank in gathered:
        for key, statistics in rank.items():
            merged[key] = merged[key].merge(statistics) if key in merged else statistics
    return merged
