"""Judge a Function on several ranks: the clause `distributed`.

The order is that of causes: does a run end on every rank, does it write what it was handed, does it
wait for what it has begun, is it the derivative, and does it stay so in other layouts, where fewer
gradients are needed, and with other shards.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pullback.conformance.clauses.distributed import distributed
from pullback.conformance.comparison._values import broadcast, strided, transposed
from pullback.conformance.evidence._derivative import judge, try_derivative
from pullback.conformance.evidence._screen import Run
from pullback.conformance.evidence._steps import motions
from pullback.conformance.inputs._arguments import Arguments
from pullback.conformance.inputs._subject import Subject
from pullback.conformance.probing._probe import Probe, Tensors
from pullback.conformance.probing._resize import resizings
from pullback.conformance.process._guard import environment, guarded
from pullback.conformance.ranks._ranks import Failed, Group, Ranks, refuse_here, refuse_misfit
from pullback.conformance.ranks._together import LOSSES, AllRanks, Place, said
from pullback.conformance.script._repro import write_repro
from pullback.errors import ArgumentError
from pullback.report import Finding, Report, Verdict

__all__ = ["check_on_ranks"]

_TRIED = 0.6  # seconds for shards that it may not be made for
_LATE, _LINGER = 0.03, 0.02  # seconds
_LARGEST, _ENTRIES = 64, 2**12
_CLOSE = 1e-2
_HINT = (
    "Give each collective of forward its adjoint in backward, over the same group: of all_reduce "
    "all_reduce, of all_gather reduce_scatter, of broadcast a reduction to its source. "
    "Where all ranks compute the one loss, or hold copies of an input, say so: "
    "ranks=Ranks(2, loss='replicated')."
)


def check_on_ranks(  # noqa: PLR0917 - what `check` was given
    subject: Subject,
    arguments: Arguments,
    ranks: int | Ranks,
    asked: Sequence[str],
    seed: int,
    timeout: float | None,
    on_finding: Callable[[Finding], object] | None = None,
) -> Report:
    """Check the clause `distributed`, with the options of `check`.

    The timeout is that of one pass on all ranks, in seconds of work, or of sleep.

    Raises:
        ArgumentError: other clauses were asked for, or no ranks can be started here.
    """
    if set(asked) - {distributed.id}:
        raise ArgumentError(
            "On several ranks the clause distributed alone is checked.",
            given=", ".join(asked),
            expected='ranks=2, or ranks=2 with clauses="distributed"',
            mend="Check the other clauses in a call of their own, without ranks.",
        )
    ranks = ranks if isinstance(ranks, Ranks) else Ranks(ranks)
    if ranks.inputs is not None and arguments.args:
        raise ArgumentError(
            "The inputs of the ranks are given twice.",
            given=f"{len(arguments.args)} positional argument(s), and Ranks(inputs=...)",
            mend="Leave the positional arguments out.",
        )
    if ranks.inputs is None:
        refuse_misfit(subject, arguments)
    refuse_here()
    started = time.perf_counter()
    group = Group(subject, arguments, ranks, seed)
    try:
        with guarded():
            judge = _Judge(group, math.inf if timeout is None else timeout)
            finding = judge.finding()
    finally:
        group.close()
    if finding.verdict not in (Verdict.HOLDS, Verdict.SKIPPED):
        finding = replace(finding, why=distributed.why, hint=finding.hint or distributed.mend)
    if finding.verdict.is_bad:
        finding = replace(finding, repro=_repro(group))
    if on_finding is not None:
        on_finding(finding)
    return Report(
        subject.name, judge.intent, subject.gradient is None, (finding,), seed,
        time.perf_counter() - started, environment(),
    )  # fmt: skip


def _repro(group: Group) -> str:
    ranks, gradient = group.ranks, group.subject.gradient
    if ranks.inputs is not None:
        return ""
    loss = f", loss={ranks.loss!r}" if ranks.loss else ""
    shown = [
        "import pullback",
        "from pullback.conformance import Ranks",
        f"print(pullback.check(F, *args, ranks=Ranks({ranks.count}{loss}), "
        f"gradient={gradient!r}, seed={group.seed}))",
    ]
    return write_repro(group.subject, group.arguments, (), group.seed, shown)


@dataclass(frozen=True)
class _Way:
    """Another way to run it, which gives the same numbers: where, what else is said, a mend."""

    where: str
    expected: Run
    how: dict[str, Any]
    hint: str
    more: str = ""
    without: Sequence[Place] = ()


class _Judge(AllRanks):
    """What is known so far of one Function on its ranks.

    Attributes:
        held: the convention that holds, and whether each input is a rank's own or all have copies.
        where: in which other way it is being run, as a failure there begins.
    """

    def __init__(self, group: Group, timeout: float) -> None:
        super().__init__(group, timeout)
        self.intent: str = self.subject.gradient or "exact"
        self.held: tuple[str, dict[int, str]] = ("sum", {})
        self.where = ""

    # Findings ---------------------------------------------------------------------------------

    def finding(self) -> Finding:
        """The first fault, or what holds."""
        kept: list[str] = []
        try:
            self.look()
            if not self.moving:
                return self.told.skipped("No floating tensor among the arguments gets a gradient.")
            if not self.group.speaks:
                said = "It enters no collective: what it does on one rank is all."
                return self.told.skipped(said)
            for look in (self._written, self._waits, self._derivative, self._laid_out,
                         self._needed, self._shards):  # fmt: skip
                self.where = ""
                found = look()
                if isinstance(found, Finding):
                    return found
                kept += [found] if found else []
        except Failed as failure:
            return self._failed(failure)
        return self.told.holds(f"Right on {self.ranks.count} ranks. {' '.join(kept)}")

    def _failed(self, failure: Failed) -> Finding:
        told = f"{self.where}{failure}"
        if failure.verdict is Verdict.LACKING:
            return self.told.lacking(f"Refused: {told}")
        hint = ("Call every collective on every rank of its group, in one order, whatever the rank "
                "holds and needs; drop afterwards what is not needed.")  # fmt: skip
        return self.told.crashes(told[:1].upper() + told[1:], hint)

    def _unlike(self, got: Run, way: "_Way") -> Finding | None:
        """The finding that a pass gives other numbers; but for the gradients left out."""
        names = [f"output {k} of all" for k in range(len(got.outputs))]
        names += self.probe.inputs.names()
        left_out = [self.path(place) for place in way.without]
        every = [k for k, name in enumerate(names) if name not in left_out]
        pairs = [[run.every[k] for k in every] for run in (got, way.expected)]
        place = self.probe.differ(*pairs, looser=1e3)
        if place is None:
            return None
        one, other = (part[place] for part in pairs)
        return self.told.broken(f"Other numbers {way.where}{way.more}.", expected=other, got=one,
                            place=names[every[place]], hint=way.hint)  # fmt: skip

    # What is looked at ------------------------------------------------------------------------

    def _written(self) -> Finding | None:
        written: list[tuple[str, int, int]] = []
        self.run(written=written)
        for what, rank, k in written[:1]:
            if what == "forward":
                return self.told.broken(
                    f"Forward writes {self.path((rank, k))}, which it was handed, and does not "
                    "mark it dirty.",
                    hint="A collective writes its tensor: hand it a copy.",
                )
            return self.told.broken(
                f"Backward writes the cotangent of output {k} on rank {rank}: whatever else the "
                "gradient goes to, a residual connection for example, gets other numbers.",
                hint="A collective writes its tensor: hand it a copy, cotangent.clone().",
            )
        return None

    # The derivative ---------------------------------------------------------------------------

    def _derivative(self) -> Finding | str:
        """Which convention the gradients are right by."""
        if self.intent != "exact":
            return f"The gradient is declared as {self.intent}: it is compared with itself alone."
        losses = [self.ranks.loss] if self.ranks.loss else ["sum", "replicated"]
        values = self.probe.inputs.values
        missed = []
        for loss in losses:
            if missed and not self.shared(values):
                break  # no output is there for all ranks
            found = self.holding(values, loss)
            if isinstance(found, dict) and (
                set(found.values()) != {"unsettled"} or loss == losses[-1]
            ):
                self.held = loss, found
                return said(loss, found, self.group.described)
            if not isinstance(found, dict):
                missed.append(found)
        own, position, _ = missed[0]
        if self.subject.gradient is None and (reason := self._is_surrogate(own, position)):
            self.intent = "surrogate"
            return f"The gradient is taken for a surrogate: {reason}."
        nor = f", nor of {LOSSES[losses[1]]}" if len(losses) > 1 else ""
        found = self._not_derivative(
            own, position,
            "Backward is not the derivative, all ranks moving together, of "
            f"{LOSSES[losses[0]]}{nor}.",
        )  # fmt: skip
        return found or "Not settled by finite differences."

    def _is_surrogate(self, own: Probe, position: int) -> str:
        """Why a gradient that is no derivative may be meant so, or an empty text."""
        alone = self.alone(own, position)
        if not any(motion.is_stepped for motion in motions(alone, 0)):
            return ""
        jumps = f"forward moves by jumps with {alone.path(0)}, backward is not zero"
        outputs = [y for y in self.run().outputs if y.is_floating_point()]
        # Whether that is meant, so that fewer bytes are sent, only the author knows.
        for kind in (torch.bfloat16, torch.float16):
            if outputs and all(torch.equal(y, y.to(kind).to(y.dtype)) for y in outputs):
                name = str(kind).removeprefix("torch.")
                return f"{jumps}, and outputs have no more digits than {name}, as after a reduction"
        return jumps

    def _not_derivative(self, own: Probe, position: int, detail: str) -> Finding | None:
        """Which rank's input it is, by moving that of each alone, once two trials agree."""
        whole = self.alone(own, position)
        trial = judge(whole)
        if not trial.is_wrong:
            return None
        for slot in whole.inputs.differentiable:
            alone = replace(own, inputs=own.inputs.with_differentiable([slot]))
            found = try_derivative(alone, 0)
            if found.is_wrong:
                whole, trial = alone, found
                break
        places = " and ".join(whole.inputs.names())
        off = abs(trial.value - trial.estimate.value)
        near = off < _CLOSE * max(trial.estimate.magnitude, abs(trial.estimate.value))
        close_ = " They are close, as where a reduction has fewer digits." if near else ""
        return self.told.broken(
            f"{detail} Moving {places}, the outputs of all ranks move otherwise.{close_}",
            expected=f"{trial.estimate.value:.8g} (finite differences)",
            got=f"{trial.value:.8g} (backward)", place=places, hint=_HINT,
        )  # fmt: skip

    # Other ways to call it --------------------------------------------------------------------

    def _same(self, *ways: "_Way") -> Finding | None:
        """The same numbers whichever way it is run."""
        for way in ways:
            self.where = f"{way.where}, "
            finding = self._unlike(self.run(**way.how), way)
            if finding is not None:
                return finding
        return None

    def _waits(self) -> Finding | None:
        """Whichever rank comes late, as where each collective has its time."""
        ranks, started = range(self.ranks.count), time.monotonic()
        expected = self.run(linger=[_LINGER for _ in ranks])
        late = max(_LATE, time.monotonic() - started)  # on a busy machine, longer than a run takes
        return self._same(*(
            _Way(f"where rank {rank} comes late", expected,
                 {"late": [late * (k == rank) for k in ranks]},
                 "Wait for asynchronous work before its tensor is read: work.wait().",
                 ": it does not wait for what the others send")
            for rank in ranks
        ))  # fmt: skip

    def _laid_out(self) -> Finding | None:
        """Shards and cotangents that are not contiguous."""
        plain, even = self.run(), self.run(back=_even)
        has_rows = any(value.ndim > 1 for value in self.probe.inputs.values)
        ways = [
            (f"{what} that are {name}", plain, {side: lay})
            for name, lay in (*[("transposed", transposed)] * has_rows,
                              ("every other entry of a tensor", strided))
            for what, side in (("shards", "forth"), ("cotangents", "back"))
        ]  # fmt: skip
        ways.append(("cotangents that are expanded, as those of a sum are", even,
                     {"back": broadcast}))  # fmt: skip
        return self._same(*(
            _Way(f"with {what}", expected, how,
                 "Make what a collective sends and receives contiguous, and return what was "
                 "received: a copy made for the call is not what it was made of.")
            for what, expected, how in ways
        ))  # fmt: skip

    def _needed(self) -> Finding | None:
        """Where one input needs no gradient, on all ranks or on one, the others keep theirs."""
        if len(self.moving) < 2:
            return None
        expected, ways = self.run(), list[_Way]()
        for k in self.moving:
            every = [place for place in self.places if place[1] == k]
            for without in (every, *([place] for place in every)):
                where = "any rank" if len(without) > 1 else f"rank {without[0][0]} alone"
                path = self.path(without[0]).rpartition(" on rank")[0]
                how = {"moving": self.probe.subject.target.moving - {*without}}
                ways.append(_Way(
                    f"where {path} needs no gradient on {where}", expected, how,
                    "Compute each gradient that is needed, whichever others are.",
                    without=without,
                ))  # fmt: skip
        return self._same(*ways)

    def _shards(self) -> Finding | str:
        """Shards of other sizes on each rank, and a rank that has none, where it takes them."""
        if self.ranks.inputs is not None or self.intent != "exact":
            return ""
        first = [v for v, place in zip(self.probe.inputs.values, self.places, strict=True)
                 if not place[0]]  # fmt: skip
        given = self.told.inputs.with_values(first).with_differentiable(self.moving)
        last, taken = self.ranks.count - 1, list[str]()
        copies = {k for k, how in self.held[1].items() if how == "copies"}
        for resizing in resizings(given, _LARGEST, _ENTRIES, self.told.generator("shards")):
            split = {k for k, places in enumerate(resizing.places) if places}
            if resizing.size <= last or split & copies:
                continue
            uneven = [resizing.size - rank for rank in range(self.ranks.count)]
            for name, sizes in (("uneven", uneven), ("empty on a rank", [*uneven[:-1], 0])):
                parts = [part for size in sizes if (part := resizing.at(size)) is not None]
                values = [v for r, p in enumerate(parts) for v in self.others(p.values, r)]
                if len(parts) < len(sizes) or not self._takes(values):
                    break
                finding = self._judged(values, f"Where {resizing.where} is {name} ({sizes})")
                if finding is not None:
                    return finding
                taken.append(name)
        return f"Shards may be {' and '.join(dict.fromkeys(taken))}." if taken else (
            "Shards of unequal sizes are refused.")  # fmt: skip

    def _takes(self, values: Tensors) -> bool:
        patience = min(self.timeout, _TRIED)
        try:
            replace(self.probe.subject.target, patience=patience).forward(values)
        except Failed:
            self.group.start()
            return False
        return True

    def _judged(self, values: Tensors, where: str) -> Finding | None:
        self.where = f"{where}: "
        self.run(values)
        found = self.holding(values, self.held[0])
        if isinstance(found, dict):
            return None
        own, position, _ = found
        detail = f"{where}, backward is not the derivative any more."
        return self._not_derivative(own, position, detail)


def _even(x: torch.Tensor) -> torch.Tensor:
    return broadcast(x).contiguous()
