"""All ranks as one function, and what its gradients are the gradients of.

All ranks moving together are one function: of the tensors of all ranks, with the outputs of all of
them. Its derivative is what a collective has to be right by, and it is judged as that of any other
function. What stands for what is a convention, and two are in use. Where each rank has a loss of
its own, L = sum_r <w_r, y_r>, and the gradient of x_r is dL/dx_r: an output for each rank, an input
for each rank. Where all ranks compute the one loss from an output that they share, it counts once,
L = <w, y>: one output, whose cotangent each rank is handed. And where all ranks hold copies of one
input, that is one input, and each rank has its whole gradient.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pullback.conformance._arguments import Arguments, is_continuous
from pullback.conformance._derivative import Trial, decide, try_derivative
from pullback.conformance._passes import Passes, Values
from pullback.conformance._prepare import prepare
from pullback.conformance._probe import Probe
from pullback.conformance._rank import Answer
from pullback.conformance._ranks import Failed, Group
from pullback.conformance._values import close, same_bits

__all__ = ["Conventions"]


class Apart(Exception):
    """Copies of one input on several ranks have other gradients."""


@dataclass(frozen=True)
class Together:
    """All ranks as one function of tensors.

    Arguments:
        group: the ranks.
        slots: for each tensor that it takes, where it goes: ranks and positions.
        shared: the outputs that all ranks share, by position: one stands for all.
        moving: the positions that are differentiated, on every rank.
        patience: seconds that a call may take.
    """

    group: Group
    slots: tuple[tuple[tuple[int, int], ...], ...]
    shared: frozenset[int]
    moving: frozenset[int]
    patience: float

    def __call__(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs of all ranks, those that are shared once."""
        return _Apply.apply(self, *values)  # type: ignore[no-any-return]

    def hand_out(self, given: Sequence[Any]) -> list[list[Any]]:
        """What each rank is given, of one thing for each tensor."""
        places = {place: one for slot, one in zip(self.slots, given, strict=True) for place in slot}
        ranks = range(len(self.group.described))
        return [[places[r, k] for k in range(len(self.group.described[r].paths))] for r in ranks]

    def shown(self, answers: Sequence[Answer]) -> list[tuple[int, int]]:
        """The outputs that stand for all, as ranks and positions."""
        first = next((rank for rank, answer in enumerate(answers) if answer.found), 0)
        return [
            (rank, k) for rank, answer in enumerate(answers) for k in range(len(answer.found))
            if rank == first or k not in self.shared
        ]  # fmt: skip

    def collect(self, answers: Sequence[Answer]) -> list[torch.Tensor | None]:
        """The gradient of each tensor.

        Raises:
            Apart: copies of one have other gradients on other ranks.
        """
        found = []
        for slot in self.slots:
            first, *others = (answers[rank].found[k] for rank, k in slot)
            for other in others:
                pair = [g for g in (first, other) if g is not None]
                if len(pair) == 1 or (pair and not close(*pair, 1e3, 0.0)):
                    raise Apart
            found.append(first)
        return found


