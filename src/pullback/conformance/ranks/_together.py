"""All ranks as one function, which a probe runs as any other, and its convention.

All ranks moving together are one function: of the tensors of all ranks, with the outputs of all of
them. Its derivative is what a collective has to be right by, and it is judged as that of any other
function. What stands for what is a convention, and two are in use. Where each rank has a loss of
its own, L = sum_r <w_r, y_r>, and the gradient of x_r is dL/dx_r: an output for each rank, an input
for each rank. Where all ranks compute the one loss from an output that they share, it counts once,
L = <w, y>: one output, whose cotangent each rank is handed. And where all ranks hold copies of one
input, that is one input, and each rank has its whole gradient.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pullback.conformance.comparison._values import close, same_bits
from pullback.conformance.evidence._derivative import Trial, decide, try_derivative
from pullback.conformance.evidence._screen import Run
from pullback.conformance.inputs._arguments import Arguments, is_continuous
from pullback.conformance.inputs._structure import keep
from pullback.conformance.probing._prepare import prepare
from pullback.conformance.probing._probe import Probe, Tensors
from pullback.conformance.process._limits import patience_for
from pullback.conformance.ranks._rank import Answer, Lay
from pullback.conformance.ranks._ranks import Failed, Group

__all__ = ["LOSSES", "AllRanks", "Place", "said"]

_GRAPHS = itertools.count()

Place = tuple[int, int]  # a rank, and the position of a tensor among its arguments


class Apart(Exception):
    """Copies of one input on several ranks have other gradients."""


@dataclass(frozen=True)
class Together:
    """All ranks as one function of tensors, with the outputs of all, those that are shared once."""

    group: Group  # the ranks
    slots: tuple[tuple[Place, ...], ...]  # for each tensor that it takes, where it goes
    moving: frozenset[Place]  # where a gradient is asked for, whichever of the tensors move
    patience: float  # seconds that a pass may take
    # the outputs that all ranks share, by position: one stands for all
    shared: frozenset[int] = frozenset()
    forth: Lay = torch.clone  # puts what is handed over into memory, on each rank
    back: Lay = torch.clone  # puts cotangents into memory
    late: Sequence[float] = ()  # the seconds that each rank comes late
    # the seconds that each rank pauses after it has entered a collective
    linger: Sequence[float] = ()
    # takes what a pass writes of what it was handed: ``"forward"`` or ``"backward"``, the rank and
    # the position
    written: list[tuple[str, int, int]] = field(default_factory=list)

    def __call__(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs of all ranks."""
        return _Apply.apply(self, *values)  # type: ignore[no-any-return]

    def forward(
        self, values: Sequence[torch.Tensor], *, wanted: bool = True
    ) -> tuple[int, list[Answer]]:
        """The number of a run, and the answer of each rank; with or without gradients."""
        by_place = {p: v for slot, v in zip(self.slots, values, strict=True) for p in slot}
        places = [[(rank, k) for k in range(len(one.paths))]
                  for rank, one in enumerate(self.group.described)]  # fmt: skip
        graph = next(_GRAPHS)
        given = [
            (graph, [by_place[place].detach() for place in own],
             [wanted and place in self.moving for place in own], self.forth)
            for own in places
        ]  # fmt: skip
        return graph, self._ask("forward", given)

    def backward(
        self, graph: int, cotangents: Sequence[Sequence[torch.Tensor | None]]
    ) -> list[torch.Tensor | None]:
        """The gradient of each tensor.

        Raises:
            Apart: copies of one have other gradients on other ranks.
        """
        answers = self._ask("backward", [(graph, own, self.back) for own in cotangents])
        found = []
        for slot in self.slots:
            first, *others = (answers[rank].found[k] for rank, k in slot)
            for other in others:
                pair = [g for g in (first, other) if g is not None]
                if len(pair) == 1 or (pair and not close(pair[0], pair[1], 1e3, 0.0)):
                    raise Apart
            found.append(first)
        return found

    def _ask(self, name: str, given: Sequence[tuple[Any, ...]]) -> list[Answer]:
        answers = self.group.ask(name, given, self.patience, self.late, self.linger)
        self.written.extend((name, rank, k) for rank, a in enumerate(answers) for k in a.written)
        return answers

    def shown(self, answers: Sequence[Answer]) -> list[Place]:
        """The outputs that stand for all."""
        first = next((rank for rank, answer in enumerate(answers) if answer.found), 0)
        return [
            (rank, k) for rank, answer in enumerate(answers) for k in range(len(answer.found))
            if rank == first or k not in self.shared
        ]  # fmt: skip


