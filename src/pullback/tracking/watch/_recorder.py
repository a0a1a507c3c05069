"""`Recorder`: what every tracker is, from rows on their devices to a run on the host."""

import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pullback.errors import ArgumentError, RecordingError
from pullback.internal._arguments import check_counts, checked
from pullback.tracking.measure._dispatch import Backend
from pullback.tracking.measure._statistics import Statistics
from pullback.tracking.report._diagnosis import Finding, diagnose
from pullback.tracking.report._html import write_html
from pullback.tracking.report._picture import write_png
from pullback.tracking.report._rows import render_table
from pullback.tracking.run._identity import Key, Phase, Sink
from pullback.tracking.run._log import Log, Run
from pullback.tracking.run._recording import RunWriter, write_run
from pullback.tracking.watch._store import Store

__all__ = ["Recorder"]


class Recorder:
    """Measures into a store, keeps what arrives on the host in a history, and reports it."""

    def __init__(self, title: str, every: int, history: int, backend: Backend = "auto") -> None:
        check_counts(every=every, history=history)
        self._title = title
        self._log = Log(int(history))
        self._store = Store(self._log.absorb, int(every), backend)

    def step(self) -> None:
        """End a step, in a loop without an optimizer, and bring what it measured to the host.

        Where an optimizer has just ended it there is nothing to end, and nothing is counted.
        """
        store = self._store
        ended, store.ended = store.ended and not store.touched, False
        if not ended:
            store.touched = True
            store.advance()
            store.ended = False

    def totals(self) -> dict[Key, Statistics]:
        """All that was measured of each tensor, merged over the steps."""
        self._store.flush()
        return self._log.totals()

    def _find(
        self,
        name: str,
        direction: str,
        call: int,
        order: int | None,
        *,
        recomputed: bool = False,
        visit: int = 0,
        phase: Phase | None = None,
    ) -> Statistics:
        """The total of one tensor, in training if it was seen there and no phase is asked for."""
        totals = self.totals()
        order = int(direction != "forward") if order is None else order
        wanted = (name, call, direction, order, recomputed, visit)
        found = [key for key in totals if key[:6] == wanted and phase in (None, key.phase)]
        if not found:
            near = dict.fromkeys(f"{key} ({key.direction})" for key in totals)
            raise ArgumentError(
                "No such tensor was recorded.",
                given=f"{name!r}, {direction}, call {call}, order {order}",
                expected=", ".join([*near][:20]) or "a step that ran before",
            )
        return totals[min(found, key=lambda key: key.phase != "training")]

    @property
    def skipped(self) -> dict[str, str]:
        """What could not be measured, with the reason."""
        return dict(self._store.skipped)

    def run(self) -> Run:
        """All that was recorded, as `diff` and the reports read it."""
        self._store.flush()
        return self._log.run(
            every=self._store.every, skipped=self.skipped, title=self._title, **self._told()
        )

    def diagnose(self) -> list[Finding]:
        """What looks wrong, worst first."""
        return diagnose(self.run())

    def table(self) -> str:
        """Every tensor on a line, with its scales forward and backward."""
        return render_table(self.run())

    @checked
    def to_html(self, path: str | Path) -> None:
        """Write one file to be looked at in a browser, offline.

        Raises:
            RecordingError: the file cannot be written.
        """
        write_html(self.run(), path)

    @checked
    def to_jsonl(self, path: str | Path) -> None:
        """Write the moments that the history holds, and the exact totals, as JSON lines.

        Moments are rounded as the history rounds them: the scale within 0.2 %, and within 8 %
        where float32 has no such number. Pass ``jsonl=`` to have each step written in full while
        it happens.

        Raises:
            RecordingError: the file cannot be written.
        """
        write_run(self.run(), path)

    @checked
    def to_png(self, path: str | Path) -> None:
        """Draw the scales over time as a picture, for which the extra ``plot`` is needed.

        Raises:
            MissingExtraError: matplotlib is not installed.
            RecordingError: the file cannot be written.
        """
        write_png(self.run(), path)

    def _told(self) -> dict[str, Any]:
        """What else a run tells."""
        return {}

    def _write_to(self, path: str | Path) -> RunWriter:
        """Write each step, as soon as it is flushed, as a line of a file."""
        writer = RunWriter(path, self._title, self._store.every)
        self._log.sinks.append(writer)
        return writer

    def _finish(self) -> None:
        """Measure nothing any more, and append to files what a whole run tells."""
        self._store.close()
        with ExitStack() as ends:  # each of them, whatever another one raises
            for sink in self._log.sinks:
                ends.callback(self._close, sink)

    def _close(self, sink: Sink) -> None:
        if not isinstance(sink, RunWriter):
            sink.close()
            return
        try:
            sink.finish(self.run())
        except RecordingError as error:  # a full disk does not end somebody's training
            warnings.warn(f"The end of the run is not written: {error}", stacklevel=2)
