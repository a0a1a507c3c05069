"""`track`: the identity, which writes down in a `Record` what passes through it each way.

A `Recorder` is what every tracker is, from rows on their devices to a run on the host.

The store's three entries are operators, so that compilers and transforms see one node each. They
carry no rule of differentiation: `Track` does. Each is declared to have an ordered effect, so that
a compiler neither drops nor reorders nor repeats it; the rows themselves are found through the
store's handle, out of the compiler's sight, so that no copy of a buffer is ever made to
functionalise the write.
"""

import warnings
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch.autograd.graph import saved_tensors_hooks

from pullback.errors import ArgumentError, RecordingError
from pullback.gradients._check import refuse_export
from pullback.internal._arguments import check_counts, checked
from pullback.internal.torch import (
    FakeTensor,
    current_graph_task_id,
    declare_ordered,
    is_known_to_export,
    run_eagerly,
    run_once,
    saved_tensors_are_hooked,
    whole_batch,
)
from pullback.tensor import Function
from pullback.tracking.measure._dispatch import Backend, check_measurable
from pullback.tracking.measure._layout import Direction
from pullback.tracking.measure._statistics import Statistics
from pullback.tracking.report._diagnosis import Finding, diagnose
from pullback.tracking.report._html import write_html
from pullback.tracking.report._picture import write_png
from pullback.tracking.report._rows import render_table
from pullback.tracking.run._identity import Key, Phase, Place, Sink
from pullback.tracking.run._log import Log, Run
from pullback.tracking.run._recording import RunWriter, write_run
from pullback.tracking.watch._store import Store, find_store

__all__ = [
    "Record",
    "Recorder",
    "Track",
    "begin_operator",
    "follow_operator",
    "in_backward",
    "observe_operator",
    "pass_through",
    "track",
]


@torch.library.custom_op("pullback_tracking::observe", mutates_args=())
def observe_operator(values: torch.Tensor, handle: int, name: str) -> torch.Tensor:
    """Measure a value; the result is its ticket, six integers on the host, zeros for nothing."""
    store = find_store(handle)
    seen = None if store is None else store.observe(values, name, in_backward())
    if seen is None:
        return torch.zeros(6, dtype=torch.int64)
    key, place = seen
    return torch.tensor([1, key.call, *place, key.recomputed, key.phase == "evaluation"])


@torch.library.custom_op("pullback_tracking::follow", mutates_args=())
def follow_operator(  # noqa: PLR0917 - an operator takes its arguments by position
    values: torch.Tensor,
    ticket: torch.Tensor,
    handle: int,
    name: str,
    direction: str,
    order: int,
) -> None:
    """Measure the gradient of a value with a ticket."""
    store = find_store(handle)
    measured, call, step, microbatch, recomputed, evaluation = ticket.tolist()
    if store is not None and measured:
        phase = "evaluation" if evaluation else "training"
        key = Key(name, call, recomputed=bool(recomputed), phase=phase)
        store.follow(values, [(key, Place(step, microbatch))], order, cast("Direction", direction))


@torch.library.custom_op("pullback_tracking::begin", mutates_args=())
def begin_operator(handle: int, root: str, training: bool) -> None:
    """Note that a forward pass of a model starts."""
    store = find_store(handle)
    if store is not None and not in_backward():
        store.begin(root, training)


def in_backward() -> bool:
    """Whether autograd is walking a graph: a forward pass now is a recomputation."""
    return current_graph_task_id() != -1


observe_operator.register_fake(lambda *_: torch.empty(6, dtype=torch.int64))
follow_operator.register_fake(lambda *_: None)
begin_operator.register_fake(lambda *_: None)
_LIBRARY = torch.library.Library("pullback_tracking", "FRAGMENT")  # its rules end with it
for _name, _operator in {"observe": observe_operator, "follow": follow_operator}.items():
    # The batch is one tensor, which the kernel gets as it lies in memory.
    _operator.register_vmap(lambda info, in_dims, *given, of=_operator: (of(*given), None))
    # That of is_grads_batched is another: it has a key of its own.
    _LIBRARY.impl(
        _name, lambda values, *given, of=_operator: of(whole_batch(values), *given), "Batched"
    )
for _operator in (observe_operator, follow_operator, begin_operator):
    declare_ordered(_operator)
run_once(_LIBRARY, observe_operator)


