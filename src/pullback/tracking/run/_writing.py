"""Recorded runs as JSON lines, flushed step by step, and read back.

The kinds of lines:

.. code-block:: text

    run          the header: version, title, cadence
    seen         one tensor at one moment, with all its statistics
    point        the same at the precision of the history (scale within 0.2 %)
    total        one tensor over the whole run
    nonfinite    the first tensor that held a NaN or an infinity
    noise        what a format lost, or would lose, of one module's factors of one kind
    advice       which factors to keep in higher precision, a sentence
    skipped      a tensor that could not be measured, and why
"""

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from pullback.errors import RecordingError
from pullback.tracking.measure._statistics import plain_number
from pullback.tracking.run._identity import Key, Place
from pullback.tracking.run._observation import Observation
from pullback.tracking.run._run import Run, Series

__all__ = ["LineFile", "RunWriter", "observation_fields", "write_run"]

VERSION = 1


class LineFile:
    """A new file that JSON objects are appended to, one a line.

    Raises:
        RecordingError: the file cannot be written.
    """

    def __init__(self, path: str | Path, what: str) -> None:
        self._path, self._what = path, what
        try:
            self._file: TextIO | None = Path(path).open("w", encoding="utf-8")  # noqa: SIM115 - until close()
        except OSError as error:
            raise self._refusal(error) from error

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


class RunWriter(LineFile):
    """A sink whose file `read_run` reads, so that a crash loses at most one step."""

    def __init__(self, path: str | Path, title: str, every: int) -> None:
        super().__init__(path, "recording")
        self.append([{"kind": "run", "version": VERSION, "title": title, "every": every}])

    def write(self, observations: Iterable[Observation]) -> None:
        """Append a step, as soon as it is flushed."""
        self.append({"kind": "seen", **observation_fields(each)} for each in observations)

    def finish(self, run: Run) -> None:
        """Append what a whole run tells, and close the file."""
        self.append(closing_lines(run))
        self.close()


def observation_fields(observation: Observation) -> dict[str, Any]:
    """One tensor at one moment, as JSON holds it."""
    return {
        **observation.key._asdict(),
        **observation.place._asdict(),
        **observation.statistics.to_dict(),
    }


def closing_lines(run: Run) -> Iterator[dict[str, Any]]:
    """What is known once a run is over."""
    for series in run.series:
        yield {"kind": "total", **series.key._asdict(), **series.total.to_dict()}
    if run.first_nonfinite is not None:
        yield nonfinite_line(run.first_nonfinite, run.predecessors)
    for noise in run.noise:
        yield {"kind": "noise", **asdict(noise), "decibels": plain_number(noise.decibels)}
    if run.advice:
        yield {"kind": "advice", "text": run.advice}
    for name, reason in run.skipped.items():
        yield {"kind": "skipped", "name": name, "reason": reason}


def nonfinite_line(first: Observation, predecessors: Iterable[tuple[Key, float]]) -> dict[str, Any]:
    """The first non-finite tensor as a line."""
    return {
        "kind": "nonfinite",
        **first.key._asdict(),
        **first.place._asdict(),
        "statistics": first.statistics.to_dict(),
        "predecessors": [
            {**key._asdict(), "scale": plain_number(scale)} for key, scale in predecessors
        ],
    }


def write_run(run: Run, path: str | Path) -> None:
    """Write a run that is in memory: points at the precision of the history, and exact totals.

    Raises:
        RecordingError: the file cannot be written.
    """
    writer = RunWriter(path, run.title, run.every)
    for series in run.series:
        writer.append(point_lines(series))
    writer.finish(run)


def point_lines(series: Series) -> Iterator[dict[str, Any]]:
    """The moments of a series as lines."""
    points = series.points
    fields = series.key._asdict()
    for index, moment in enumerate(points.moments()):
        yield {
            "kind": "point",
            **fields,
            **Place(*moment)._asdict(),
            "log2_scale": plain_number(round(float(points.scale[index]), 5)),
            "log2_peak": plain_number(round(float(points.peak[index]), 5)),
            "zero_share": round(float(points.zeros[index]), 5),
            "flags": int(points.flags[index]),
        }
