"""The edits of a rule that are tried, in an order that tries the likeliest first.

How large a factor has to be follows from two calls, where the answer is linear in what is
multiplied; a number, by Gauss-Newton steps; a term, where each entry of the answer hangs on one of
an expression.
"""

import ast
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from pullback.conformance.cause._rule import Rule
from pullback.conformance.comparison._changes import CLOSE, Pair, are_close, is_same
from pullback.conformance.inputs._arguments import is_continuous
from pullback.conformance.process._forked import is_harmless
from pullback.conformance.process._limits import limited
from pullback.conformance.process._memory import bounded
from pullback.conformance.source._names import (
    Name,
    Rewrite,
    computed_by,
    is_number,
    is_plain,
    is_simple,
    named_factors,
    names_at,
    numbers_at,
    one_more,
)
from pullback.conformance.source._products import comparisons, products, summed
from pullback.conformance.source._sources import Source, written
from pullback.conformance.source._watch import Instead, Watch
from pullback.conformance.source._written import Edit, Expression, Written, names_read

__all__ = ["NAMELESS", "IsRight", "Search"]

_FEWEST = 3  # numbers that a factor without a name must explain
NAMELESS = 8
"""The rank of a number that has no name."""
# Entries that are not right by chance, and how much nearer one that is nearly right has to come.
_ENOUGH, _NEARER = 6, 0.01
# Seconds of work, and times what the rule takes: with another operand a loop may have no end.
_PATIENCE, _LEAST, _TIMES = 1.0, 0.25, 50
_ROOMS, _MORE = [2**k for k in range(24, 34, 2)], 4  # bytes, and times what the rule takes of them
_NEWTON, _OPERANDS = 8, 40  # steps, and what a factor may be

IsRight = Callable[[int, torch.Tensor], bool]


