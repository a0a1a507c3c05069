"""`Tracker`: watch every module of a live model while it trains, without disturbing it."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import nn

from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.tracking._attachment import Attachment
from pullback.tracking._diagnosis import Finding, diagnose
from pullback.tracking._dispatch import Backend
from pullback.tracking._html import write_html
from pullback.tracking._identity import Key, Phase
from pullback.tracking._journal import Journal, write_run
from pullback.tracking._ledger import Ledger
from pullback.tracking._observation import Observation
from pullback.tracking._picture import write_png
from pullback.tracking._record import check_cadence
from pullback.tracking._reduction import reduce_totals
from pullback.tracking._run import Run
from pullback.tracking._statistics import Statistics
from pullback.tracking._steps import StepWatch
from pullback.tracking._store import Store
from pullback.tracking._table import render_table
from pullback.tracking.formats import FormatAdvice, advise_from_exponents

__all__ = ["Tracker"]

Names = str | Sequence[str] | Callable[[str, nn.Module], bool] | None


class Tracker:
    """Statistics of what each module returns, and of its gradient, while a model trains.

    Nothing changes for the model: outputs and gradients keep their bits, no tensor is copied,
    replaced or made to require a gradient, nothing is read from a device during a step, and
    after the ``with`` block no hook remains. A step ends with ``optimizer.step()`` (or with a
    scaler's ``update()``), and forward passes before that are its microbatches. Floating and
    complex tensors are measured, however deep in an output; indices and masks are passed over.

    Arguments:
        model: any module, compiled, parallel or plain. A torch.compile made before tracking
            compiles once more, and afterwards goes back to the code it had.
        every: measure only each ``every``-th step, beginning with the first.
        statistics: what to measure: ``"moments"`` (mean, variance, mean |x|) and
            ``"exponents"`` (the histogram of log2 |x|). Extremes and counts always are.
        names: which modules: a pattern such as ``"encoder.*"`` or several, or a function of name
            and module that says so; by default all of them. The model itself is ``"(root)"``.
        history: how many moments are kept in memory for drawing, at four bytes a tensor; totals
            are kept of everything.
        scaler: the `torch.amp.GradScaler` of the training loop, if the statistics of gradients
            shall be without its scale. It also ends steps that the scaler skips.
        jsonl: a file that receives each step in full as soon as it is flushed.
        backend: ``"auto"``, or the kernel to use or refuse; see `Tracker.backends_used`.

    Raises:
        ArgumentTypeError: the model is not a module.
        ArgumentError: a cadence below 1, unknown statistics, or names that match nothing.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh())
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with Tracker(model) as tracker:
        ...     for _ in range(3):
        ...         optimizer.zero_grad()
        ...         model(torch.randn(5, 4)).square().mean().backward()
        ...         optimizer.step()
        >>> tracker.total("0").count, tracker.total("0", "backward").count
        (120, 120)
    """

    def __init__(
        self,
        model: nn.Module,
        every: int = 1,
        *,
        statistics: Sequence[str] = ("moments", "exponents"),
        names: Names = None,
        history: int = 1000,
        scaler: Any = None,
        jsonl: str | Path | None = None,
        backend: Backend = "auto",
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ArgumentTypeError(
                "A tracker watches a module.",
                given=type(model).__name__,
                expected="a torch.nn.Module",
                mend="For a tensor in your own code use track(tensor, record).",
            )
        check_cadence(every)
        self._model: nn.Module | None = model
        self._names = _check_names(names)
        self._ledger = Ledger(history)
        self._store = Store(self._ledger.absorb, every, backend, statistics)
        self._attachment = Attachment(self._store)
        self._watch = StepWatch(model.parameters, self._store.advance, scaler)
        self._store.loss_scale = self._watch.loss_scale
        self._title = type(getattr(model, "_orig_mod", model)).__name__
        self._jsonl = jsonl
        self._journal: Journal | None = None
        self._reduced: dict[Key, Statistics] | None = None

    def __enter__(self) -> "Tracker":
        if self._model is None:
            raise UnsupportedError(
                "A tracker is used once.",
                expected="a new Tracker for each `with` block",
                mend="Make another Tracker(model).",
            )
        with ExitStack() as undo:
            if self._jsonl is not None:
                self._journal = Journal(self._jsonl, self._title, self._store.every)
                self._ledger.sinks.append(self._journal.absorb)
                undo.callback(self._journal.close)
            model = getattr(self._model, "_orig_mod", self._model)
            undo.callback(self._attachment.detach)
            if not self._attachment.attach(model, self._chosen) and self._names is not None:
                raise ArgumentError(
                    "No module has such a name.",
                    given=f"names={self._names!r}",
                    expected="patterns that match a name in model.named_modules()",
                )
            undo.callback(self._watch.stop)
            self._watch.start()
            undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._attachment.detach()
        self._watch.stop()
        self._store.close()
        self._model = None
        if self._journal is not None:
            self._journal.close(self.run())
            self._journal = None

    def _chosen(self, name: str, module: nn.Module) -> bool:
        if self._names is None:
            return True
        if callable(self._names):
            return self._names(name, module)
        return any(fnmatchcase(name, pattern) for pattern in self._names)

    def step(self) -> None:
        """End a step, in a loop without an optimizer."""
        self._store.touched = True
        self._store.advance()

    @property
    def steps(self) -> int:
        """How many steps have ended."""
        return self._store.step

    @property
    def backends_used(self) -> dict[str, Backend]:
        """For each type of device, the kernel that measured its tensors."""
        return dict(self._store.backends_used)

    @property
    def skipped(self) -> dict[str, str]:
        """Outputs that could not be measured, with the reason."""
        return dict(self._attachment.skipped)

    @property
    def history_bytes(self) -> int:
        """How many bytes the ring of moments holds."""
        return self._ledger.history.nbytes

    def latest(self) -> list[Observation]:
        """What the last flushed step measured, in the order of execution, in full."""
        identities, rows = self._ledger.latest
        return [
            Observation(key, place, Statistics.from_row(row))
            for (key, place), row in zip(identities, rows, strict=True)
        ]

    def totals(self) -> dict[Key, Statistics]:
        """All that was measured of each tensor, merged over steps, and over ranks once reduced."""
        if self._reduced is not None:
            return dict(self._reduced)
        self._store.flush()
        return self._ledger.totals()

    def total(
        self,
        name: str,
        direction: str = "forward",
        *,
        call: int = 0,
        order: int | None = None,
        phase: Phase | None = None,
    ) -> Statistics:
        """The merged statistics of one tensor.

        Arguments:
            name: of the module, with the path into its output if that is nested.
            direction: ``"forward"`` or ``"backward"``.
            call: which of several calls within one pass.
            order: of differentiation; by default 1 for ``"backward"``.
            phase: ``"training"`` or ``"evaluation"``; by default the first, or the second if the
                tensor was seen in no training pass.

        Raises:
            ArgumentError: no such tensor was measured.
        """
        if order is None:
            order = 1 if direction == "backward" else 0
        totals = self.totals()
        phases: tuple[Phase, ...] = ("training", "evaluation") if phase is None else (phase,)
        keys = [Key(name, call, direction, order, phase=each) for each in phases]  # pyrefly: ignore[bad-argument-type]
        found = next((totals[key] for key in keys if key in totals), None)
        if found is None:
            near = sorted({key.name for key in totals})
            raise ArgumentError(
                "No such tensor was measured.",
                given=f"{name!r}, {direction}, call {call}, order {order}",
                expected=", ".join(near[:20]) or "a step that ran before",
            )
        return found

    def advise(self, name: str, direction: str = "forward") -> dict[str, FormatAdvice]:
        """What each number format would lose of a tensor, and the scale that loses least.

        Arguments:
            name: of the module, as `total` takes it.
            direction: ``"forward"`` or ``"backward"``.

        Returns:
            The advice by the format's name, bounds taken from the histogram of exponents.

        Raises:
            ArgumentError: no such tensor was measured.
            UnsupportedError: it was measured without exponents.
        """
        total = self.total(name, direction)
        if not self._store.exponents:
            raise UnsupportedError(
                "Advice on formats needs the histogram of exponents.",
                given="statistics without 'exponents'",
                mend="Track with statistics=('moments', 'exponents').",
            )
        known = bool(total.exponents)
        return advise_from_exponents(
            total.exponents,
            total.zeros,
            largest=total.max_abs if known else None,
            smallest=total.min_abs if known else None,
        )

    def reduce(self, group: Any = None) -> dict[Key, Statistics]:
        """Merge the totals of all ranks; each rank must call this, and each gets the result.

        Arguments:
            group: a `torch.distributed` process group; by default the whole world.

        Raises:
            UnsupportedError: torch.distributed is not initialised.
            ProgramError: another rank did not answer; what this rank measured stays as it was.
        """
        self._store.flush()
        self._reduced = reduce_totals(self._ledger.totals(), group)
        return dict(self._reduced)

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
        )

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
        """Draw the same as a picture, for which the extra ``plot`` is needed.

        Raises:
            MissingExtraError: matplotlib is not installed.
            RecordingError: the file cannot be written.
        """
        write_png(self.run(), path)


def _check_names(names: Names) -> Any:
    if names is None or callable(names):
        return names
    patterns = (names,) if isinstance(names, str) else tuple(names)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise ArgumentTypeError(
            "Names are patterns.",
            given=f"names={names!r}",
            expected="text, several texts, or a function of name and module",
        )
    return patterns
