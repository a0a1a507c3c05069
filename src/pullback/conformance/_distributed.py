"""Judge a Function on several ranks: the clause `distributed`.

The order is that of causes: does a run end on every rank, does it write what it was handed, does it
wait for what it has begun, is it the derivative, and does it stay so in other layouts, where fewer
gradients are needed, and with other shards.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from pullback.conformance._arguments import Arguments
from pullback.conformance._convention import Conventions
from pullback.conformance._derivative import decide, try_derivative
from pullback.conformance._guard import environment, guarded
from pullback.conformance._passes import Passes, Place, Run, Values
from pullback.conformance._probe import Probe
from pullback.conformance._ranks import Failed, Ranks, refuse_here
from pullback.conformance._repro import write_repro
from pullback.conformance._resize import resizings
from pullback.conformance._steps import motions
from pullback.conformance._subject import Subject
from pullback.conformance._values import close
from pullback.conformance.clauses.distributed import distributed
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
    """Check the clause `distributed`.

    Arguments:
        subject: what is checked.
        arguments: what `check` was given.
        ranks: the processes, and what else each is given.
        asked: the ids of the clauses that were asked for by name.
        seed: seeds every random choice.
        timeout: seconds of work, or of sleep, that one pass on all ranks may take.
        on_finding: called with the finding.

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
    passes = Passes(
        subject, arguments, ranks if isinstance(ranks, Ranks) else Ranks(ranks), seed, timeout
    )
    refuse_here()
    started = time.perf_counter()
    judge = _Judge(passes)
    try:
        with guarded():
            finding = judge.finding()
    finally:
        passes.end()
    if finding.verdict not in (Verdict.HOLDS, Verdict.SKIPPED):
        finding = replace(finding, why=distributed.why, hint=finding.hint or distributed.mend)
    if on_finding is not None:
        on_finding(finding)
    return Report(
        subject.name, judge.intent, subject.gradient is None, (finding,), seed,
        time.perf_counter() - started, environment(),
    )  # fmt: skip


