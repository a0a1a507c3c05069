"""Judge a Function with another rule, as any Function is: here, elsewhere, and where slips show.

What is right at the arguments given may be so by chance: of their sizes, their options, their
rank. Where the Function with the rule as the author has it does not run, nothing is asked: it
takes no such arguments.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

import torch

from pullback.conformance.cause._rule import Rule
from pullback.conformance.evidence._derivative import judge
from pullback.conformance.evidence._linearity import linearity_gap
from pullback.conformance.evidence._screen import Run
from pullback.conformance.inputs._arguments import Arguments, is_continuous
from pullback.conformance.inputs._structure import outside, structures
from pullback.conformance.inputs._vectors import are_finite, normal
from pullback.conformance.probing._probe import Probe
from pullback.conformance.probing._resize import broadened, larger, resizings
from pullback.conformance.process._failure import attempt, raised

__all__ = ["Grade", "Judge", "stretched"]

_CONTROL, _FEW, _MANY = 2**10, 2**9, 2**16  # entries
_COUNTS, _FEWER = 3, 3  # integers that are changed, and that one exceeds which is halved
_STRETCH = 4.0
_TINY, _SHOWN = 1e-2, 0.3  # a number beside which it is left out unseen, and one that is seen


class Grade(IntEnum):
    """Where a rule is right."""

    NOWHERE = 0
    HERE = 1
    ELSEWHERE = 2  # with other sizes and options, too
    BESIDE = 3  # of another rank, too, at zero, and with numbers that are small as a rule


@dataclass(frozen=True)
class Judge:
    """Judges other rules of a Function."""

    rule: Rule
    only: int  # the position of the input whose gradient is looked at

    def grade(self, function: Callable[..., Any], *, nearly: bool = False) -> Grade:
        """How far the Function is right with another rule; of one that is nearly, if linear."""
        there = self.rule.with_rule(function)
        if nearly:
            linear = there is not None and (self.rule.does == "jvp" or self._is_linear(there))
            return Grade.BESIDE if linear else Grade.NOWHERE
        if self.rule.does == "jvp" or there is None:
            return Grade.BESIDE if there is not None else Grade.NOWHERE
        if not (self._is_right(there, there.inputs) and self._is_linear(there)):
            return Grade.NOWHERE
        if not all(_runs(there.at(inputs)) for inputs in self.alone):
            return Grade.HERE
        if not self._is_right(there, *self.elsewhere):
            return Grade.HERE
        if not self._is_right(there, *self.larger) and self._keeps_kinds(there):
            return Grade.HERE
        if not self._is_right(there, *self.broader):
            return Grade.HERE
        finite = all(_is_finite(there.at(inputs)) for inputs in self._at_zero)
        beside = finite and self._is_right(there, *self.beside)
        return Grade.BESIDE if beside else Grade.ELSEWHERE

    def keeps_constants(self, function: Callable[..., Any]) -> bool:
        """Whether inputs that need no gradient here have a right one where they are asked for it.

        What is right of one input alone may undo a fault of its own there that all have in common.
        """
        there = self.rule.with_rule(function)
        probes = () if there is None else map(there.at, self._constants)
        return all(attempt(lambda p=p: not judge(p).is_wrong, True) for p in probes)

    @cached_property
    def _constants(self) -> Sequence[Arguments]:
        """The arguments, one that needs no gradient asked for it, where backward has an answer."""
        given, probe = self.rule.probe.inputs, self.rule.probe
        known = {*given.differentiable, *given.owned}
        others = (k for k, v in enumerate(given.values) if is_continuous(v) and k not in known)
        found = [given.with_differentiable([k]) for k in others]
        return [inputs for inputs in found if _answers(probe.at(inputs))]

    def _is_right(self, there: Probe, *others: Arguments) -> bool:
        """Whether it is right at all of some other arguments."""
        probes = map(there.at, others)
        return all(attempt(lambda p=p: not judge(p, self.only).is_wrong, False) for p in probes)

    def _is_linear(self, probe: Probe) -> bool:
        with suppress(Exception):
            gap = linearity_gap(probe)
            return gap is None or gap.place != self.only
        # Where the rule as it is does not take the cotangents by which that is asked, nobody knows.
        return raised(lambda: linearity_gap(self.rule.probe)) is not None

    @cached_property
    def alone(self) -> Sequence[Arguments]:
        """The arguments with one of them that needs a gradient, where backward runs at all."""
        given, probe = self.rule.probe.inputs, self.rule.probe
        found = [given.with_differentiable([k]) for k in given.differentiable]
        return [inputs for inputs in found if not self.rule.runs or _runs(probe.at(inputs))]

    @cached_property
    def elsewhere(self) -> Sequence[Arguments]:
        """Other arguments that forward takes: other options, and numbers where all are alike.

        And numbers of other sizes, up to where a threshold may be that none has reached. Where the
        rule is wrong at arguments that a clause has made, those given are others, too.
        """
        given, generator = self.rule.probe.inputs, self.rule.probe.generator("elsewhere")
        wide = [_varied(value, generator) for value in given.values]
        found = [given.with_numbers(lambda n: 0.9 * n), given.with_values(wide)]
        other = self.rule.probe.given
        found += [other] if other is not None and other.entries <= _MANY else []
        return self._taken([*found, stretched(given)])

    @cached_property
    def larger(self) -> Sequence[Arguments]:
        """The arguments at larger sizes, of few entries at one much larger, too."""
        given, generator = self.rule.probe.inputs, self.rule.probe.generator("elsewhere")
        few = given.entries <= _FEW
        return self._taken(larger(given, generator, times) for times in ((1, 2) if few else (1,)))

    @cached_property
    def broader(self) -> Sequence[Arguments]:
        """The arguments with sizes of one larger, where forward takes them: all, or the first.

        What goes together by such a size alone does not of other arguments.
        """
        given, generator = self.rule.probe.inputs, self.rule.probe.generator("elsewhere")
        found = (inputs for inputs in broadened(given, generator) if self._takes(inputs))
        return [*itertools.islice(found, 1)]

    def _keeps_kinds(self, there: Probe) -> bool:
        """Whether it is right at the size given with integers such as larger ones are made of.

        Where it is not, those given are of a kind that is not kept: a permutation, for example.
        Labels of which some are negative, as those of targets to ignore, are of no such kind.
        """
        given, generator = self.rule.probe.inputs, self.rule.probe.generator("control")
        if all(is_continuous(value) or bool((value < 0).any()) for value in given.values):
            return True
        found = resizings(given, _CONTROL, _CONTROL, generator)
        controls = self._taken(inputs for resizing in found for inputs in resizing.control())
        return self._is_right(there, *controls)

    @cached_property
    def beside(self) -> Sequence[Arguments]:
        """Arguments at which slips show that others hide."""
        given = self.rule.probe.inputs
        shown = given.with_numbers(lambda n: math.copysign(_SHOWN, n) if 0 < abs(n) < _TINY else n)
        grown = itertools.islice(given.with_counts(lambda n: n + 1), _COUNTS)
        # Of a part as large as the whole, what is right of several parts is not asked.
        parts = itertools.islice(given.with_counts(lambda n: n // 2 if n > _FEWER else n), _COUNTS)
        return [*self._taken([shown, *grown, *parts]), *self._taken(_deeper(given))[:1]]

    @cached_property
    def _at_zero(self) -> Sequence[Arguments]:
        """One entry of each input zero, where gradients are finite as they are."""
        given, found = self.rule.probe.inputs, []
        for k, point in enumerate(given.points()):
            points = given.points()
            points[k] = point.clone()
            points[k].reshape(-1)[:1] = 0
            found.append(given.with_points(points))
        return [inputs for inputs in found if _is_finite(self.rule.probe.at(inputs))]

    def _taken(self, found: Iterable[Arguments | None]) -> list[Arguments]:
        return [inputs for inputs in found if inputs is not None and self._takes(inputs)]

    def _takes(self, inputs: Arguments) -> bool:
        """Whether forward takes arguments, and backward, where it runs at all."""
        probe = self.rule.probe.at(inputs)
        with suppress(Exception):
            finite = all(bool(y.isfinite().all()) for y in probe.output_values())
            return finite and (not self.rule.runs or _runs(probe))
        return False


def stretched(given: Arguments) -> Arguments | None:
    """The arguments, every other entry of an input larger; ``None`` of those that keep to a kind.

    A threshold that none of the entries has reached hides what is beyond it.
    """
    points = given.points()
    made = [x * (_STRETCH ** (torch.arange(x.numel(), device=x.device) % 3)).view(x.shape).to(x)
            for x in points]  # fmt: skip
    kinds = any(structures(x) or outside(x, y) for x, y in zip(points, made, strict=True))
    return None if kinds else given.with_points(made)


def _runs(probe: Probe) -> bool:
    return attempt(lambda: bool(Run.of(probe).every), False)


def _answers(probe: Probe) -> bool:
    return attempt(lambda: any(bool(g.any()) for g in Run.of(probe).gradients), False)


def _is_finite(probe: Probe) -> bool:
    return attempt(lambda: are_finite(Run.of(probe).gradients), False)


def _varied(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Numbers that differ, where those given are all the same."""
    if not is_continuous(value) or value.numel() < 2 or bool((value != value.reshape(-1)[0]).any()):
        return value
    return normal(value, generator)


def _deeper(given: Arguments) -> Iterator[Arguments]:
    """Two of each tensor along a dimension before the others, or of those of most dimensions."""
    most = max((value.ndim for value in given.values), default=0)
    for some in ([v.ndim > 0 for v in given.values], [v.ndim == most > 0 for v in given.values]):
        if any(some):
            pairs = zip(given.values, some, strict=True)
            yield given.with_values(
                [torch.stack([v, v.flip(0)]) if twice else v for v, twice in pairs]
            )
