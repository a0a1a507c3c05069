"""Recorded runs as JSON lines, flushed step by step, and read back.

The kinds of lines:

.. code-block:: text

    run          the header: version, title, cadence
    seen         one tensor at one moment, with all its statistics
    point        the same at the precision of the history (scale within 0.2 %)
    total        one tensor over the whole run
    nonfinite    the first tensor that held a NaN or an infinity
    noise        what a simulated format lost of one module's factors of one kind
    skipped      a tensor that could not be measured, and why
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from pullback.errors import RecordingError
from pullback.tracking.measure._statistics import Statistics
from pullback.tracking.run._identity import Key, Place
from pullback.tracking.run._ledger import Identities
from pullback.tracking.run._run import NonFinite, Run, Series

__all__ = ["Journal", "write_run"]

VERSION = 1


def key_fields(key: Key) -> dict[str, Any]:
    """A key as JSON holds it."""
    return key._asdict()


class Journal:
    """A file that receives each step as it is flushed, so that a crash loses at most one step.

    Arguments:
        path: the file, overwritten.
        title: what is tracked.
        every: the cadence in steps.

    Raises:
        RecordingError: the file cannot be written.
    """

    def __init__(self, path: str | Path, title: str, every: int) -> None:
        self.path = Path(path)
        try:
            self._file: TextIO | None = self.path.open("w", encoding="utf-8")
        except OSError as error:
            raise RecordingError(
                "The recording cannot be written.", given=str(path), expected=str(error)
            ) from error
        self.line({"kind": "run", "version": VERSION, "title": title, "every": every})

    def line(self, data: dict[str, Any]) -> None:
        """Append one line and hand it to the operating system."""
        if self._file is not None:
            self._file.write(json.dumps(data, separators=(",", ":")) + "\n")
            self._file.flush()

    def absorb(self, identities: Identities, rows: np.ndarray) -> None:
        """Append a step; the ledger calls this at each flush."""
        if self._file is None:
            return
        lines = [
            json.dumps(
                {
                    "kind": "seen",
                    **key_fields(key),
                    **place._asdict(),
                    **Statistics.from_row(row).to_dict(),
                },
                separators=(",", ":"),
            )
            for (key, place), row in zip(identities, rows, strict=True)
        ]
        self._file.write("\n".join(lines) + "\n")
        self._file.flush()

    def close(self, run: Run | None = None) -> None:
        """Append what a whole run tells, and close the file."""
        if self._file is None:
            return
        if run is not None:
            for line in closing_lines(run):
                self.line(line)
        self._file.close()
        self._file = None


def closing_lines(run: Run) -> Iterator[dict[str, Any]]:
    """What is known once a run is over."""
    for series in run.series:
        yield {"kind": "total", **key_fields(series.key), **series.total.to_dict()}
    if run.first_nonfinite is not None:
        yield nonfinite_line(run.first_nonfinite)
    for noise in run.noise:
        decibels = noise.decibels if np.isfinite(noise.decibels) else str(noise.decibels)
        yield {"kind": "noise", **asdict(noise), "decibels": decibels}
    for name, reason in run.skipped.items():
        yield {"kind": "skipped", "name": name, "reason": reason}


def nonfinite_line(event: NonFinite) -> dict[str, Any]:
    """The first non-finite tensor as a line."""
    return {
        "kind": "nonfinite",
        **key_fields(event.key),
        **event.place._asdict(),
        "statistics": event.statistics.to_dict(),
        "predecessors": [
            {**key_fields(key), "scale": scale if np.isfinite(scale) else str(scale)}
            for key, scale in event.predecessors
        ],
    }


def write_run(run: Run, path: str | Path) -> None:
    """Write a run that is in memory: points at the precision of the history, and exact totals.

    Raises:
        RecordingError: the file cannot be written.
    """
    journal = Journal(path, run.title, run.every)
    for series in run.series:
        for line in point_lines(series):
            journal.line(line)
    journal.close(run)


def point_lines(series: Series) -> Iterator[dict[str, Any]]:
    """The moments of a series as lines."""
    points = series.points
    fields = key_fields(series.key)
    for index in range(len(points)):
        place = Place(int(points.steps[index]), int(points.microbatches[index]))
        scale, peak = float(points.scale[index]), float(points.peak[index])
        yield {
            "kind": "point",
            **fields,
            **place._asdict(),
            "log2_scale": round(scale, 5) if np.isfinite(scale) else str(scale),
            "log2_peak": round(peak, 5) if np.isfinite(peak) else str(peak),
            "zero_share": round(float(points.zeros[index]), 5),
            "flags": int(points.flags[index]),
        }