class _Judge:
    """What is known so far of one Function on its ranks."""

    def __init__(self, passes: Passes) -> None:
        self.passes, self.probe, self.ranks = passes, passes.probe, passes.ranks
        self.conventions = Conventions(passes)
        self.intent: str = passes.subject.gradient or "exact"
        self.held: tuple[str, dict[int, str]] = ("sum", {})

    # Findings ---------------------------------------------------------------------------------

    def finding(self) -> Finding:
        """The first fault, or what holds."""
        try:
            self.passes.look()
        except Failed as failure:
            return self._failed(failure)
        if not self.passes.moving:
            return self.probe.skipped("No floating tensor among the arguments gets a gradient.")
        if not self.passes.running().speaks:
            return self.probe.skipped("It enters no collective: what it does on one rank is all.")
        said: list[str] = []
        for look in (self._written, self._waits, self._derivative, self._laid_out,
                     self._needed, self._shards):  # fmt: skip
            try:
                found = look()
            except Failed as failure:
                return self._failed(failure)
            if isinstance(found, Finding):
                return found
            said += [found] if found else []
        return self.probe.holds(f"Right on {self.ranks.count} ranks. {' '.join(said)}")

    def _failed(self, failure: Failed, where: str = "") -> Finding:
        told = f"{where}{failure}"
        if failure.verdict is Verdict.LACKING:
            return self.probe.lacking(f"Refused: {told}")
        hint = ("Call every collective on every rank of its group, in one order, whatever the rank "
                "holds and needs; drop afterwards what is not needed.")  # fmt: skip
        return replace(self.probe.crashes(told[:1].upper() + told[1:], hint), repro=self._repro())

    def _broken(self, detail: str, **shown: Any) -> Finding:
        return replace(self.probe.broken(detail, **shown), repro=self._repro())

    def _repro(self) -> str:
        if self.ranks.inputs is not None:
            return ""
        loss = f", loss={self.ranks.loss!r}" if self.ranks.loss else ""
        shown = [
            "import pullback",
            "from pullback.conformance import Ranks",
            f"print(pullback.check(F, *args, ranks=Ranks({self.ranks.count}{loss}), "
            f"gradient={self.passes.subject.gradient!r}, seed={self.passes.seed}))",
        ]
        return write_repro(self.passes.subject, self.passes.arguments, (), self.passes.seed, shown)

    # What is looked at ------------------------------------------------------------------------

    def _written(self) -> Finding | None:
        run = self.passes.run(self.passes.values)
        for rank, (forth, back) in enumerate(zip(run.forward, run.backward, strict=True)):
            if forth.written:
                return self._broken(
                    f"Forward writes {self.passes.path(rank, forth.written[0])}, which it was "
                    "handed, and does not mark it dirty.",
                    hint="A collective writes its tensor: hand it a copy.",
                )
            if back.written:
                return self._broken(
                    f"Backward writes the cotangent of output {back.written[0]} on rank {rank}: "
                    "whatever else the gradient goes to, a residual connection for example, gets "
                    "other numbers.",
                    hint="A collective writes its tensor: hand it a copy, cotangent.clone().",
                )
        return None

    def _waits(self) -> Finding | None:
        """The same numbers whichever rank comes late, as where each collective has its time."""
        count = self.ranks.count
        expected = self.passes.run(self.passes.values, linger=[_LINGER] * count)
        for rank in range(count):
            late = [_LATE if k == rank else 0.0 for k in range(count)]
            finding = self._compare(
                self.passes.run(self.passes.values, late=late), expected,
                f"Other numbers where rank {rank} comes {_LATE * 1000:.0f} ms late: it does not "
                "wait for what the others send.",
                "Wait for asynchronous work before its tensor is read: work.wait().",
            )  # fmt: skip
            if finding is not None:
                return finding
        return None

    def _compare(
        self, got: Run, expected: Run, detail: str, hint: str, without: Sequence[Place] = ()
    ) -> Finding | None:
        for one, other in zip(got.tensors(), expected.tensors(), strict=True):
            rank, what, k, found = one
            if what == "gradient" and (rank, k) in without:
                continue
            wanted = other[3]
            if found is None and wanted is None:
                continue
            known: Any = wanted if found is None else found
            pair = [torch.zeros_like(known) if t is None else t for t in (found, wanted)]
            if pair[0].shape != pair[1].shape or not close(pair[0], pair[1], 1e3, 0.0):
                place = (
                    self.passes.path(rank, k)
                    if what == "gradient"
                    else f"output {k} on rank {rank}"
                )
                return self._broken(detail, expected=pair[1], got=pair[0], place=place, hint=hint)
        return None

    # The derivative ---------------------------------------------------------------------------

    def _derivative(self) -> Finding | str:
        """Which convention the gradients are right by."""
        if self.intent != "exact":
            return f"The gradient is declared as {self.intent}: it is compared with itself alone."
        losses = [self.ranks.loss] if self.ranks.loss else ["sum", "replicated"]
        missed = []
        for loss in losses:
            if missed and not self.conventions.shared(self.passes.values):
                break  # no output is there for all ranks
            found = self.conventions.holding(self.passes.values, loss)
            if isinstance(found, dict) and (
                set(found.values()) != {"unsettled"} or loss == losses[-1]
            ):
                self.held = loss, found
                return _said(loss, found, self.passes.running().described)
            if not isinstance(found, dict):
                missed.append(found)
        own, position, _ = missed[0]
        if self.passes.subject.gradient is None and (reason := self._is_surrogate(own, position)):
            self.intent = "surrogate"
            return f"The gradient is taken for a surrogate: {reason}."
        nor = f", nor of {_LOSSES[losses[1]]}" if len(losses) > 1 else ""
        found = self._not_derivative(
            own, position,
            "Backward is not the derivative, all ranks moving together, of "
            f"{_LOSSES[losses[0]]}{nor}.",
        )  # fmt: skip
        return found or "Not settled by finite differences."

    def _is_surrogate(self, own: Probe, position: int) -> str:
        """Why a gradient that is no derivative may be meant so, or an empty text."""
        alone = self.conventions.alone(own, position)
        if any(motion.is_stepped for motion in motions(alone, 0)):
            return f"forward moves by jumps with {alone.path(0)}, backward is not zero"
        return ""

    def _not_derivative(self, own: Probe, position: int, detail: str) -> Finding | None:
        """Which rank's input it is, by moving that of each alone, once two trials agree."""
        whole = self.conventions.alone(own, position)
        trial = decide(lambda number: try_derivative(whole, number))
        if trial is None or trial.match != "mismatch":
            return None
        for slot in whole.inputs.differentiable:
            alone = replace(own, inputs=own.inputs.with_differentiable([slot]))
            found = try_derivative(alone, 0)
            if found.match == "mismatch":
                whole, trial = alone, found
                break
        places = " and ".join(whole.inputs.names())
        off = abs(trial.value - trial.estimate.value)
        near = off < _CLOSE * max(trial.estimate.magnitude, abs(trial.estimate.value))
        close_ = " They are close, as where a reduction has fewer digits." if near else ""
        return self._broken(
            f"{detail} Moving {places}, the outputs of all ranks move otherwise.{close_}",
            expected=f"{trial.estimate.value:.8g} (finite differences)",
            got=f"{trial.value:.8g} (backward)", place=places, hint=_HINT,
        )  # fmt: skip

    # Other ways to call it --------------------------------------------------------------------

    def _laid_out(self) -> Finding | None:
        """Shards and cotangents that are not contiguous: the same numbers."""
        values = self.passes.values
        plain, ones = (
            self.passes.run(values, back=back) for back in (torch.clone, torch.ones_like)
        )
        asis = torch.clone
        for what, expected, forth, back in (
            ("shards that are transposed", plain, _transposed, asis),
            ("cotangents that are transposed", plain, asis, _transposed),
            ("shards that are every other entry of a tensor", plain, _every_other, asis),
            ("cotangents that are every other entry of a tensor", plain, asis, _every_other),
            ("cotangents that are expanded, as those of a sum are", ones, asis, _expanded),
        ):
            try:
                found = self.passes.run(values, forth=forth, back=back)
            except Failed as failure:
                return self._failed(failure, f"with {what}, ")
            finding = self._compare(
                found, expected, f"Other numbers for {what}.",
                "Make what a collective sends and receives contiguous, and return what was "
                "received: a copy made for the call is not what it was made of.",
            )  # fmt: skip
            if finding is not None:
                return finding
        return None

    def _needed(self) -> Finding | None:
        """Where one input needs no gradient, on all ranks or on one, the others keep theirs."""
        if len(self.passes.moving) < 2:
            return None
        expected = self.passes.run(self.passes.values)
        for k in self.passes.moving:
            every = [rank for rank, own in enumerate(self.passes.values) if k < len(own)]
            for ranks in (every, *([rank] for rank in every)):
                where = "any rank" if len(ranks) > 1 else f"rank {ranks[0]} alone"
                path = self.passes.running().described[ranks[0]].paths[k]
                without = [(rank, k) for rank in ranks]
                told = f"Where {path} needs no gradient on {where}"
                try:
                    got = self.passes.run(self.passes.values, self.passes.needs(*without))
                except Failed as failure:
                    return self._failed(failure, f"{told}: ")
                finding = self._compare(
                    got, expected, f"{told}, the others get other numbers.",
                    "Compute each gradient that is needed, whichever others are.", without,
                )  # fmt: skip
                if finding is not None:
                    return finding
        return None

    def _shards(self) -> Finding | str:
        """Shards of other sizes on each rank, and a rank that has none, where it takes them."""
        if self.ranks.inputs is not None or self.intent != "exact":
            return ""
        given = self.passes.arguments.with_values(self.passes.values[0]).with_differentiable(
            self.passes.moving
        )
        drawn = self.probe.generator("shards")
        last, taken = self.ranks.count - 1, list[str]()
        copies = {k for k, how in self.held[1].items() if how == "copies"}
        for resizing in resizings(given, _LARGEST, _ENTRIES, drawn):
            split = {k for k, places in enumerate(resizing.places) if places}
            if resizing.size <= last or split & copies:
                continue
            uneven = [resizing.size - rank for rank in range(self.ranks.count)]
            for name, sizes in (("uneven", uneven), ("empty on a rank", [*uneven[:-1], 0])):
                parts = [resizing.at(size) for size in sizes]
                values = [
                    self.passes.others([*p.values], r) for r, p in enumerate(parts) if p is not None
                ]
                if len(values) < len(parts) or not self._takes(values):
                    break
                finding = self._judged(values, f"Where {resizing.where} is {name} ({sizes})")
                if finding is not None:
                    return finding
                taken.append(name)
        return f"Shards may be {' and '.join(dict.fromkeys(taken))}." if taken else (
            "Shards of unequal sizes are refused.")  # fmt: skip

    def _takes(self, values: Values) -> bool:
        try:
            self.passes.running().forward(
                values, self.passes.needs(), min(self.passes.timeout, _TRIED)
            )
        except Failed:
            return False
        return True

    def _judged(self, values: Values, where: str) -> Finding | None:
        try:
            self.passes.run(values)
        except Failed as failure:
            return self._failed(failure, f"{where}: ")
        found = self.conventions.holding(values, self.held[0])
        if isinstance(found, dict):
            return None
        own, position, _ = found
        said = f"{where}, backward is not the derivative any more."
        return self._not_derivative(own, position, said)


_LOSSES = {
    "sum": "the sum of a loss on each rank",
    "replicated": "the one loss that all ranks share",
}


def _said(loss: str, held: dict[int, str], described: Sequence[Any]) -> str:
    """Which convention holds."""
    paths = next(one.paths for one in described if one.paths)
    copies = [paths[k] for k, how in held.items() if how == "copies"]
    unsettled = [paths[k] for k, how in held.items() if how == "unsettled"]
    said = f"Its gradients are those of {_LOSSES[loss]}"
    if copies:
        said += f", and of one {' and one '.join(copies)} of which all ranks hold copies"
    return f"{said}." + (f" Not settled: {', '.join(unsettled)}." if unsettled else "")


def _transposed(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT if x.ndim > 1 else x.clone()


def _every_other(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x, x], -1)[..., 0]


def _expanded(x: torch.Tensor) -> torch.Tensor:
    return x.new_ones(()).expand(x.shape)