class Track(Function):
    """The identity; its backward and its tangent are the identity too, and written down.

    ``y = x``, ``x' = y'``. The ticket ties a gradient to its call. What has an order of
    differentiation is a gradient or a tangent, and is written down itself.
    """

    _direct = True

    @staticmethod
    def forward(  # noqa: PLR0917 - apply takes arguments by position
        values: torch.Tensor,
        ticket: torch.Tensor,
        handle: int,
        name: str,
        direction: str,
        order: int,
        copy: bool,
    ) -> torch.Tensor:
        if order:
            follow_operator(values.detach(), ticket, handle, name, direction, order)
        return values.clone() if copy else values.view_as(values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, ticket, ctx.handle, ctx.name, _, ctx.order, _ = inputs
        ctx.save_for_backward(ticket)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        return _follow(ctx, cotangents[0], "backward"), *(None,) * 6

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        # Not derived: transposing the backward would write down cotangents that nobody sent.
        return _follow(ctx, tangents[0], "tangent")


def _follow(ctx: Any, values: torch.Tensor, direction: Direction) -> torch.Tensor:
    (ticket,) = ctx.saved_tensors
    return Track.apply(values, ticket, ctx.handle, ctx.name, direction, ctx.order + 1, False)


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
        self, name: str, direction: str, order: int | None, phase: Phase | None = None, **rest: Any
    ) -> Statistics:
        """The total of one tensor, in training if it was seen there and no phase is asked for."""
        totals = self.totals()
        order = int(direction != "forward") if order is None else order
        wanted = Key(name, direction=cast("Direction", direction), order=order, **rest)
        found = [key for key in totals if key[:6] == wanted[:6] and phase in (None, key.phase)]
        if not found:
            near = dict.fromkeys(f"{key} ({key.direction})" for key in totals)
            raise ArgumentError(
                "No such tensor was recorded.",
                given=f"{name!r}, {direction}, call {wanted.call}, order {order}",
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


run_eagerly(Recorder.step, "A step that ends is measured outside of graphs.")


@checked
class Record(Recorder):
    """Statistics of one tensor in the program, kept apart by call, direction, order and step.

    Arguments:
        name: how the tensor is called in every report.
        every: only steps divisible by this are measured; `Record.step` ends a step.
        history: how many moments are kept for drawing; totals are kept of all.
        backend: ``"auto"``, or the kernel to use or refuse: ``"cpu"``, ``"reference"``,
            ``"triton"``.

    Raises:
        ArgumentError: an empty name, or a cadence or history below 1.

    Example:
        >>> import torch
        >>> from pullback.tracking import track
        >>> record = Record("logits")
        >>> _ = track(torch.ones(3), record)
        >>> record.flush()
        >>> record.total("forward").count
        3
    """

    def __init__(
        self, name: str, *, every: int = 1, history: int = 1000, backend: Backend = "auto"
    ) -> None:
        if not name:
            raise ArgumentError("A record needs a name.", given=repr(name), expected="some text")
        super().__init__(name, every, history, backend)
        self._made = partial(Record, name, every=every, history=history, backend=backend)
        self.name = name
        self.store = self._store

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, of a module that holds it for one, has seen nothing.
        return self._made, ()

    def flush(self) -> None:
        """Bring what was measured to the host without ending the step."""
        self._store.flush()

    def total(
        self,
        direction: Direction = "forward",
        *,
        call: int = 0,
        order: int | None = None,
        recomputed: bool = False,
        visit: int = 0,
    ) -> Statistics:
        """The merged statistics of one tensor.

        Arguments:
            direction: ``"forward"``, ``"backward"`` or ``"tangent"``.
            call: the number of the use within a step.
            order: of differentiation; by default 0 for ``"forward"`` and 1 otherwise.
            recomputed: the one seen while a checkpoint was computed again.
            visit: which of several passes over the same graph.

        Raises:
            ArgumentError: no such tensor was measured; the message lists those that were.
        """
        return self._find(
            self.name, direction, order, call=call, recomputed=recomputed, visit=visit
        )


@checked
def track(values: torch.Tensor, record: Record) -> torch.Tensor:
    """Pass a tensor through unchanged and record statistics of it and of its gradient.

    Arguments:
        values: any shape and dtype; only a floating or complex tensor has a gradient to record.
        record: where the statistics go. It may be used any number of times in a step: each use
            is a call of its own.

    Returns:
        A view of ``values``. Change it in place and torch refuses; use ``track`` on a clone then.

    Raises:
        ArgumentTypeError: not a tensor, or not a record.
        UnsupportedError: a sparse, nested or quantised tensor, or torch.export with gradients.

    Example:
        >>> record = Record("hidden")
        >>> x = torch.tensor([1.0, -3.0], requires_grad=True)
        >>> (track(x, record) * 2).sum().backward()
        >>> record.step()
        >>> record.total("forward").mean_abs, record.total("backward").mean
        (2.0, 2.0)
    """
    refuse_export("track", is_known_to_export)
    # Where nothing is computed yet, the operator checks when it runs.
    if not torch.compiler.is_compiling() and not isinstance(values, FakeTensor):
        check_measurable(values)
    return pass_through(values, record.store.handle, record.name)


def pass_through(
    values: torch.Tensor, handle: int, name: str, *, copy: bool = False
) -> torch.Tensor:
    """Apply `Track` under a name; a copy, instead of a view, may then be changed in place."""
    ticket = observe_operator(values.detach(), handle, name)
    hooked = not torch.compiler.is_compiling() and saved_tensors_are_hooked()
    # Checkpointing would put the ticket of what it computes again into the graph of the first pass.
    with saved_tensors_hooks(_itself, _itself) if hooked else nullcontext():
        return Track.apply(values, ticket, handle, name, "forward", 0, copy)


def _itself(ticket: torch.Tensor) -> torch.Tensor:
    return ticket
