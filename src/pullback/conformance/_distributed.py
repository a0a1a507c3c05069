"""Judge a Function on several ranks: the clause `distributed`.

The order is that of causes: does a run end on every rank, does it write what it was handed, does it
wait for what it has begun, is it the derivative, and does it stay so in other layouts, where fewer
gradients are needed, and with other shards.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pullback.conformance._arguments import Arguments, is_continuous
from pullback.conformance._derivative import Trial, decide, try_derivative
from pullback.conformance._directions import normal
from pullback.conformance._guard import environment, guarded
from pullback.conformance._prepare import prepare
from pullback.conformance._probe import Probe
from pullback.conformance._rank import Answer
from pullback.conformance._ranks import Apart, Failed, Group, Ranks, Together, refuse_here
from pullback.conformance._repro import write_repro
from pullback.conformance._resize import resizings
from pullback.conformance._steps import motions
from pullback.conformance._structure import keep
from pullback.conformance._subject import Subject
from pullback.conformance._values import close, same_bits
from pullback.conformance.clauses.distributed import distributed
from pullback.report import Finding, Report, Verdict

__all__ = ["check_on_ranks"]

Values = list[list[torch.Tensor]]
Needs = list[list[bool]]
Place = tuple[int, int]  # a rank, and the position of a tensor among its arguments

_FIRST, _LEAST, _MANY = 20.0, 5.0, 300.0  # seconds of a first pass, and of others
_TRIED = 0.6  # seconds for shards that it may not be made for
_LATE, _LINGER = 0.03, 0.02  # seconds
_LARGEST, _ENTRIES = 64, 2**12
_CLOSE = 1e-2
_HINT = (
    "Give each collective of forward its adjoint in backward, over the same group: of an all_reduce "
    "an all_reduce, of an all_gather a reduce_scatter, of a broadcast a reduction to its source. "
    "Where all ranks compute the one loss, or hold copies of an input, say so: "
    "ranks=Ranks(2, loss='replicated')."
)


def check_on_ranks(
    subject: Subject, arguments: Arguments, ranks: int | Ranks, seed: int,
    timeout: float | None,
) -> Report:  # fmt: skip
    """Check the clause `distributed`.

    Arguments:
        subject: what is checked.
        arguments: what `check` was given.
        ranks: the processes, and what else each is given.
        seed: seeds every random choice.
        timeout: seconds of work, or of sleep, that one pass on all ranks may take.

    Raises:
        ArgumentError: no ranks can be started here.
    """
    ranks = ranks if isinstance(ranks, Ranks) else Ranks(ranks)
    refuse_here()
    started = time.perf_counter()
    judge = _Judge(subject, arguments, ranks, seed, timeout)
    try:
        with guarded():
            finding = judge.finding()
    finally:
        judge.end()
    if finding.verdict not in (Verdict.HOLDS, Verdict.SKIPPED):
        finding = replace(finding, why=distributed.why, hint=finding.hint or distributed.mend)
    return Report(
        subject.name, judge.intent, subject.gradient is None, (finding,), seed,
        time.perf_counter() - started, environment(),
    )  # fmt: skip


@dataclass(frozen=True)
class _Run:
    """One pass forward and one back: for each rank its outputs, and the gradients by position."""

    forward: list[Answer]
    backward: list[Answer]

    def tensors(self) -> Iterator[tuple[int, str, int, torch.Tensor | None]]:
        """Everything that it gave: the rank, what it is, its position."""
        for rank, (forth, back) in enumerate(zip(self.forward, self.backward, strict=True)):
            yield from ((rank, "output", k, y) for k, y in enumerate(forth.found))
            yield from ((rank, "gradient", k, g) for k, g in enumerate(back.found))


class _Judge:
    """What is known so far of one Function on its ranks."""

    def __init__(
        self, subject: Subject, arguments: Arguments, ranks: Ranks, seed: int,
        timeout: float | None,
    ) -> None:  # fmt: skip
        self.subject, self.arguments, self.ranks, self.seed = subject, arguments, ranks, seed
        self.timeout, self.patience = timeout, timeout or _FIRST
        self.intent: str = subject.gradient or "exact"
        self.group: Group | None = None
        self.moving: list[int] = []  # positions that are differentiated
        self.values: Values = []
        self.prepared: Probe | None = None
        self.held: tuple[str, dict[int, str]] = ("sum", {})
        # It writes findings and draws; what is checked is not run here.
        self.probe = Probe(subject, arguments, arguments, seed=seed, clause=distributed.id)

    # The ranks --------------------------------------------------------------------------------

    def running(self) -> Group:
        """The ranks; others where they have ended."""
        if self.group is None or not self.group.alive:
            self.group = Group(self.subject, self._make, self.ranks.count, self.seed)
        return self.group

    def end(self) -> None:
        """Leave no rank behind."""
        if self.group is not None:
            self.group.close()

    def _make(self, rank: int) -> Arguments | None:
        if self.ranks.inputs is None:
            return self.arguments
        given = self.ranks.inputs(rank)
        if given is None:
            return None
        return Arguments.of(given if isinstance(given, tuple) else (given,), self.arguments.kwargs)

    def run(
        self, values: Values, needs: Needs | None = None, *, patience: float = 0.0,
        back: Callable[[torch.Tensor], torch.Tensor] = lambda cotangent: cotangent,
        **how: Sequence[float],
    ) -> _Run:  # fmt: skip
        """One pass forward and back on all ranks, with the same random cotangents each time."""
        limit, group = patience or self.patience, self.running()
        graph, forth = group.forward(values, needs or self.needs(), limit, **how)
        cotangents = [
            [
                back(normal(y, self.probe.generator(f"{rank} {k}")))
                if y is not None and is_continuous(y) and one.needs[k] else None
                for k, y in enumerate(one.found)
            ]
            for rank, one in enumerate(forth)
        ]  # fmt: skip
        return _Run(forth, group.backward(graph, cotangents, limit, **how))

    def needs(self, *without: Place) -> Needs:
        """Which tensors require a gradient on each rank: those that move, but some."""
        places = enumerate(self.values)
        return [
            [k in self.moving and (rank, k) not in without for k in range(len(own))]
            for rank, own in places
        ]

    # Findings ---------------------------------------------------------------------------------

    def finding(self) -> Finding:
        """The first fault, or what holds."""
        try:
            self._look()
        except Failed as failure:
            return self._failed(failure)
        if not self.moving:
            return self.probe.skipped("No floating tensor among the arguments gets a gradient.")
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
            return self.probe.lacking(f"It says, on {told}")
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
            f"gradient={self.subject.gradient!r}, seed={self.seed}))",
        ]
        return write_repro(self.subject, self.arguments, (), self.seed, shown)

    def _path(self, rank: int, position: int) -> str:
        return f"{self.running().described[rank].paths[position]} on rank {rank}"

    # What is looked at ------------------------------------------------------------------------

    def _look(self) -> None:
        """A plain pass at the numbers given, then in float64 where it computes in that."""
        described = self.running().described
        self.moving = sorted({k for one in described for k in one.differentiable})
        self.values = [
            [*one.values] if self.ranks.inputs else self._others([*one.values], rank)
            for rank, one in enumerate(described)
        ]
        plain = self.run(self.values)
        self.patience = self.timeout or max(_LEAST, _MANY * self.running().took)
        if not any(one.declared for one in described):
            answered = {k for _, what, k, g in plain.tensors() if what == "gradient" and g is not None}
            self.moving = [k for k in self.moving if k in answered] or self.moving
        wide = [[_wide(value) for value in own] for own in self.values]
        try:
            found = self.run(wide)
        except Failed:
            return
        if all(_is_wide(y) for one in found.forward for y in one.found):
            self.values = wide

    def _others(self, values: list[torch.Tensor], rank: int) -> list[torch.Tensor]:
        """Numbers of one rank: those given, moved along and made larger, on the others."""
        found = list(values)
        for k in self.moving if rank else ():
            value = values[k]
            moved = value.reshape(-1).roll(rank).reshape(value.shape)
            for made in (moved * (1 + rank / 8), moved):
                kept = keep(value, made)
                if kept is not None:
                    found[k] = kept
                    break
        return found

    def _written(self) -> Finding | None:
        run = self.run(self.values)
        for rank, (forth, back) in enumerate(zip(run.forward, run.backward, strict=True)):
            if forth.written:
                return self._broken(
                    f"Forward writes {self._path(rank, forth.written[0])}, which it was handed, "
                    "and does not mark it dirty.",
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
        expected = self.run(self.values, linger=[_LINGER] * count)
        for rank in range(count):
            late = [_LATE if k == rank else 0.0 for k in range(count)]
            finding = self._compare(
                self.run(self.values, late=late), expected,
                f"Other numbers where rank {rank} comes {_LATE * 1000:.0f} ms late: it does not "
                "wait for what the others send.",
                "Wait for asynchronous work before its tensor is read: work.wait().",
            )  # fmt: skip
            if finding is not None:
                return finding
        return None

    def _compare(
        self, got: _Run, expected: _Run, detail: str, hint: str, without: Sequence[Place] = ()
    ) -> Finding | None:
        for one, other in zip(got.tensors(), expected.tensors(), strict=True):
            rank, what, k, found = one
            if what == "gradient" and (rank, k) in without:
                continue
            wanted = other[3]
            if found is None and wanted is None:
                continue
            zero = found if found is not None else wanted
            pair = [torch.zeros_like(zero) if t is None else t for t in (found, wanted)]
            if pair[0].shape != pair[1].shape or not close(*pair, 1e3, 0.0):
                place = self._path(rank, k) if what == "gradient" else f"output {k} on rank {rank}"
                return self._broken(detail, expected=pair[1], got=pair[0], place=place, hint=hint)
        return None

    # The derivative ---------------------------------------------------------------------------

    def _together(
        self, values: Values, shared: frozenset[int], copies: int | None = None
    ) -> Probe:
        """All ranks as one subject; ``copies`` is an input of which all hold copies."""
        group = self.running()
        own = [((rank, k),) for rank, held in enumerate(values) for k in range(len(held))]
        slots = tuple(slot for slot in own if slot[0][1] != copies)
        if copies is not None:
            slots += (tuple(slot[0] for slot in own if slot[0][1] == copies),)
        function = Together(group, slots, shared, frozenset(self.moving), self.patience)
        tensors = tuple(
            values[slot[0][0]][slot[0][1]].detach().requires_grad_(slot[0][1] in self.moving)
            for slot in slots
        )
        subject = replace(
            self.subject, target=function, call=function, function=None, gradient="exact"
        )
        paths = tuple(
            self._path(*slot[0]) if len(slot) == 1 else group.described[slot[0][0]].paths[slot[0][1]]
            for slot in slots
        )
        given = replace(Arguments.of(tensors), paths=paths)
        if self.prepared is None:  # how it moves and rounds is the same whatever stands for what
            self.prepared = prepare(subject, given, self.seed)
        if not group.alive:
            raise Failed("The ranks end where their arguments move a little.")
        probe = replace(self.prepared, subject=subject, inputs=given, original=given)
        every = probe.run(probe.leaves())
        outputs = tuple(k for k, y in enumerate(every) if y.requires_grad)
        return replace(probe, outputs=outputs, clause=distributed.id)

    def _of(self, probe: Probe, position: int) -> Probe:
        """The probe where one input moves alone, on all ranks together."""
        slots = probe.subject.target.slots
        alone = [j for j, slot in enumerate(slots) if slot[0][1] == position]
        return replace(probe, inputs=probe.inputs.with_differentiable(alone))

    def _trial(self, probe: Probe, position: int) -> Trial | None:
        alone = self._of(probe, position)
        found = decide(lambda number: try_derivative(alone, number))
        if not self.running().alive:
            raise Failed("The ranks end where their arguments move a little.")
        return found

    def _holding(self, values: Values, loss: str) -> dict[int, str] | tuple[Probe, int, Trial]:
        """By input, whether each rank has its own or all have copies; else what disagrees."""
        shared = self._shared(values) if loss == "replicated" else frozenset[int]()
        own, found = self._together(values, shared), dict[int, str]()
        trials: dict[int, Trial] = {}
        for k in self.moving:
            trial = self._trial(own, k)
            if trial is None or trial.match != "mismatch":
                found[k] = "own" if trial is not None else "unsettled"
            elif self._are_copies(values, shared, k):
                found[k], trials[k] = "copies", trial
            else:
                return own, k, trial
        missed = [(k, trial) for k, trial in trials.items() if found[k] == "copies"]
        if len(missed) == len(self.moving) and any(self._mixes(values, k) for k, _ in missed):
            return own, *missed[0]  # what ranks send each other are no copies of one thing
        return found

    def _mixes(self, values: Values, position: int) -> bool:
        """Whether the outputs of one rank move with the input of another."""
        taking = [rank for rank, own in enumerate(values) if position < len(own)]
        moved = [[*own] for own in values]
        moved[taking[-1]][position] = 1.125 * moved[taking[-1]][position]
        before, after = self.run(values).forward, self.run(moved).forward
        pairs = zip(before[taking[0]].found, after[taking[0]].found, strict=True)
        return not all(one is None or other is None or same_bits(one, other) for one, other in pairs)

    def _are_copies(self, values: Values, shared: frozenset[int], position: int) -> bool:
        """Whether the gradient is right if one input is the same on all ranks, and on each."""
        held = [own[position] for own in values if position < len(own)]
        alike = all(x.shape == held[0].shape and torch.equal(x, held[0]) for x in held)
        if len(held) < 2 or not (alike or self.ranks.inputs is None):
            return False
        try:
            trial = self._trial(self._together(values, shared, position), position)
        except Apart:
            return False
        return trial is not None and trial.match == "match"

    def _shared(self, values: Values) -> frozenset[int]:
        """The outputs that are the same on all ranks that have some."""
        found = [one.found for one in self.run(values).forward if one.found]
        return frozenset(
            k for k, outputs in enumerate(zip(*found, strict=False))
            if all(y.shape == outputs[0].shape and close(y, outputs[0], 1.0, 0.0) for y in outputs)
        )  # fmt: skip

    def _derivative(self) -> Finding | str:
        """Which convention the gradients are right by."""
        if self.intent != "exact":
            return f"The gradient is declared as {self.intent}: it is compared with itself alone."
        losses = [self.ranks.loss] if self.ranks.loss else ["sum", "replicated"]
        missed = []
        for loss in losses:
            found = self._holding(self.values, loss)
            if isinstance(found, dict) and (set(found.values()) != {"unsettled"} or loss == losses[-1]):
                self.held = loss, found
                return _said(loss, found, self.group.described)  # type: ignore[union-attr]
            if not isinstance(found, dict):
                missed.append(found)
        own, position, trial = missed[0]
        if self.subject.gradient is None and (reason := self._is_surrogate(own, position)):
            self.intent = "surrogate"
            return f"The gradient is taken for a surrogate: {reason}."
        nor = f", nor of {_LOSSES[losses[1]]}" if len(losses) > 1 else ""
        return self._not_derivative(
            own, position, trial,
            f"Backward is not the derivative, all ranks moving together, of {_LOSSES[losses[0]]}{nor}.",
        )  # fmt: skip

    def _is_surrogate(self, own: Probe, position: int) -> str:
        """Why a gradient that is no derivative may be meant so, or an empty text."""
        alone = self._of(own, position)
        slots = range(len(alone.inputs.differentiable))
        if any(motion.is_stepped for k in slots for motion in motions(alone, k)):
            return f"forward moves by jumps with {alone.path(0)}, backward is not zero"
        return ""

    def _not_derivative(self, own: Probe, position: int, trial: Trial, detail: str) -> Finding:
        """Which ranks' input it is, by moving that of each alone."""
        whole = self._of(own, position)
        for slot in whole.inputs.differentiable:
            alone = replace(own, inputs=own.inputs.with_differentiable([slot]))
            found = decide(lambda number, alone=alone: try_derivative(alone, number), limit=3)
            if found is not None and found.match == "mismatch":
                whole, trial = alone, found
                break
        places = " and ".join(whole.inputs.names())
        off = abs(trial.value - trial.estimate.value)
        near = off < _CLOSE * max(trial.estimate.magnitude, abs(trial.estimate.value))
        close_ = " They are close, as where a reduction has fewer digits." if near else ""
        return self._broken(
            f"{detail} Moving {places}, the outputs of all ranks move otherwise.{close_}",
            expected=f"{trial.estimate.value:.8g} +- {trial.estimate.error:.1g} (finite differences)",
            got=f"{trial.value:.8g} (backward)", place=places, hint=_HINT,
        )  # fmt: skip

    # Other ways to call it --------------------------------------------------------------------

    def _laid_out(self) -> Finding | None:
        """Shards and cotangents that are not contiguous: the same numbers."""
        expected = self.run(self.values)
        for name, lay in _LAYOUTS.items():
            laid = [[lay(x) if is_continuous(x) else x for x in own] for own in self.values]
            for what, got in (
                ("shards", lambda laid=laid: self.run(laid)),
                ("cotangents", lambda lay=lay: self.run(self.values, back=lay)),
            ):
                finding = self._compare(
                    got(), expected, f"Other numbers for {what} that are {name}.",
                    "Make what a collective sends and receives contiguous, and return what was "
                    "received: a copy made for the call is not what it was made of.",
                )  # fmt: skip
                if finding is not None:
                    return finding
        # Of a sum the cotangent is one number for all entries.
        ones = self.run(self.values, back=torch.ones_like)
        return self._compare(
            self.run(self.values, back=lambda g: torch.ones_like(g).sum().new_ones(()).expand(g.shape)),
            ones, "Other numbers for cotangents that are expanded, as those of a sum are.",
            "Make what a collective sends contiguous first.",
        )  # fmt: skip

    def _needed(self) -> Finding | None:
        """Where one input needs no gradient, on all ranks or on one, the others keep theirs."""
        if len(self.moving) < 2:
            return None
        expected = self.run(self.values)
        every = range(self.ranks.count)
        for k in self.moving:
            for ranks in ([*every], *([rank] for rank in every)):
                where = "any rank" if len(ranks) > 1 else f"rank {ranks[0]} alone"
                path = self.running().described[ranks[0]].paths[k]
                without = [(rank, k) for rank in ranks]
                told = f"Where {path} needs no gradient on {where}"
                try:
                    got = self.run(self.values, self.needs(*without))
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
        """Shards of other sizes on each rank, and a rank that holds nothing, where it takes them."""
        if self.ranks.inputs is not None or self.intent != "exact":
            return ""
        given = self.arguments.with_values(self.values[0]).with_differentiable(self.moving)
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
                values = [self._others([*p.values], r) for r, p in enumerate(parts) if p is not None]
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
            self.running().forward(values, self.needs(), self.timeout or _TRIED)
        except Failed:
            return False
        return True

    def _judged(self, values: Values, where: str) -> Finding | None:
        try:
            self.run(values)
        except Failed as failure:
            return self._failed(failure, f"{where}: ")
        found = self._holding(values, self.held[0])
        if isinstance(found, dict):
            return None
        return self._not_derivative(*found, f"{where}, backward is not the derivative any more.")


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


def _wide(value: torch.Tensor) -> torch.Tensor:
    if value.is_floating_point():
        return value.double()
    return value.to(torch.complex128) if value.is_complex() else value


def _is_wide(value: torch.Tensor | None) -> bool:
    return value is None or not is_continuous(value) or value.dtype.to_real() == torch.float64


def _transposed(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT if x.ndim > 1 else x.clone()


def _every_other(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x, x], -1)[..., 0]


_LAYOUTS = {"transposed": _transposed, "every other entry of a tensor": _every_other}