class _Apply(torch.autograd.Function):
    """`Together` for autograd."""

    @staticmethod
    def forward(ctx: Any, together: Together, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        # On one rank alone it would be the others that wait for a backward that nobody asks for.
        wanted = any(ctx.needs_input_grad[1:])
        needs = [[wanted and k in together.moving for k in range(len(one.paths))]
                 for one in together.group.described]  # fmt: skip
        handed = together.hand_out([value.detach() for value in values])
        ctx.together = together
        ctx.graph, answers = together.group.forward(handed, needs, together.patience)
        ctx.shown, ctx.counts = together.shown(answers), [len(one.found) for one in answers]
        outputs = [answers[rank].found[k] for rank, k in ctx.shown]
        still = [y for y, (rank, k) in zip(outputs, ctx.shown, strict=True)
                 if not (answers[rank].needs[k] and is_continuous(y))]  # fmt: skip
        ctx.mark_non_differentiable(*still)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        together = ctx.together
        by_place = dict(zip(ctx.shown, cotangents, strict=True))
        first = min((rank for rank, _ in ctx.shown), default=0)
        each = [
            [by_place[first if k in together.shared else rank, k] for k in range(count)]
            for rank, count in enumerate(ctx.counts)
        ]
        return None, *together.collect(together.group.backward(ctx.graph, each, together.patience))


class Conventions:
    """Which convention the gradients of a Function are right by.

    Arguments:
        passes: the Function on its ranks.
    """

    def __init__(self, passes: Passes) -> None:
        self.passes = passes
        self.prepared: Probe | None = None

    def together(self, values: Values, shared: frozenset[int], copies: int | None = None) -> Probe:
        """All ranks as one subject; ``copies`` is an input of which all hold copies."""
        group = self.passes.running()
        own = [((rank, k),) for rank, held in enumerate(values) for k in range(len(held))]
        slots = tuple(slot for slot in own if slot[0][1] != copies)
        if copies is not None:
            slots += (tuple(slot[0] for slot in own if slot[0][1] == copies),)
        function = Together(
            group, slots, shared, frozenset(self.passes.moving), self.passes.patience
        )
        tensors = tuple(
            values[slot[0][0]][slot[0][1]].detach().requires_grad_(slot[0][1] in self.passes.moving)
            for slot in slots
        )
        subject = replace(
            self.passes.subject, target=function, call=function, function=None, gradient="exact"
        )
        paths = tuple(
            self.passes.path(*slot[0])
            if len(slot) == 1
            else group.described[slot[0][0]].paths[slot[0][1]]
            for slot in slots
        )
        given = replace(Arguments.of(tensors), paths=paths)
        if self.prepared is None:  # how it moves and rounds is the same whatever stands for what
            self.prepared = prepare(subject, given, self.passes.seed)
        if not group.alive:
            raise Failed("The ranks end where their arguments move a little.")
        probe = replace(self.prepared, subject=subject, inputs=given, original=given)
        every = probe.run(probe.leaves())
        outputs = tuple(k for k, y in enumerate(every) if y.requires_grad)
        return replace(probe, outputs=outputs, clause="distributed")

    def alone(self, probe: Probe, position: int) -> Probe:
        """The probe where one input moves alone, on all ranks together."""
        slots = probe.subject.target.slots
        alone = [j for j, slot in enumerate(slots) if slot[0][1] == position]
        return replace(probe, inputs=probe.inputs.with_differentiable(alone))

    def trial(self, probe: Probe, position: int) -> Trial | None:
        """Whether one input has its derivative by this convention; one miss lets the next try."""
        one = self.alone(probe, position)
        first = try_derivative(one, 0)
        found = first
        if first.match != "mismatch":
            found = decide(lambda number: try_derivative(one, number) if number else first)
        if not self.passes.running().alive:
            raise Failed("The ranks end where their arguments move a little.")
        return found

    def holding(self, values: Values, loss: str) -> dict[int, str] | tuple[Probe, int, Trial]:
        """By input, whether each rank has its own or all have copies; else what disagrees."""
        shared = self.shared(values) if loss == "replicated" else frozenset[int]()
        own, found = self.together(values, shared), dict[int, str]()
        trials: dict[int, Trial] = {}
        for k in self.passes.moving:
            trial = self.trial(own, k)
            if trial is None or trial.match != "mismatch":
                found[k] = "own" if trial is not None else "unsettled"
            elif self.are_copies(values, shared, k):
                found[k], trials[k] = "copies", trial
            else:
                return own, k, trial
        missed = [(k, trial) for k, trial in trials.items() if found[k] == "copies"]
        if len(missed) == len(self.passes.moving) and any(self.mixes(values, k) for k, _ in missed):
            return own, *missed[0]  # what ranks send each other are no copies of one thing
        return found

    def mixes(self, values: Values, position: int) -> bool:
        """Whether the outputs of one rank move with the input of another."""
        taking = [rank for rank, own in enumerate(values) if position < len(own)]
        moved = [[*own] for own in values]
        moved[taking[-1]][position] = 1.125 * moved[taking[-1]][position]
        before, after = self.passes.run(values).forward, self.passes.run(moved).forward
        pairs = zip(before[taking[0]].found, after[taking[0]].found, strict=True)
        return not all(
            one is None or other is None or same_bits(one, other) for one, other in pairs
        )

    def are_copies(self, values: Values, shared: frozenset[int], position: int) -> bool:
        """Whether the gradient is right if one input is the same on all ranks, and on each."""
        held = [own[position] for own in values if position < len(own)]
        alike = all(x.shape == held[0].shape and torch.equal(x, held[0]) for x in held)
        if len(held) < 2 or not (alike or self.passes.ranks.inputs is None):
            return False
        try:
            trial = self.trial(self.together(values, shared, position), position)
        except Apart:
            return False
        return trial is not None and trial.match == "match"

    def shared(self, values: Values) -> frozenset[int]:
        """The outputs that are the same on all ranks that have some."""
        found = [one.found for one in self.passes.run(values).forward if one.found]
        return frozenset(
            k for k, outputs in enumerate(zip(*found, strict=False))
            if all(y.shape == outputs[0].shape and close(y, outputs[0], 1.0, 0.0) for y in outputs)
        )  # fmt: skip