class _Apply(torch.autograd.Function):
    """`Together` for autograd."""

    @staticmethod
    def forward(ctx: Any, together: Together, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        # On one rank alone it would be the others that wait for a backward that nobody asks for.
        ctx.graph, answers = together.forward(values, wanted=any(ctx.needs_input_grad[1:]))
        ctx.together, ctx.counts = together, [len(one.found) for one in answers]
        ctx.shown = together.shown(answers)
        outputs = [answers[rank].found[k] for rank, k in ctx.shown]
        still = [y for y, (rank, k) in zip(outputs, ctx.shown, strict=True)
                 if not (answers[rank].needs[k] and is_continuous(y))]  # fmt: skip
        ctx.mark_non_differentiable(*still)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        by_place = dict(zip(ctx.shown, cotangents, strict=True))
        first = min((rank for rank, _ in ctx.shown), default=0)
        each = [
            [by_place[first if k in ctx.together.shared else rank, k] for k in range(count)]
            for rank, count in enumerate(ctx.counts)
        ]
        return None, *ctx.together.backward(ctx.graph, each)


_FIRST = 20.0  # seconds of a first pass
LOSSES = {
    "sum": "the sum of a loss on each rank",
    "replicated": "the one loss that all ranks share",
}


class AllRanks:
    """One Function on its ranks.

    Arguments:
        group: the ranks.
        timeout: seconds of work, or of sleep, that one pass may take, where that is less than some
            hundred times what a pass takes.

    Attributes:
        told: draws numbers and writes findings; what is checked is not run by it.
        moving: the positions that are differentiated.
        places: where each tensor of all ranks is.
        probe: all ranks as one function, each tensor its own.
    """

    def __init__(self, group: Group, timeout: float) -> None:
        self.group, self.ranks, self.subject = group, group.ranks, group.subject
        given = group.arguments
        told = Probe(self.subject, given, given, seed=group.seed, clause="distributed")
        self.told = self.probe = told
        self.timeout, self.patience = timeout, min(timeout, _FIRST)
        self.moving: list[int] = []
        self.places: list[Place] = []

    def at(
        self, values: Sequence[torch.Tensor], shared: frozenset[int] = frozenset(),
        copies: int | None = None,
    ) -> Probe:  # fmt: skip
        """All ranks as one subject; ``copies`` is an input of which all hold copies."""
        by_place = dict(zip(self.places, values, strict=True))
        slots = [(place,) for place in self.places if place[1] != copies]
        together = [place for place in self.places if place[1] == copies]
        slots += [tuple(together)] if together else []
        moving = frozenset(place for place in self.places if place[1] in self.moving)
        function = Together(self.group, tuple(slots), moving, self.patience, shared)
        tensors = [by_place[s[0]].detach().requires_grad_(s[0] in moving) for s in slots]
        paths = tuple(self.path(*s) if len(s) == 1 else self.path(s[0]).rpartition(" on rank")[0]
                      for s in slots)  # fmt: skip
        subject = replace(
            self.subject, target=function, call=function, function=None, gradient="exact"
        )
        given = replace(Arguments.of(tensors), paths=paths)
        if self.probe is self.told:
            return Probe(subject, given, given, seed=self.told.seed, clause="distributed")
        # How it moves and rounds is the same whatever stands for what.
        there = replace(self.probe, subject=subject).at(given)
        every = there.run(there.leaves())
        return replace(there, outputs=tuple(k for k, y in enumerate(every) if y.requires_grad))

    def path(self, place: Place) -> str:
        rank, position = place
        return f"{self.group.described[rank].paths[position]} on rank {rank}"

    def others(self, values: Sequence[torch.Tensor], rank: int) -> Tensors:
        """Numbers of one rank: those given, moved along and made larger, on the others."""
        found = list(values)
        for k in self.moving if rank else ():
            moved = values[k].reshape(-1).roll(rank).reshape(values[k].shape)
            kept = (keep(values[k], made) for made in (moved * (1 + rank / 8), moved))
            found[k] = next((made for made in kept if made is not None), values[k])
        return found

    def look(self) -> None:
        """A plain pass at the numbers given: which inputs move, and how long it takes."""
        described = self.group.described
        self.moving = sorted({k for one in described for k in one.differentiable})
        self.places = [(r, k) for r, one in enumerate(described) for k in range(len(one.paths))]
        values = [
            value for rank, one in enumerate(described)
            for value in (one.values if self.ranks.inputs else self.others(one.values, rank))
        ]  # fmt: skip
        plain = self.at(values)
        leaves = plain.leaves()
        outputs = [y for y in plain.run(leaves) if y.requires_grad and is_continuous(y)]
        slopes = plain.gradients(outputs, leaves, plain.cotangents(outputs)) if outputs else ()
        self.patience = min(self.timeout, patience_for(self.group.took))
        if not any(one.declared for one in described):
            moved = zip(plain.inputs.differentiable, slopes, strict=False)
            answered = {self.places[j][1] for j, slope in moved if slope is not None}
            self.moving = [k for k in self.moving if k in answered] or self.moving
        if self.moving and self.group.speaks:
            plain = self.at(values)
            found = prepare(plain.subject, plain.inputs, plain.seed)
            self._refuse_ended()
            self.probe = replace(found, original=found.inputs, clause="distributed")

    def _refuse_ended(self) -> None:
        if not self.group.alive:
            raise Failed("The ranks end where their arguments move a little.")

    def run(self, values: Sequence[torch.Tensor] | None = None, **how: Any) -> Run:
        """One pass forward and back on all ranks, with the same random cotangents each time."""
        there = self.probe if values is None else self.at(values)
        call = replace(there.subject.target, **how)
        return Run.of(replace(there, subject=replace(there.subject, target=call, call=call)))

    def alone(self, probe: Probe, position: int) -> Probe:
        """The probe where one input moves alone, on all ranks together."""
        slots = probe.subject.target.slots
        alone = [j for j, slot in enumerate(slots) if slot[0][1] == position]
        return replace(probe, inputs=probe.inputs.with_differentiable(alone))

    def _trial(self, probe: Probe, position: int) -> Trial:
        """Whether one input has its derivative by this convention; one miss lets the next try."""
        one = self.alone(probe, position)
        found = first = try_derivative(one, 0)
        if not first.is_wrong:
            found = decide(lambda number: try_derivative(one, number) if number else first)
        self._refuse_ended()
        return found

    def holding(
        self, values: Sequence[torch.Tensor], loss: str
    ) -> dict[int, str] | tuple[Probe, int, Trial]:
        """By input, whether each rank has its own or all have copies; else what disagrees."""
        shared = self.shared(values) if loss == "replicated" else frozenset[int]()
        own, found = self.at(values, shared), dict[int, str]()
        missed: list[tuple[int, Trial]] = []
        for k in self.moving:
            trial = self._trial(own, k)
            if not trial.is_wrong:
                found[k] = "own" if trial.is_told else "unsettled"
            elif self._are_copies(values, shared, k):
                found[k] = "copies"
                missed.append((k, trial))
            else:
                return own, k, trial
        if len(missed) == len(self.moving) and any(self._mixes(values, k) for k, _ in missed):
            return own, *missed[0]  # what ranks send each other are no copies of one thing
        return found

    def _forward(self, values: Sequence[torch.Tensor]) -> list[Sequence[Any]]:
        """The outputs of each rank."""
        return [one.found for one in self.probe.subject.target.forward(values)[1]]

    def _mixes(self, values: Sequence[torch.Tensor], position: int) -> bool:
        """Whether the outputs of one rank move with the input of another."""
        first, *_, last = [k for k, place in enumerate(self.places) if place[1] == position]
        moved = [1.125 * v if k == last else v for k, v in enumerate(values)]
        pair = [self._forward(given)[self.places[first][0]] for given in (values, moved)]
        return not all(same_bits(one, other) for one, other in zip(*pair, strict=True))

    def _are_copies(
        self, values: Sequence[torch.Tensor], shared: frozenset[int], position: int
    ) -> bool:
        """Whether the gradient is right if one input is the same on all ranks, and on each."""
        held = [v for v, place in zip(values, self.places, strict=True) if place[1] == position]
        alike = all(x.shape == held[0].shape and torch.equal(x, held[0]) for x in held)
        if len(held) < 2 or not (alike or self.ranks.inputs is None):
            return False
        try:
            return self._trial(self.at(values, shared, position), position).match == "match"
        except Apart:
            return False

    def shared(self, values: Sequence[torch.Tensor]) -> frozenset[int]:
        """The outputs that are the same on all ranks that have some."""
        found = [outputs for outputs in self._forward(values) if outputs]
        return frozenset(
            k for k, (one, *others) in enumerate(zip(*found, strict=False))
            if all(y.shape == one.shape and self.told.differ([y], [one]) is None for y in others)
        )  # fmt: skip


def said(loss: str, held: dict[int, str], described: Sequence[Any]) -> str:
    """Which convention holds."""
    paths = next(one.paths for one in described if one.paths)
    copies = [paths[k] for k, how in held.items() if how == "copies"]
    unsettled = [paths[k] for k, how in held.items() if how == "unsettled"]
    text = f"Its gradients are those of {LOSSES[loss]}"
    if copies:
        text += f", and of one {' and one '.join(copies)} of which all ranks hold copies"
    return f"{text}." + (f" Not settled: {', '.join(unsettled)}." if unsettled else "")
