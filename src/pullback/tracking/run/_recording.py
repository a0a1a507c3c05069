"""Recorded runs as JSON lines, flushed step by step, and read back.

The kinds of lines:

.. code-block:: text

    run          the header: version, title, cadence
    seen         one tensor at one moment, with all its statistics
    point        the same at the precision of the history, see `Recorder.to_jsonl`
    total        one tensor over the whole run
    nonfinite    the first tensor that held a NaN or an infinity
    noise        what a format lost, or would lose, of one module's factors of one kind
    advice       which factors to keep in higher precision, a sentence
    skipped      a tensor that could not be measured, and why
"""

import contextlib
import functools
import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any, TextIO, get_args, get_type_hints

import numpy as np

from pullback.errors import RecordingError
from pullback.internal._arguments import checked
from pullback.tracking.formats import QuantisationNoise
from pullback.tracking.measure._statistics import Statistics, plain_number, whole
from pullback.tracking.run._identity import Key, Observation, Place
from pullback.tracking.run._log import ALL_FLAGS, PREDECESSORS, Log, Run, Series, pack_points

__all__ = ["JsonLines", "RunWriter", "read_run", "write_run"]

VERSION = 1


class JsonLines:
    """A file with one JSON object for each tensor at each moment, with statistics of one's own.

    Arguments:
        path: the file, overwritten.
        what: what an error calls it.

    Raises:
        RecordingError: the file cannot be written.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import torch
        >>> from pullback.tracking import Tracker
        >>> from pullback.tracking.sinks import JsonLines
        >>> model = torch.nn.Linear(2, 2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "steps.jsonl")
        ...     with Tracker(model, sinks=[JsonLines(path)]) as tracker:
        ...         _ = model(torch.ones(1, 2))
        ...         tracker.step()
        ...     "scale" in path.read_text()
        True
    """

    @checked
    def __init__(self, path: str | Path, what: str = "observations") -> None:
        self._path, self._what = path, what
        try:
            self._file: TextIO | None = Path(path).open("w", encoding="utf-8")  # noqa: SIM115 - until close()
        except OSError as error:
            raise self._refusal(error) from error

    def write(self, observations: Iterable[Observation]) -> None:
        """Append a line for each."""
        self.append(map(_seen, observations))

    def append(self, lines: Iterable[dict[str, Any]]) -> None:
        """Append lines and hand them to the operating system; nothing once the file is closed.

        Raises:
            RecordingError: they cannot be written; the file is closed.
        """
        if self._file is None:
            return
        try:
            self._file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
            self._file.flush()
        except OSError as error:
            self.close()
            raise self._refusal(error) from error

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # of what could not be written before
                file.close()

    def _refusal(self, error: OSError) -> RecordingError:
        return RecordingError(
            f"The {self._what} cannot be written.", given=str(self._path), expected=str(error)
        )


class RunWriter(JsonLines):
    """The same with a header and an end, for `read_run`; a crash loses at most one step."""

    def __init__(self, path: str | Path, title: str, every: int) -> None:
        super().__init__(path, "recording")
        self.append([{"kind": "run", "version": VERSION, "title": title, "every": every}])

    def finish(self, run: Run) -> None:
        """Append what a whole run tells, and close the file."""
        self.append(closing_lines(run))
        self.close()


def _seen(observation: Observation) -> dict[str, Any]:
    """One tensor at one moment, as JSON holds it."""
    statistics, scale = observation.statistics.to_dict(), observation.statistics.scale
    measures = {name: _plain(found) for name, found in observation.measures.items()}
    known = {**statistics, "scale": scale if isfinite(scale) else None, "measures": measures}
    return _line("seen", observation.key, observation.place, **known)


def _line(kind: str, key: Key, place: Place | None = None, **told: Any) -> dict[str, Any]:
    return {"kind": kind, **key._asdict(), **({} if place is None else place._asdict()), **told}


def _plain(values: np.ndarray) -> Any:
    plain = values.astype(object)
    plain[~np.isfinite(values)] = None  # JSON has no NaN
    return plain.tolist()


def closing_lines(run: Run) -> Iterator[dict[str, Any]]:
    """What is known once a run is over."""
    for series in run.series:
        yield _line("total", series.key, **series.total.to_dict(), moments=series.moments)
    first = run.first_nonfinite
    if first is not None:
        before = [key._asdict() | {"scale": plain_number(size)} for key, size in run.predecessors]
        known = {"statistics": first.statistics.to_dict(), "predecessors": before}
        yield _line("nonfinite", first.key, first.place, **known)
    for noise in run.noise:
        yield {"kind": "noise", **asdict(noise), "decibels": plain_number(noise.decibels)}
    if run.advice:
        yield {"kind": "advice", "text": run.advice}
    for name, reason in run.skipped.items():
        yield {"kind": "skipped", "name": name, "reason": reason}


