"""`Reported`: the reports of whatever gives a run."""

from abc import ABC, abstractmethod
from pathlib import Path

from pullback.tracking.report._diagnosis import Finding, diagnose
from pullback.tracking.report._html import write_html
from pullback.tracking.report._picture import write_png
from pullback.tracking.report._table import render_table
from pullback.tracking.run._journal import write_run
from pullback.tracking.run._run import Run

__all__ = ["Reported"]


class Reported(ABC):
    """What has a run, and can be read as a table, a page, a picture or lines."""

    @abstractmethod
    def run(self) -> Run:
        """All that was recorded, as `diff` and the reports read it."""

    def diagnose(self) -> list[Finding]:
        """What looks wrong, worst first."""
        return diagnose(self.run())

    def table(self) -> str:
        """Every tensor on a line, with its scales forward and backward."""
        return render_table(self.run())

    def to_html(self, path: str | Path) -> None:
        """Write one file to be looked at in a browser, offline.

        Raises:
            RecordingError: the file cannot be written.
        """
        write_html(self.run(), path)

    def to_jsonl(self, path: str | Path) -> None:
        """Write the moments that the history holds, and the exact totals, as JSON lines.

        Moments are rounded as the history rounds them (scale within 0.2 %); pass ``jsonl=`` to
        have each step written in full while it happens.

        Raises:
            RecordingError: the file cannot be written.
        """
        write_run(self.run(), path)

    def to_png(self, path: str | Path) -> None:
        """Draw the scales over time as a picture, for which the extra ``plot`` is needed.

        Raises:
            MissingExtraError: matplotlib is not installed.
            RecordingError: the file cannot be written.
        """
        write_png(self.run(), path)
