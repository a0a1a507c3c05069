"""All ranks as one function, which a probe runs as any other.

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
from dataclasses import dataclass, field
from typing import Any

import torch

from pullback.conformance._arguments import is_continuous
from pullback.conformance._rank import Answer, Lay
from pullback.conformance._ranks import Group
from pullback.conformance._values import close

__all__ = ["Apart", "Place", "Together"]

_GRAPHS = itertools.count()

Place = tuple[int, int]  # a rank, and the position of a tensor among its arguments


class Apart(Exception):
    """Copies of one input on several ranks have other gradients."""


@dataclass(frozen=True)
class Together:
    """All ranks as one function of tensors, with the outputs of all, those that are shared once.

    Arguments:
        group: the ranks.
        slots: for each tensor that it takes, where it goes.
        moving: where a gradient is asked for, whichever of the tensors move.
        patience: seconds that a pass may take.
        shared: the outputs that all ranks share, by position: one stands for all.
        forth: puts what is handed over into memory, on each rank.
        back: puts cotangents into memory.
        late: the seconds that each rank comes late.
        linger: the seconds that each rank pauses after it has entered a collective.
        written: takes what a pass writes of what it was handed: ``"forward"`` or ``"backward"``,
            the rank and the position.
    """

    group: Group
    slots: tuple[tuple[Place, ...], ...]
    moving: frozenset[Place]
    patience: float
    shared: frozenset[int] = frozenset()
    forth: Lay = torch.clone
    back: Lay = torch.clone
    late: Sequence[float] = ()
    linger: Sequence[float] = ()
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