def write_run(run: Run, path: str | Path) -> None:
    """Write a run that is in memory: points at the precision of the history, and exact totals."""
    writer = RunWriter(path, run.title, run.every)
    for series in run.series:
        writer.append(point_lines(series))
    writer.finish(run)


def point_lines(series: Series) -> Iterator[dict[str, Any]]:
    """The moments of a series as lines."""
    points = series.points
    columns = (points.scale, points.peak, points.zeros, points.flags)
    for moment, scale, peak, zeros, flags in zip(points.moments(), *columns, strict=True):
        yield _line(
            "point", series.key, Place(*moment),
            log2_scale=plain_number(round(float(scale), 5)),
            log2_peak=plain_number(round(float(peak), 5)),
            zero_share=round(float(zeros), 5), flags=int(flags),
        )  # fmt: skip


BATCH = 1024  # lines of moments that a log takes in at once


class _Reader:
    """Fills a log with lines, and keeps what else a run is told of."""

    def __init__(self) -> None:
        self.log = Log(None)
        self.told: dict[str, Any] = {"skipped": {}, "noise": ()}
        self.seen: list[tuple[Key, Place, np.ndarray]] = []
        self.points: list[tuple[Key, Place, tuple[float, float, float, int]]] = []

    def take(self, line: dict[str, Any]) -> None:
        kind = line["kind"]
        if kind == "run":
            if line["version"] != VERSION:
                raise ValueError(f"version {line['version']}, and this reads version {VERSION}")
            self.told |= {"title": _text(line["title"]), "every": max(whole(line["every"]), 1)}
        elif kind == "seen":
            self.seen.append((_key(line), _read(Place, line), Statistics.from_dict(line).to_row()))
        elif kind == "point":
            self.points.append((_key(line), _read(Place, line), _point(line)))
        elif kind == "noise":
            self.told["noise"] += (_read(QuantisationNoise, line),)
        elif kind == "advice":
            self.told["advice"] = _text(line["text"])
        elif kind == "skipped":
            self.told["skipped"][_text(line["name"])] = _text(line["reason"])
        if kind in ("total", "nonfinite") or len(self.seen) + len(self.points) >= BATCH:
            self.absorb()
        if kind == "total":
            moments = whole(line.get("moments", 0))  # older recordings do not say
            self.log.set_total(_key(line), Statistics.from_dict(line), moments)
        elif kind == "nonfinite":
            before = [(_key(one), float(one["scale"])) for one in line["predecessors"]]
            self.log.predecessors = deque(before, PREDECESSORS)
            statistics = Statistics.from_dict(line["statistics"])
            self.log.first_nonfinite = Observation(_key(line), _read(Place, line), statistics)

    def absorb(self) -> None:
        """Hand the moments that wait to the log."""
        if self.seen:
            rows = np.stack([row for *_, row in self.seen])
            self.log.absorb([(key, place) for key, place, _ in self.seen], rows, {})
        if self.points:
            scale, peak, zeros, flags = map(
                np.asarray, zip(*(point for *_, point in self.points), strict=True)
            )
            packed = pack_points(scale, peak, zeros, flags)
            self.log.add_points([(key, place) for key, place, _ in self.points], packed)
        self.seen, self.points = [], []

    def run(self, truncated: bool) -> Run:
        self.absorb()
        if "title" not in self.told:
            raise ValueError("no header")
        run = self.log.run(truncated=truncated, **self.told)
        first = run.first_nonfinite
        if first is not None and all(series.key != first.key for series in run.series):
            raise ValueError(f"{first.key} was not finite, and is not in the recording")
        return run


def _key(line: dict[str, Any]) -> Key:
    # A recording made before a field was there has its default.
    return _read(Key, {**Key._field_defaults, **line})


def _read(kind: Any, line: dict[str, Any]) -> Any:
    """A named tuple or dataclass of the fields of a line, each of the type that it declares."""
    return kind(**{name: _checked(hint, line[name]) for name, hint in _hints_of(kind).items()})


_hints_of = functools.cache(get_type_hints)


def _checked(hint: Any, value: Any) -> Any:
    if hint is int:
        return whole(value)
    if hint is bool:
        return value is True
    if hint is float:
        return float(value)
    if hint is str:
        return _text(value)
    if value not in get_args(hint):
        raise ValueError(f"{value!r} is none of {get_args(hint)}")
    return value


def _point(line: dict[str, Any]) -> tuple[float, float, float, int]:
    scale, peak, zeros = (float(line[name]) for name in ("log2_scale", "log2_peak", "zero_share"))
    alike = abs(scale) <= 1100 >= abs(peak) if isfinite(scale) else not isfinite(peak)
    if not alike or not 0 <= zeros <= 1:
        raise ValueError(f"a scale of 2^{scale} beside a peak of 2^{peak} and {zeros} zeros")
    return scale, peak, zeros, whole(line["flags"]) & ALL_FLAGS


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


@checked
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
