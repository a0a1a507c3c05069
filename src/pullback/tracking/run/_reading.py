"""`read_run`: a recorded run from its JSON lines."""

import json
from math import isfinite
from pathlib import Path
from typing import Any, get_args

import numpy as np

from pullback.errors import RecordingError
from pullback.tracking.formats import QuantisationNoise
from pullback.tracking.formats._noise import ROLES
from pullback.tracking.measure._layout import Direction
from pullback.tracking.measure._statistics import Statistics, whole
from pullback.tracking.run._identity import Key, Phase, Place, Source
from pullback.tracking.run._observation import Observation
from pullback.tracking.run._points import ALL_FLAGS, Points, decode_points, encode_points
from pullback.tracking.run._run import Run, Series, no_points
from pullback.tracking.run._writing import VERSION

__all__ = ["read_run"]


class _Reader:
    """Gathers lines into series."""

    def __init__(self) -> None:
        self.header: dict[str, Any] | None = None
        self.totals: dict[Key, Statistics] = {}
        self.merged: dict[Key, Statistics] = {}
        self.moments: dict[Key, list[tuple[int, int, float, float, float, int]]] = {}
        self.first: Observation | None = None
        self.predecessors: tuple[tuple[Key, float], ...] = ()
        self.skipped: dict[str, str] = {}
        self.noise: list[QuantisationNoise] = []
        self.advice = ""
        self.before: list[tuple[Key, float]] = []

    def take(self, line: dict[str, Any]) -> None:
        kind = line["kind"]
        if kind == "run":
            if line["version"] != VERSION:
                raise ValueError(f"version {line['version']}, and this reads version {VERSION}")
            self.header = {"title": _text(line["title"]), "every": max(whole(line["every"]), 1)}
        elif kind == "seen":
            self.seen(line)
        elif kind == "point":
            place = _place(line)
            scale, peak = float(line["log2_scale"]), float(line["log2_peak"])
            if isfinite(scale) != isfinite(peak):
                raise ValueError(f"a scale of 2^{scale} beside a peak of 2^{peak}")
            moment = (
                place.step,
                place.microbatch,
                scale,
                peak,
                float(line["zero_share"]),
                whole(line["flags"]) & ALL_FLAGS,
            )
            self.moments.setdefault(_key(line), []).append(moment)
        elif kind == "total":
            self.totals[_key(line)] = Statistics.from_dict(line)
        elif kind == "nonfinite":
            before = ((_key(one), float(one["scale"])) for one in line["predecessors"])
            self.predecessors = tuple(before)
            statistics = Statistics.from_dict(line["statistics"])
            self.first = Observation(_key(line), _place(line), statistics)
        elif kind == "noise":
            module, number_format = _text(line["module"]), _text(line["number_format"])
            role, count = _one_of(ROLES, line["role"]), whole(line["count"])
            decibels = float(line["decibels"])
            self.noise.append(QuantisationNoise(module, role, number_format, count, decibels))
        elif kind == "advice":
            self.advice = _text(line["text"])
        elif kind == "skipped":
            self.skipped[_text(line["name"])] = _text(line["reason"])

    def seen(self, line: dict[str, Any]) -> None:
        key, statistics = _key(line), Statistics.from_dict(line)
        earlier = self.merged.get(key)
        self.merged[key] = statistics if earlier is None else earlier.merge(statistics)
        place = _place(line)
        encoded = encode_points(statistics.to_row()[None])
        point = decode_points(np.zeros(1), np.zeros(1), encoded)
        exact = statistics.scale
        scale = float(np.log2(exact)) if exact > 0 else float(point.scale[0])
        peak = float(np.log2(statistics.max_abs)) if exact > 0 else float(point.peak[0])
        share = statistics.zeros / max(statistics.count, 1)
        moment = (place.step, place.microbatch, scale, peak, share, int(point.flags[0]))
        self.moments.setdefault(key, []).append(moment)
        if self.first is None and statistics.finite < statistics.count:
            self.first = Observation(key, place, statistics)
            self.predecessors = tuple(self.before[-5:])
        self.before = [*self.before[-4:], (key, exact)]

    def run(self, truncated: bool) -> Run:
        if self.header is None:
            raise ValueError("no header")
        totals = {**self.merged, **self.totals}
        keys = dict.fromkeys([*self.moments, *totals])
        if self.first is not None and self.first.key not in keys:
            raise ValueError(f"{self.first.key} was not finite, and is not in the recording")
        series = [
            Series(key, totals.get(key, Statistics(0)), _points(self.moments.get(key)))
            for key in keys
        ]
        return Run(
            tuple(series),
            self.first,
            self.predecessors,
            self.header["every"],
            skipped=self.skipped,
            truncated=truncated,
            title=self.header["title"],
            noise=tuple(self.noise),
            advice=self.advice,
        )


def _key(line: dict[str, Any]) -> Key:
    # A recording made before a field was there has its default.
    fields = {**Key._field_defaults, **line}
    return Key(
        _text(fields["name"]),
        whole(fields["call"]),
        _one_of(get_args(Direction), fields["direction"]),
        whole(fields["order"]),
        fields["recomputed"] is True,
        whole(fields["visit"]),
        _one_of(get_args(Phase), fields["phase"]),
        _one_of(get_args(Source), fields["source"]),
    )


def _place(line: dict[str, Any]) -> Place:
    return Place(whole(line["step"]), whole(line["microbatch"]))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _one_of(known: tuple[Any, ...], value: Any) -> Any:
    if value not in known:
        raise ValueError(f"{value!r} is none of {known}")
    return value


def _points(moments: list[tuple[int, int, float, float, float, int]] | None) -> Points:
    if not moments:
        return no_points()
    steps, batches, scale, peak, zeros, flags = (
        np.asarray(column) for column in zip(*moments, strict=True)
    )
    return Points(steps, batches, scale, peak, zeros, flags.astype(np.uint8))


def read_run(path: str | Path) -> Run:
    """Read a recording, even one whose program died while writing it.

    Arguments:
        path: a file that a tracker wrote with ``jsonl=`` or ``to_jsonl``.

    Returns:
        The run. If the last line is incomplete it is left out and ``truncated`` is true.

    Raises:
        RecordingError: the file is missing, is not a recording, or is damaged before its end.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, ValueError) as error:  # also a path that none can be, and text that is none
        raise RecordingError(
            "The recording cannot be read.", given=str(path), expected=str(error)
        ) from error
    reader = _Reader()
    truncated = bool(lines) and not lines[-1].endswith("\n")
    number = 0
    try:
        for number, line in enumerate(lines[:-1] if truncated else lines, start=1):  # noqa: B007 - the message names the line
            reader.take(json.loads(line))
        return reader.run(truncated)
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise RecordingError(
            "This is not a recording, or it is damaged.",
            given=f"{path}, line {number}: {error}",
            expected="a file written with jsonl=... or to_jsonl(...)",
        ) from error
