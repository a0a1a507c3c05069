"""Passes forward and back on all ranks, at one set of numbers after the other."""

import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from pullback.conformance._arguments import Arguments, is_continuous
from pullback.conformance._directions import normal
from pullback.conformance._probe import Probe
from pullback.conformance._rank import Answer, Lay
from pullback.conformance._ranks import Failed, Group, Ranks
from pullback.conformance._structure import keep
from pullback.conformance._subject import Subject
from pullback.errors import ArgumentError

__all__ = ["Passes", "Place", "Run", "Values"]

Values = list[list[torch.Tensor]]
Needs = list[list[bool]]
Place = tuple[int, int]  # a rank, and the position of a tensor among its arguments

_FIRST, _LEAST, _MANY = 20.0, 5.0, 300.0  # seconds of a first pass, and of others


@dataclass(frozen=True)
class Run:
    """One pass forward and one back: for each rank its outputs, and the gradients by position."""

    forward: list[Answer]
    backward: list[Answer]

    def tensors(self) -> Iterator[tuple[int, str, int, torch.Tensor | None]]:
        """Everything that it gave: the rank, what it is, its position."""
        for rank, (forth, back) in enumerate(zip(self.forward, self.backward, strict=True)):
            yield from ((rank, "output", k, y) for k, y in enumerate(forth.found))
            yield from ((rank, "gradient", k, g) for k, g in enumerate(back.found))


class Passes:
    """One Function on its ranks, and the numbers at which it is run.

    Arguments:
        subject: what is checked.
        arguments: what `check` was given.
        ranks: how many ranks, and what else each is given.
        seed: seeds every random choice.
        timeout: seconds of work, or of sleep, that one pass may take, where that is less than some
            hundred times what a pass takes.

    Attributes:
        moving: the positions that are differentiated.
        values: every tensor of the arguments, for each rank.
        patience: seconds that one pass may take.
        probe: writes findings and draws numbers; what is checked is not run by it.
    """

    def __init__(
        self, subject: Subject, arguments: Arguments, ranks: Ranks, seed: int,
        timeout: float | None,
    ) -> None:  # fmt: skip
        if ranks.inputs is not None and arguments.args:
            raise ArgumentError(
                "The inputs of the ranks are given twice.",
                given=f"{len(arguments.args)} positional argument(s), and Ranks(inputs=...)",
                mend="Leave the positional arguments out.",
            )
        if ranks.inputs is None:
            fitting(subject, arguments)
        self.subject, self.arguments, self.ranks, self.seed = subject, arguments, ranks, seed
        self.timeout = math.inf if timeout is None else timeout
        self.patience = min(self.timeout, _FIRST)
        self.group: Group | None = None
        self.moving: list[int] = []
        self.values: Values = []
        self.probe = Probe(subject, arguments, arguments, seed=seed, clause="distributed")

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
        if not isinstance(given, (tuple, list)):
            raise TypeError(f"it returned no tuple, but {type(given).__name__}")
        return fitting(self.subject, Arguments.of(tuple(given), self.arguments.kwargs))

    def run(
        self, values: Values, needs: Needs | None = None, *, forth: Lay = torch.clone,
        back: Lay = torch.clone, **how: Sequence[float],
    ) -> Run:  # fmt: skip
        """One pass forward and back on all ranks, with the same random cotangents each time."""
        limit, group = self.patience, self.running()
        graph, found = group.forward(values, needs or self.needs(), limit, forth, **how)
        cotangents = [
            [
                normal(y, self.probe.generator(f"{rank} {k}"))
                if y is not None and is_continuous(y) and one.needs[k] else None
                for k, y in enumerate(one.found)
            ]
            for rank, one in enumerate(found)
        ]  # fmt: skip
        return Run(found, group.backward(graph, cotangents, limit, back, **how))

    def needs(self, *without: Place) -> Needs:
        """Which tensors require a gradient on each rank: those that move, but some."""
        places = enumerate(self.values)
        return [
            [k in self.moving and (rank, k) not in without for k in range(len(own))]
            for rank, own in places
        ]

    def path(self, rank: int, position: int) -> str:
        """What one tensor is called."""
        return f"{self.running().described[rank].paths[position]} on rank {rank}"

    def look(self) -> None:
        """A plain pass at the numbers given, then in float64 where it computes in that."""
        described = self.running().described
        self.moving = sorted({k for one in described for k in one.differentiable})
        self.values = [
            [*one.values] if self.ranks.inputs else self.others([*one.values], rank)
            for rank, one in enumerate(described)
        ]
        plain = self.run(self.values)
        self.patience = min(self.timeout, max(_LEAST, _MANY * self.running().took))
        if not any(one.declared for one in described):
            answered = {
                k for _, what, k, g in plain.tensors() if what == "gradient" and g is not None
            }
            self.moving = [k for k in self.moving if k in answered] or self.moving
        wide = [[_wide(value) for value in own] for own in self.values]
        try:
            found = self.run(wide)
        except Failed:
            return
        if all(_is_wide(y) for one in found.forward for y in one.found):
            self.values = wide

    def others(self, values: list[torch.Tensor], rank: int) -> list[torch.Tensor]:
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


def _wide(value: torch.Tensor) -> torch.Tensor:
    if value.is_floating_point():
        return value.double()
    return value.to(torch.complex128) if value.is_complex() else value


def _is_wide(value: torch.Tensor | None) -> bool:
    return value is None or not is_continuous(value) or value.dtype.to_real() == torch.float64


def fitting(subject: Subject, arguments: Arguments) -> Arguments:
    """The arguments, if they fit the signature of what is checked, or nobody knows.

    Arguments:
        subject: what is checked.
        arguments: what it is to be called with.

    Raises:
        ArgumentError: they do not.
    """
    kind = subject.function
    combined = kind is not None and kind.setup_context is torch.autograd.Function.setup_context
    try:
        taken = inspect.signature(subject.target if kind is None else kind.forward)
    except (TypeError, ValueError):  # made in C
        return arguments
    try:
        taken.bind(*([None] if combined else []), *arguments.args, **arguments.kwargs)
    except TypeError as error:
        raise ArgumentError(
            "The function does not take these inputs.", given=str(error), expected=str(taken)
        ) from None
    return arguments
