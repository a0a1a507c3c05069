"""`Tracker`: watch every module of a live model while it trains, without disturbing it."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from torch import nn

from pullback.errors import ArgumentError, UnsupportedError
from pullback.internal._arguments import checked
from pullback.internal.torch import uncompiled
from pullback.tracking._hang import names_of
from pullback.tracking.formats import (
    BlockErrors,
    FormatAdvice,
    ScaledFormat,
    advise_from_exponents,
)
from pullback.tracking.formats._noise import choose_blocks
from pullback.tracking.measure._dispatch import Backend
from pullback.tracking.measure._layout import Direction
from pullback.tracking.measure._statistics import Statistics
from pullback.tracking.run._identity import ROOT, Key, Observation, Phase, Place, Sink
from pullback.tracking.run._log import reduce_totals
from pullback.tracking.watch._hooks import Attachment, FunctionWatch, Names, choose_by, unmatched
from pullback.tracking.watch._measures import (
    BlockAdvice,
    Measure,
    Measures,
    advise_blocks,
    block_measures,
    errors_of,
)
from pullback.tracking.watch._optimizers import ParameterWatch, Part, StepWatch, check_parts
from pullback.tracking.watch._track import Recorder

__all__ = ["Tracker"]


@checked
class Tracker(Recorder):
    """Statistics of what each module returns, and of its gradient, while a model trains.

    Nothing changes for a model: outputs and gradients keep their bits (a `TransformerEncoderLayer`
    in evaluation, which torch fuses where no hook is, but for rounding), no tensor is copied,
    replaced or made to require a gradient, nothing is read from a device during a step, and after
    the ``with`` block no hook remains. A step ends with ``optimizer.step()`` (or with a scaler's
    ``update()``), and forward passes before that are its microbatches. Floating and complex tensors
    are measured, however deep in an output; indices and masks are passed over.

    Arguments:
        model: any module, compiled, parallel or plain. A torch.compile made before tracking
            compiles once more, and afterwards goes back to the code it had.
        every: measure only each ``every``-th step, beginning with the first.
        names: which modules: a pattern such as ``"encoder.*"`` or several, or a function of name
            and module that says so; by default all of them. The model itself is ``"(root)"``. One
            pattern of several that matches nothing is among `skipped`.
        history: how many moments are kept in memory for drawing, at four bytes a tensor; totals
            are kept of everything.
        scaler: the `torch.amp.GradScaler` of the training loop, if the statistics of gradients
            shall be without its scale. It also ends steps that the scaler skips.
        jsonl: a file that receives each step in full as soon as it is flushed.
        backend: ``"auto"``, or the kernel to use or refuse; see `Tracker.backends_used`.
        parameters: whether to measure parameters where an optimizer steps: ``True``, or some of
            ``"value"``, ``"gradient"``, ``"state"`` (of the optimizer) and ``"update"``, under the
            names ``"0.weight"``, ``"0.weight[exp_avg]"`` and ``"0.weight[update]"``.
        functions: patterns of functions to measure inside of modules, such as ``"softmax"``,
            ``"scaled_dot_product_attention"`` or ``"add"``, under ``"encoder.0/softmax"``.
            One of which nothing was called is among `skipped`.
        measures: statistics of your own, by name: functions of a tensor without a graph that return
            a small real tensor on its device, such as `channel_maximum`; see `Tracker.measured`.
        sinks: what receives each step as it is flushed; see `pullback.tracking.sinks`.
        blocks: a format with blocks, ``"mxfp8"``, ``"mxfp4"``, ``"nvfp4"`` or a `ScaledFormat`, or
            a size of blocks for MXFP8's elements, to measure what it would lose: of each tensor,
            and, in eager code, of the weight and the input of each layer with a matrix. Blocks
            lie along the last dimension. See `Tracker.block_errors` and `Tracker.advise_blocks`.

    Raises:
        ArgumentTypeError: the model is not a module, or another argument not what is said here.
        ArgumentError: a cadence or history below 1, or names that match nothing.

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
        names: Names = None,
        history: int = 1000,
        scaler: Any = None,
        jsonl: str | Path | None = None,
        backend: Backend = "auto",
        parameters: bool | Part | Iterable[Part] = False,
        functions: str | Iterable[str] = (),
        measures: Mapping[str, Measure] | None = None,
        sinks: Sequence[Sink] = (),
        blocks: str | int | ScaledFormat | None = None,
    ) -> None:
        model = uncompiled(model)
        title = type(model).__name__
        super().__init__(title, every, history, backend)
        self._model: nn.Module | None = model
        self._names = names
        self._undo: ExitStack | None = None  # takes off all that watches, within the block
        self._chosen = choose_by(names)
        self._blocks = None if blocks is None else choose_blocks(blocks)
        self._all_names = {names[0] or ROOT: names for names in names_of(model).values()}
        self._store.measures = Measures(
            measures or {}, block_measures(self._blocks) if self._blocks else {}
        )
        self._attachment = Attachment(self._store)
        self._parameters = ParameterWatch(
            self._store, model, check_parts(parameters), self._holds_chosen
        )
        patterns = (functions,) if isinstance(functions, str) else tuple(functions)
        self._functions = FunctionWatch(self._attachment.sightings, patterns) if patterns else None
        self._log.sinks += sinks
        self._watch = StepWatch(
            model.parameters,
            self._store.advance,
            scaler,
            began=self._parameters.keep,
            stepped=self._parameters.measure,
        )
        self._store.loss_scale = self._watch.loss_scale
        self._jsonl = jsonl
        self._reduced: tuple[int, dict[Key, Statistics]] | None = None

    def __enter__(self) -> "Tracker":
        if self._model is None or self._undo is not None:
            raise UnsupportedError(
                "A tracker is used once.",
                expected="a new Tracker for each `with` block",
                mend="Make another Tracker(model).",
            )
        with ExitStack() as undo:
            undo.callback(self._attachment.detach)
            if not self._attachment.attach(self._model, self._chosen) and self._names is not None:
                raise ArgumentError(
                    "No module has such a name.",
                    given=f"names={self._names!r}",
                    expected="patterns that match a name in model.named_modules()",
                )
            if self._functions is not None:
                undo.callback(self._functions.detach)
                self._functions.attach(self._model)
            undo.callback(self._parameters.stop)
            undo.callback(self._watch.stop)
            self._watch.start()
            if self._jsonl is not None:  # the last: what is refused before overwrites nothing
                self._write_to(self._jsonl)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._undo is not None:
            self._undo.close()
            in_vain = unmatched(self._names, (*self._all_names, *self._store.skipped))
            self._store.skipped.update(dict.fromkeys(in_vain, "no module is watched by that name"))
        self._model = None
        self._finish()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Tracker":
        return self  # it is of one model: a copy of what holds it is not watched

    def __reduce__(self) -> Any:
        raise UnsupportedError(
            "A tracker is not pickled.", mend="Pickle tracker.run(): all that was recorded."
        )

    def _holds_chosen(self, name: str) -> bool:
        """Whether a parameter's module was chosen."""
        model, owner = self._model, name.rpartition(".")[0]
        return model is not None and self._chosen(owner or ROOT, model.get_submodule(owner))

    @property
    def steps(self) -> int:
        """How many steps have ended."""
        return self._store.step

    @property
    def backends_used(self) -> dict[str, Backend]:
        """For each type of device, the kernel that measured its tensors."""
        return dict(self._store.backends_used)

    @property
    def history_bytes(self) -> int:
        """How many bytes the ring of moments holds."""
        return self._log.nbytes

    def latest(self) -> list[Observation]:
        """What was measured of the last step, in the order of execution, in full.

        Of a step with more than 8,192 tensors at all of its moments, it is the last ones.
        """
        self._store.flush()
        return self._log.latest()

    def totals(self) -> dict[Key, Statistics]:
        """All that was measured of each tensor, merged over steps, and over ranks once reduced.

        What is measured after `reduce` needs another one: until then totals are of this rank
        alone again, with a warning.
        """
        self._store.flush()
        if self._reduced is None:
            return self._log.totals()
        moments, reduced = self._reduced
        if moments == self._log.moments:
            return dict(reduced)
        self._reduced = None
        warnings.warn(
            "More was measured since reduce(): totals are of this rank alone until every rank "
            "calls it again.",
            stacklevel=2,
        )
        return self._log.totals()

    def total(
        self,
        name: str,
        direction: str = "forward",
        *,
        call: int = 0,
        order: int | None = None,
        recomputed: bool = False,
        visit: int = 0,
        phase: Phase | None = None,
    ) -> Statistics:
        """The merged statistics of one tensor.

        Arguments:
            name: of the module, with the path into its output if that is nested.
            direction: ``"forward"`` or ``"backward"``.
            call: which of several calls within one pass.
            order: of differentiation; by default 1 for ``"backward"``.
            recomputed: the one seen while a checkpoint was computed again.
            visit: which of several passes over the same graph.
            phase: ``"training"`` or ``"evaluation"``; by default the first, or the second if the
                tensor was seen in no training pass.

        Raises:
            ArgumentError: no such tensor was measured.
        """
        return self._find(
            name, direction, order, phase, call=call, recomputed=recomputed, visit=visit
        )

    def measured(
        self, name: str, statistic: str, direction: Direction = "forward", *, call: int = 0
    ) -> dict[Place, np.ndarray]:
        """What a statistic of your own gave, step by step, the last ``history`` ones.

        Those of training, or of evaluation where the tensor was seen in no training pass; of what
        checkpointing computed again, where it was seen there alone.

        Arguments:
            name: of the module, as `total` takes it.
            statistic: its name in ``measures``.
            direction: ``"forward"``, ``"backward"`` or ``"tangent"``.
            call: which of several calls within one pass.

        Raises:
            ArgumentError: nothing of the kind was measured.
        """
        self._store.flush()
        wanted = (name, call, direction, int(direction != "forward"))
        found = {
            key: {place: values[statistic] for place, values in moments if statistic in values}
            for key, moments in self._log.measured.items()
            if key[:4] == wanted and any(statistic in values for _, values in moments)
        }
        if not found:
            raise ArgumentError(
                "No such statistic was measured.",
                given=f"{statistic!r} of {name!r}, {direction}",
                expected=f"one of {list(self._store.measures.functions)} of a tensor that was seen",
            )
        first = min(found, key=lambda key: (key.recomputed, key.visit, key.phase != "training"))
        return found[first]

    def update_ratios(self) -> dict[str, float]:
        """How much a step changes each parameter: the scale of its updates over its own.

        Both are root mean squares over all steps that were measured, the parameter's own of what it
        is after each of them. A ratio near 1e-3 is usual; far below, a parameter stands still, far
        above, it jumps.

        Raises:
            UnsupportedError: values or updates of parameters were not measured.
        """
        totals = self.totals()
        found = {
            key.name: totals[update].scale / values.scale
            for key, values in totals.items()
            if (update := key._replace(name=f"{key.name}[update]", source="update")) in totals
            and values.scale
        }
        if not found:
            raise UnsupportedError(
                "No updates of parameters were measured.",
                mend="Tracker(model, parameters=True), and a step of an optimizer.",
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
        """
        total = self.total(name, direction)
        known = bool(total.exponents)
        return advise_from_exponents(
            total.exponents,
            total.zeros,
            largest=total.max_abs if known else None,
            smallest=total.min_abs if known else None,
        )

    def block_errors(self) -> dict[Key, BlockErrors]:
        """What a format with blocks would lose of each tensor, over the moments still held.

        Beside what modules return and its gradients, the weight of a layer that multiplies is
        there as ``"0.weight"`` and its input as ``"0[input]"``.

        Raises:
            UnsupportedError: the tracker was made without ``blocks``.
        """
        self._chosen_blocks()
        self._store.flush()
        return errors_of(self._log.measured)

    def advise_blocks(self) -> BlockAdvice:
        """Which factors of products to keep in higher precision; ``str()`` of it is one sentence.

        Raises:
            UnsupportedError: the tracker was made without ``blocks``.
        """
        return advise_blocks(self.block_errors(), self._chosen_blocks(), self._all_names)

    def _chosen_blocks(self) -> ScaledFormat:
        if self._blocks is None:
            raise UnsupportedError(
                "What blocks would lose was not measured.", mend='Tracker(model, blocks="mxfp8")'
            )
        return self._blocks

    def reduce(self, group: Any = None) -> dict[Key, Statistics]:
        """Merge the totals of all ranks; each rank must call this, and each gets the result.

        From then on `totals`, and what is computed from them, are of all ranks. Reports and `run`
        show what this rank measured.

        Arguments:
            group: a `torch.distributed` process group; by default the whole world.

        Raises:
            UnsupportedError: torch.distributed is not initialised.
            ProgramError: another rank did not answer; what this rank measured stays as it was.
        """
        self._store.flush()
        merged = reduce_totals(self._log.totals(), group)
        self._reduced = self._log.moments, merged
        return dict(merged)

    def _told(self) -> dict[str, Any]:
        noise = self._attachment.noise()
        if self._blocks is None:
            return {"noise": noise}
        advice = self.advise_blocks()
        return {"noise": (*noise, *advice.noise()), "advice": str(advice)}