@dataclass
class Search:
    """The edits of one rule, the likeliest first."""

    rule: Rule
    source: Source
    only: int  # the position of the answer that is wrong
    pair: Pair  # that expected and got
    is_right: IsRight
    noted: Watch = field(default_factory=lambda: Watch(noting=True))
    watch: Watch = field(default_factory=Watch)
    functions: dict[frozenset[Written], Callable[..., Any]] = field(default_factory=dict)
    base: Sequence[torch.Tensor] = ()  # what the rule answers as it is
    names: dict[Any, tuple[Sequence[Name], Sequence[Name]]] = field(default_factory=dict)
    computed: dict[Any, Sequence[Name]] = field(default_factory=dict)
    doubled: dict[Any, list[torch.Tensor] | None] = field(default_factory=dict)
    patience: float = _PATIENCE  # what an edit may take of time, and of memory
    room: int | None = None
    beside: Edit = field(default_factory=dict)  # what is edited in any case

    def starts(self) -> bool:
        """Whether the source answers what the rule does, or fails as it does."""
        try:
            as_it_is = self.rule.call(self.source.watched(self.noted))
        except Exception:  # a source that is not that of the function
            return False
        self._cost()
        own = self.own(as_it_is)
        if as_it_is is None or not self.pair.got.any():
            return bool(self.noted.first)
        self.base = as_it_is
        got = self.pair.got
        return own is not None and are_close(got, own, self.pair.difference.close)

    def _cost(self) -> None:
        """Ask what the rule takes as it is: no edit is to take much more.

        A number that is no size would be tried in the place of one, whatever is allocated then.
        """
        began = time.process_time()
        found = self.rule.call(None)
        took = time.process_time() - began
        self.patience = min(_PATIENCE, max(_LEAST, _TIMES * took))
        for room in _ROOMS if found is not None else _ROOMS[-1:]:
            with bounded(room):
                if self.rule.call(None) is not None or found is None:
                    self.room = _MORE * room
                    return

    def own(self, answers: Sequence[torch.Tensor] | None) -> torch.Tensor | None:
        """The answer that is wrong; ``None`` where its shape is another, or it is not finite."""
        found = None if answers is None else answers[self.only]
        fits = found is not None and found.shape == self.pair.got.shape and found.isfinite().all()
        if found is None or not fits or found.is_complex() > self.pair.got.is_complex():
            return None
        return found.to("cpu", self.pair.got.dtype)

    def answers(self, rewrite: Rewrite) -> list[torch.Tensor] | None:
        """All answers with expressions replaced, or statements, which are compiled."""
        if not is_harmless():
            return None
        self.watch.until = time.process_time() + self.patience
        refused = (SyntaxError, ValueError, TimeoutError, MemoryError)
        with suppress(*refused), limited(self.patience), bounded(self.room):
            made = self.source.replaced if rewrite.anew else self._instead
            return self.rule.call(made({**rewrite.texts, **self.beside}))
        return None

    def _instead(self, texts: Edit) -> Callable[..., Any]:
        """The rule with those watched that are edited: the others run as fast as they are."""
        self.watch.instead = {
            e.key: Instead(compile(text.strip(), "<edit>", "eval"), e.place)
            for e, text in texts.items()
        }
        rules = frozenset(e.rule for e in texts)
        if rules not in self.functions:
            self.functions[rules] = self.source.watched(self.watch, rules)
        return self.functions[rules]

    def answer(self, text: str, *places: Expression) -> torch.Tensor | None:
        """The answer that is wrong with a text in the place of expressions."""
        return self.own(self.answers(Rewrite(0, dict.fromkeys(places, text))))

    def goes_elsewhere(self, rewrite: Rewrite) -> bool:
        """Whether another number lets a branch run that was not, and whose test it is not in.

        That what stands there is right says nothing of the number.
        """
        if rewrite.anew or not all(is_number(self.noted.first.get(e.key)) for e in rewrite.texts):
            return False
        self.watch.scope.clear()
        self.answers(rewrite)
        fresh = self.watch.scope.keys() - self.noted.scopes.keys()
        return any(
            e.rule.key(block[0]) in fresh
            for e in (rewrite.texts if fresh else ())
            for node in e.rule.nodes(ast.If)
            if e.node not in {*ast.walk(node.test)}
            for block in (node.body, node.orelse)
            if block
        )

    def gap(self, answers: Sequence[torch.Tensor] | None) -> float:
        """How far the answer is off then, beside its largest entry."""
        found = self.own(answers)
        if found is None:
            return math.inf
        off = float((found - self.pair.expected)[self.pair.known].abs().max())
        return off / max(self.pair.size, 1e-300) if off else 0.0

    @cached_property
    def nearly(self) -> float:
        """The gap from which on an edit may be meant all the same.

        A forward that sums, solves or searches to a tolerance is not differentiated to all digits.
        """
        few = int(self.pair.known.sum()) < _ENOUGH
        return 0.0 if few or not self.base else min(CLOSE, _NEARER * self.gap(self.base))

    def keeps(self, answers: Sequence[torch.Tensor]) -> bool:
        """Whether the other answers are right, or as they were."""
        return all(
            k == self.only
            or (len(self.base) > k and torch.equal(found, self.base[k]))
            or self.is_right(k, found)
            for k, found in enumerate(answers)
        )

    @cached_property
    def expressions(self) -> Sequence[Expression]:
        """Those that may be meant otherwise: of what fills a context, what it leaves there.

        What it calls may make gradients beside a loss.
        """
        every = [e for source in self.rules for e in source.expressions]
        own = self.source.rule if self.rule.does == "fill" else None
        return [e for e in every if e.rule is not own or e.is_left]

    @property
    def evaluated(self) -> Sequence[Expression]:
        """Those that were evaluated."""
        return [e for e in self.expressions if e.key in self.noted.first]

    @cached_property
    def rules(self) -> Mapping[Written, int]:
        """The rule and what it calls, by how many calls; what forward calls is as it is meant."""
        shared = self.rule.called_by_forward()
        far = self.source.far.items()
        return {rule: calls for rule, calls in far if not calls or rule.function not in shared}

    def twice(self, e: Expression) -> list[torch.Tensor] | None:
        """All answers where an expression is doubled; ``None`` where it cannot be."""
        if e.key not in self.doubled:
            value = self.noted.first[e.key]
            some = is_plain(value) and is_continuous(value) and bool(value.any())
            some = some or (type(value) is float and value != 0)
            self.doubled[e.key] = self.answers(Rewrite(0, {e: f"2 * ({e.text})"})) if some else None
        return self.doubled[e.key]

    def reach(self, e: Expression) -> int | None:
        """How much speaks against an edit of it; ``None`` where no wrong number hangs on it.

        Numbers that are right may hang on it, or another answer that is wrong may not.
        """
        twice = self.twice(e) if self.base else None
        own = self.own(twice)
        if twice is None or own is None:
            return 0
        moved = (own - self.pair.got).abs() * self.pair.known
        if not bool(moved.any()):
            return None
        moves = {k: not torch.equal(twice[k], self.base[k]) for k in self.right}
        gap, close = (self.pair.got - self.pair.expected).abs(), self.pair.difference.close
        seen = moved > close * self.pair.size
        # What is right is so beside the largest entry, however far it is moved.
        spoils = bool((seen & (gap <= close * moved.clamp(max=self.pair.size))).any())
        spoils = spoils or any(self.right[k] and moves[k] for k in moves)
        return 2 * spoils + any(not self.right[k] and not moves[k] for k in moves)

    @cached_property
    def right(self) -> Mapping[int, bool]:
        """Which of the other answers are right as they are."""
        base = enumerate(self.base)
        return {k: self.is_right(k, found) for k, found in base if k != self.only}

    def names_at(self, expression: Expression) -> tuple[Sequence[Name], Sequence[Name]]:
        """What it may name, and the numbers among that; alike in all of a statement."""
        if expression.place not in self.names:
            names = names_at(expression, self.noted)
            self.names[expression.place] = names, numbers_at(names)
        return self.names[expression.place]

    def operands_at(self, expression: Expression) -> Sequence[Name]:
        """What a factor may be written of: names, and what its rule computes of them."""
        found = [n for n in self.names_at(expression)[0] if is_plain(n.value)]
        scope = self.noted.scopes.get(expression.place, {})
        around = {n for n in ast.walk(expression.node) if isinstance(n, ast.expr)}
        for e in expression.rule.expressions:
            value: Any = self.noted.first.get(e.key)
            own = names_read(e.node) & e.rule.local <= scope.keys()
            if not (is_simple(e) and own and is_plain(value) and is_continuous(value)):
                continue
            if e.node not in around and not any(is_same(value, n.value) for n in found):
                found.append(Name(e.atom, value))
        return found[:_OPERANDS]

    def factors(self, e: Expression) -> Iterator[Rewrite]:
        """The number by which it is to be multiplied, or that it is to be."""
        value = self.noted.first[e.key]
        if is_plain(value) and is_continuous(value) and value.any():
            twice = self.own(self.twice(e))
            if twice is None or torch.equal(twice, self.pair.got):
                return
            factor = 1 + self.pair.share_of(twice - self.pair.got)
            if self.pair.equal(self.pair.got + (factor - 1) * (twice - self.pair.got)):
                yield from self.named(e, factor)
            yield from self.constant(e)
        elif type(value) is float:
            same = [o for o in e.rule.expressions if o.text == e.text and o.key in self.noted.first]
            for some in [[e], same][: 1 + (len(same) > 1 and same[0] == e)]:
                number = self.followed(some, value)
                if number is not None:
                    yield Rewrite(NAMELESS, dict.fromkeys(some, f"{number:.6g}"))

    def constant(self, e: Expression) -> Iterator[Rewrite]:
        """The number that is to be added, where few digits say it."""
        one = self.answer(f"{e.text} + 1", e)
        if one is None or int(self.pair.known.sum()) < _ENOUGH:
            return
        number = float(f"{self.pair.share_of(one - self.pair.got):.3g}")
        if number and self.pair.equal(self.pair.got + number * (one - self.pair.got)):
            term = f"{'-' if number < 0 else '+'} {abs(number):g}"
            yield Rewrite(NAMELESS + 1, {e: f"{e.text} {term}"})

    def named(self, e: Expression, factor: float) -> Iterator[Rewrite]:
        text, close = e.factor, max(CLOSE, self.pair.difference.close / 3)
        if abs(factor) < CLOSE:
            yield Rewrite(3, {e: f"0 * {text}"})
        elif abs(factor + 1) < CLOSE:
            yield Rewrite(2, {e: f"-{text}"})
        else:
            yield from (
                Rewrite(rank, {e: by.format(text)})
                for rank, by in named_factors(factor, self.names_at(e)[1], close)
            )
            if int(self.pair.known.sum()) >= _FEWEST:
                yield Rewrite(NAMELESS, {e: f"{factor:.6g} * {text}"})

    def followed(self, some: Sequence[Expression], start: float) -> float | None:
        """The number that makes the answer right, by Gauss-Newton steps; ``None`` if it is none."""
        value, pair = start, self.pair
        if int(pair.known.sum()) < _FEWEST:
            return None
        for _ in range(_NEWTON):
            step = 1e-6 * max(abs(value), 1e-3)
            at, beside = (self.answer(repr(n), *some) for n in (value, value + step))
            if at is not None and pair.equal(at):
                return value if value != start else None
            if at is None or beside is None or torch.equal(at, beside):
                return None
            value += step * replace(pair, got=at).share_of(beside - at)
        return None

    def masks(self, until: float) -> Iterator[Rewrite]:
        """A mask that is another comparison of what is at hand, or that is missing."""
        close = self.pair.difference.close * self.pair.size
        for e in self.evaluated:
            value = self.noted.first[e.key]
            if not is_plain(value) or value.shape != self.pair.got.shape:
                continue
            if time.process_time() > until:
                return
            text = "{}" if value.dtype == torch.bool else f"{e.factor} * ({{}})"
            made = (f"torch.{fill}_like({e.atom}, dtype=torch.bool)" for fill in ("ones", "zeros"))
            on, off = (self.answer(text.format(other), e) for other in made)
            if on is None or off is None:
                continue
            wanted = (self.pair.expected - on).abs() < (self.pair.expected - off).abs()
            left = (torch.where(wanted, on, off) - self.pair.expected).abs()
            if bool((left <= close)[self.pair.known].all()):
                known = self.pair.known & (on != off)
                found = comparisons(wanted, known, self.operands_at(e), self.names_at(e)[1])
                yield from (Rewrite(6, {e: text.format(mask)}) for mask in found)

    def fitted(self, until: float) -> Iterator[Rewrite]:
        """Factors and terms that are products of what is at hand."""
        tried: list[torch.Tensor] = []
        for e in (e for e in self.evaluated if e.is_whole):
            whole, value, needed = self.wanted(e, self.noted.first[e.key])
            if needed is None or time.process_time() > until:
                continue
            names = self.operands_at(e), self.names_at(e)[1]
            text = whole if whole != e.text else e.factor
            ratio = needed / value
            known = any(torch.allclose(ratio, other, rtol=CLOSE) for other in tried)
            if bool((value != 0).all()) and not known:
                tried.append(ratio)
                for by in products(ratio, *names):
                    sign, bare = ("-", by[1:]) if by.startswith("-") else ("", by)
                    yield Rewrite(6, {e: f"{sign}{text} * {bare}"})
            term = needed - value
            for by in products(term, *names, self.of_forward(e)):
                joined = f"- {by[1:]}" if by.startswith("-") else f"+ {by}"
                yield Rewrite(6, {e: f"{whole} {joined}"})
            yield from (Rewrite(6, {e: by}) for by in products(needed, *names))

    def of_forward(self, e: Expression) -> Sequence[Name]:
        """What forward computes of names that are at hand: a term is lost whole."""
        if e.place not in self.computed:
            forward, scope = written(self.rule.forward), self.noted.scopes.get(e.place, {})
            with bounded(self.room):
                made = computed_by(forward.rule, scope, self.patience) if forward else ()
                self.computed[e.place] = list(made)
        return self.computed[e.place]

    def wanted(self, e: Expression, value: Any) -> tuple[str, torch.Tensor, torch.Tensor | None]:
        """What it was and what it has to be, where each entry of the answer hangs on one of it.

        Of what torch sums, because it is wider than what it is the gradient of, that is its sum.
        """
        got = self.pair.got
        none = e.text, torch.zeros_like(got), None
        if got.is_complex() or not bool(self.pair.known.all()):
            return none
        if value is None:
            return (*none[:2], self.pair.expected)
        fits = summed(e.text, value, got.shape) if is_plain(value) else None
        if fits is None or not value.is_floating_point():
            return none
        whole, value = fits
        one, two = (self.answer(f"({whole}) + {n}", e) for n in (1, 2))
        if one is None or two is None:
            return none
        by = one - got
        close = CLOSE * float(by.abs().max())
        if not by.all() or bool((two - one - by).abs().max() > close):
            return none
        # A sum would have moved by all entries: of one alone, the others stay.
        mixed = self.answer(one_more(whole), e)
        if mixed is None or bool(((mixed - got).reshape(-1)[1:].abs() > close).any()):
            return none
        value = value.detach().to("cpu", got.dtype)
        return whole, value, value + (self.pair.expected - got) / by
