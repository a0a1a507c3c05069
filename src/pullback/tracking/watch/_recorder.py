"""`Recorder`: what every tracker is, from rows on their devices to a run on the host."""

from collections.abc import Sequence
from pathlib import Path

from pullback.errors import ArgumentError
from pullback.tracking.formats import QuantisationNoise
from pullback.tracking.measure._dispatch import Backend
from pullback.tracking.measure._statistics import Statistics
from pullback.tracking.report._reported import Reported
from pullback.tracking.run._identity import Key
from pullback.tracking.run._journal import Journal
from pullback.tracking.run._ledger import Ledger
from pullback.tracking.run._run import Run
from pullback.tracking.watch._store import STATISTICS, Store

__all__ = ["Recorder", "check_cadence"]


class Recorder(Reported):
    """Measures into a store, and merges what arrives on the host into a ledger.

    Arguments:
        title: what is recorded.
        every: only steps divisible by this are measured.
        history: how many moments are kept for drawing.
        backend: the kernel to use, as `Store` takes it.
        statistics: what to measure, as `Store` takes it.

    Raises:
        ArgumentError: a cadence or history below 1, or unknown statistics.
    """

    def __init__(
        self,
        title: str,
        every: int,
        history: int,
        *,
        backend: Backend = "auto",
        statistics: Sequence[str] = STATISTICS,
    ) -> None:
        check_cadence(every)
        self._title = title
        self._ledger = Ledger(history)
        self._store = Store(self._ledger.absorb, every, backend, statistics)
        self._journal: Journal | None = None

    def step(self) -> None:
        """End a step, in a loop without an optimizer, and bring what it measured to the host."""
        self._store.touched = True
        self._store.advance()

    def totals(self) -> dict[Key, Statistics]:
        """All that was measured of each tensor, merged over the steps."""
        self._store.flush()
        return self._ledger.totals()

    @property
    def skipped(self) -> dict[str, str]:
        """Outputs that could not be measured, with the reason."""
        return {}

    def run(self) -> Run:
        """All that was recorded, as `diff` and the reports read it."""
        self._store.flush()
        return Run(
            self._ledger.series(),
            self._ledger.first_nonfinite,
            self._store.every,
            self._ledger.history.dropped,
            self.skipped,
            title=self._title,
            noise=self._noise(),
        )

    def _noise(self) -> tuple[QuantisationNoise, ...]:
        """What simulated formats lost."""
        return ()

    def _write_to(self, path: str | Path) -> Journal:
        """Write each step, as soon as it is flushed, as a line of a file."""
        self._journal = Journal(path, self._title, self._store.every)
        self._ledger.sinks.append(self._journal.absorb)
        return self._journal

    def _finish(self) -> None:
        """Measure nothing any more, and append to the file what a whole run tells."""
        self._store.close()
        if self._journal is not None:
            self._journal.close(self.run())


def check_cadence(every: int) -> None:
    """Refuse a cadence that is not a whole number of steps, 1 or more."""
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ArgumentError(
            "The cadence is a whole number of steps.",
            given=f"every={every!r}",
            expected="1 (each step) or more",
        )
