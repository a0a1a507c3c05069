"""An edit of a backward, run: how far its gradients are off then, and how that is told."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch

from pullback.conformance._changes import CLOSE, Pair, is_same
from pullback.conformance._operations import Backward, Edit, Step
from pullback.conformance._probe import Tensors
from pullback.conformance._substitutes import is_plain

__all__ = ["FEWEST", "IsRight", "Right", "Search", "Tried"]

FEWEST = 3  # numbers that a factor without a name must explain
# Entries that are not right by chance, and how much nearer one that is nearly right has to come.
_ENOUGH, _NEARER = 6, 0.01

IsRight = Callable[[int, torch.Tensor], bool]


class Tried(NamedTuple):
    """An edit of a step or several, in words; those of a lower rank are tried first."""

    rank: int
    steps: Sequence[int]
    edit: Edit
    said: str
    becomes: str = ""  # what is written at the place of the first step then


class Right(NamedTuple):
    """What makes a backward right."""

    said: str = ""  # one sentence; empty where nothing was found
    mend: str = ""  # what to do


@dataclass(frozen=True)
class Search:
    """What edits are made of."""

    backward: Backward  # runs with a step edited
    steps: Sequence[Step]  # those of backward as it is
    only: int  # the position of the input whose gradient is wrong
    pair: Pair  # that gradient expected and got
    base: Tensors  # all gradients as they are
    is_right: IsRight
    shared: set[int] = field(default_factory=set)  # the steps that another gradient reads too

    def told(self, tried: Tried, *, alone: bool = False, gap: float = 0.0) -> Right:
        """What an edit makes right, this gradient alone, or but for a gap, and how it is made."""
        what = f"That {self.backward.answered} alone" if alone else self.backward.called
        but = f", but for {100 * gap:.2g} % of the largest entry," * (gap > 0)
        source = self.steps[tried.steps[0]].source
        becomes = tried.becomes and source.fitting(tried.becomes)
        mend = f"Write `{becomes}` for `{source.text}` at {source.where}."
        other = f"Change {self.backward.called.lower()} so that {tried.said}."
        return Right(f"{what} is right{but} where {tried.said}.", mend if becomes else other)

    def gap(self, answers: Tensors | None) -> float:
        """How far the gradient is off then, beside its largest entry."""
        found = self.own(answers)
        if found is None:
            return math.inf
        off = float((found - self.pair.expected)[self.pair.known].abs().max())
        return off / max(self.pair.size, 1e-300) if off else 0.0

    @property
    def nearly(self) -> float:
        """The gap from which on an edit may be meant all the same.

        A forward that sums, solves or searches to a tolerance is not differentiated to all digits.
        """
        few = int(self.pair.known.sum()) < _ENOUGH
        return 0.0 if few else min(CLOSE, _NEARER * self.gap(self.base))

    def order(self, tried: Tried) -> tuple[int, bool, bool]:
        """The likeliest first.

        Of edits that are as likely, one that stands in a line of its own before one of all that
        reads what forward left, and one of what this gradient alone reads before one of others.
        """
        return tried.rank, tried.steps[0] == 0, not self.shared.isdisjoint(tried.steps)

    @property
    def rest(self) -> list[int]:
        """The positions of the other inputs."""
        return [k for k in range(len(self.base)) if k != self.only]

    @cached_property
    def right(self) -> Mapping[int, bool]:
        """Whether the other gradients are right as they are."""
        return {k: self.is_right(k, self.base[k]) for k in self.rest}

    def are_left(self, answers: Tensors) -> bool:
        """Whether the other gradients are as they were."""
        return all(torch.equal(answers[k], self.base[k]) for k in self.rest)

    def are_right(self, answers: Tensors) -> bool:
        """Whether the other gradients are right too."""
        return all(
            self.right[k] if torch.equal(answers[k], self.base[k]) else self.is_right(k, answers[k])
            for k in self.rest
        )

    @cached_property
    def first(self) -> Sequence[int]:
        """The first step at each place of the source."""
        places = {step.place: number for number, step in reversed([*enumerate(self.steps)])}
        return sorted(places.values())

    @property
    def hand(self) -> Mapping[str, torch.Tensor]:
        return self.pair.difference.hand

    @property
    def all_at_hand(self) -> Mapping[str, torch.Tensor]:
        """What a change may read."""
        difference = self.pair.difference
        return {**difference.hand, **difference.others, **difference.parts}

    @property
    def is_small(self) -> bool:
        """Whether there are so few entries that a number always explains them."""
        return int(self.pair.known.sum()) < FEWEST

    def name(self, tensor: torch.Tensor) -> str:
        return next((name for name, other in self.hand.items() if is_same(tensor, other)), "")

    @cached_property
    def made(self) -> Mapping[str, torch.Tensor]:
        """The results of the steps, by how each is written."""
        found = {self.steps[n].said: self.steps[n].found for n in reversed(self.first) if n}
        return {said: t for said, t in found.items() if is_plain(t)}

    def source(self, tensor: torch.Tensor) -> str:
        """How the tensor is computed, where it is the result of another step."""
        found = (s.said for s in self.steps[1:] if is_plain(s.found) and is_same(s.found, tensor))
        return next(found, "")

    def is_shared(self, tensor: torch.Tensor) -> bool:
        """Whether several operations read it, one of which may mean another one."""
        read = (leaf for n in self.first if n for leaf in self.steps[n].leaves)
        return sum(is_plain(leaf) and is_same(leaf, tensor) for leaf in read) > 1

    def answers(self, edited: Sequence[int], edit: Edit) -> Tensors | None:
        """All gradients with steps edited, however often their places in the source are run."""
        places = {self.steps[k].place for k in edited}
        written = [k for k, other in enumerate(self.steps) if other.place in places]
        return self.backward.answers(written, edit)

    def numbers(self, edited: Sequence[int], edit: Edit) -> torch.Tensor | None:
        """The gradient that is wrong with steps edited."""
        return self.own(self.answers(edited, edit))

    def own(self, answers: Tensors | None) -> torch.Tensor | None:
        """The gradient that is wrong; ``None`` where its shape is another, or it is not finite."""
        found = None if answers is None else answers[self.only]
        if found is None or found.shape != self.pair.got.shape or not found.isfinite().all():
            return None
        return found.to("cpu", self.pair.got.dtype)

    def share(self, step: int, edit: Callable[[Any], Edit]) -> torch.Tensor | None:
        """How the gradient changes when a tensor is doubled; ``None`` where it does not."""
        answers = self.answers([step], edit(lambda t: t + t))
        if answers is not None and not self.are_left(answers):
            self.shared.add(step)
        twice = self.own(answers)
        return None if twice is None or torch.equal(twice, self.pair.got) else twice - self.pair.got
