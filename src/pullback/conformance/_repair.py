"""One edit of a wrong rule that makes it right, in the author's source.

The rule is called again and again with one expression replaced (`_rewrites`), on the context that
forward has left; what it answers is compared with the numbers expected. An edit that is right there
is written into the source, compiled, and judged as any Function is, at other points and sizes: what
is printed has been run. How large a factor has to be follows from two calls, where the answer is
linear in what is multiplied.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch

from pullback.conformance._arguments import Arguments, is_continuous
from pullback.conformance._changes import CLOSE, Difference, Pair, are_close
from pullback.conformance._derivative import judge
from pullback.conformance._mends import around, mended
from pullback.conformance._names import Name, named_factors, names_at, numbers_at
from pullback.conformance._probe import Probe
from pullback.conformance._products import products
from pullback.conformance._resize import larger
from pullback.conformance._rewrites import Rewrite, is_plain, rewrites
from pullback.conformance._rule import Rule
from pullback.conformance._written import Expression, Watch, Written, written

__all__ = ["EDIT", "IsRight", "Right", "right_edit"]

EDIT = "Write `"
"""How each edit begins."""
FEWEST = 3  # numbers that a factor without a name must explain
NAMELESS = 8  # the rank of a number that has no name
# Entries that are not right by chance, and how much nearer one that is nearly right has to come.
_ENOUGH, _NEARER = 6, 0.01
_PATIENCE = 1.0  # seconds of work: with another operand a loop may have no end
_NEWTON = 8
_HERE = 12  # edits that are right at the given sizes alone, before one is told
_LEAST = 1e-12  # what a gradient may change by where nothing that reaches it does

IsRight = Callable[[int, torch.Tensor], bool]


class Right(NamedTuple):
    """What makes a rule right."""

    said: str = ""  # one sentence; empty where nothing was found
    mend: str = ""  # what to do


@dataclass
class _Search:
    """The edits of one rule."""

    rule: Rule
    source: Written
    only: int  # the position of the answer that is wrong
    pair: Pair  # that expected and got
    is_right: IsRight
    noted: Watch = field(default_factory=lambda: Watch(noting=True))
    watch: Watch = field(default_factory=Watch)
    function: Callable[..., Any] | None = None
    names: dict[Any, Sequence[Name]] = field(default_factory=dict)
    is_general: bool = False  # whether the edit judged last is right at other sizes

    def starts(self) -> bool:
        """Whether the source answers what the rule does, or fails as it does."""
        try:
            as_it_is = self.rule.call(self.source.watched(self.noted))
            self.function = self.source.watched(self.watch)
        except Exception:  # a source that is not that of the function
            return False
        own = self.own(as_it_is)
        if as_it_is is None or not self.pair.got.any():
            return bool(self.noted.first)
        self.rule.base = as_it_is
        got = self.pair.got
        return own is not None and are_close(got, own, self.pair.difference.close)

    def own(self, answers: Sequence[torch.Tensor] | None) -> torch.Tensor | None:
        """The answer that is wrong; ``None`` where its shape is another, or it is not finite."""
        found = None if answers is None else answers[self.only]
        if found is None or found.shape != self.pair.got.shape or not found.isfinite().all():
            return None
        if found.is_complex() > self.pair.got.is_complex():
            return None
        return found.to("cpu", self.pair.got.dtype)

    def answers(self, rewrite: Rewrite) -> list[torch.Tensor] | None:
        """All answers with expressions replaced."""
        try:
            self.watch.instead = {
                e.key: compile(text.strip(), "<edit>", "eval") for e, text in rewrite.texts.items()
            }
        except (SyntaxError, ValueError):
            return None
        self.watch.until = time.process_time() + _PATIENCE
        return self.rule.call(self.function) if self.function else None

    def gap(self, answers: Sequence[torch.Tensor] | None) -> float:
        """How far the answer is off then, beside its largest entry."""
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
        return 0.0 if few or not self.rule.base else min(CLOSE, _NEARER * self.gap(self.rule.base))

    def keeps(self, answers: Sequence[torch.Tensor]) -> bool:
        """Whether the other answers are right, or as they were."""
        return all(
            k == self.only
            or (len(self.rule.base) > k and torch.equal(found, self.rule.base[k]))
            or self.is_right(k, found)
            for k, found in enumerate(answers)
        )

    def every(self) -> list[Rewrite]:
        """All edits, the likeliest first."""
        found: list[Rewrite] = []
        for source in self.source.rules:
            for expression in source.expressions:
                if expression.key in self.noted.first:
                    names = self.names_at(expression)
                    found += rewrites(expression, self.noted, names)
                    found += self.factors(expression)
        lowering = [
            r for r in found if r.rank == 3 and len(r.texts) == 1 and _lowers(r, self.noted)
        ]
        if len(lowering) > 1:
            texts = {e: text for r in lowering for e, text in r.texts.items()}
            found.append(Rewrite(3, texts))
        found += self.turned_round()
        return sorted(found, key=lambda r: (r.rank, sum(map(len, r.texts.values()))))

    def turned_round(self) -> Iterator[Rewrite]:
        """A loop along a dimension from its other end, and its results put back in order."""
        whole = [e for e in self.source.expressions if e.is_whole]
        for e in self.source.expressions:
            looped = self.noted.first.get(e.key) if e.is_looped else None
            for other in whole if isinstance(looped, torch.Tensor) else ():
                if isinstance(self.noted.first.get(other.key), torch.Tensor):
                    texts = {x: f"{x.atom}.flip(0)" for x in (e, other)}
                    yield Rewrite(6, texts)

    def names_at(self, expression: Expression) -> Sequence[Name]:
        if expression.place not in self.names:
            self.names[expression.place] = names_at(expression, self.noted)
        return self.names[expression.place]

    def factors(self, e: Expression) -> Iterator[Rewrite]:
        """The number by which it is to be multiplied, or that it is to be."""
        value = self.noted.first[e.key]
        if isinstance(value, torch.Tensor) and is_continuous(value) and value.any():
            twice = self.own(self.answers(Rewrite(0, {e: f"2 * ({e.text})"})))
            if twice is None or torch.equal(twice, self.pair.got):
                return
            factor = 1 + self.pair.share_of(twice - self.pair.got)
            if self.pair.equal(self.pair.got + (factor - 1) * (twice - self.pair.got)):
                yield from self.named(e, factor)
        elif type(value) is float:
            same = [o for o in e.rule.expressions if o.text == e.text and o.key in self.noted.first]
            for some in [[e], same][: 1 + (len(same) > 1 and same[0] is e)]:
                number = self.followed(some, value)
                if number is not None:
                    yield Rewrite(NAMELESS, dict.fromkeys(some, f"{number:.6g}"))

    def named(self, e: Expression, factor: float) -> Iterator[Rewrite]:
        text = e.factor
        if abs(factor) < CLOSE:
            yield Rewrite(3, {e: f"0 * {text}"})
        elif abs(factor + 1) < CLOSE:
            yield Rewrite(2, {e: f"-{text}"})
        else:
            sign = "-" * (factor < 0)
            yield from (
                Rewrite(rank, {e: f"{sign}{by.format(text)}"})
                for rank, by in named_factors(abs(factor), numbers_at(self.names_at(e)))
            )
            if int(self.pair.known.sum()) >= FEWEST:
                yield Rewrite(NAMELESS, {e: f"{factor:.6g} * {text}"})

    def followed(self, some: Sequence[Expression], start: float) -> float | None:
        """The number that makes the answer right, by Gauss-Newton steps; ``None`` if it is none."""
        value, pair = start, self.pair
        if int(pair.known.sum()) < FEWEST:
            return None
        for _ in range(_NEWTON):
            step = 1e-6 * max(abs(value), 1e-3)
            at, beside = (
                self.own(self.answers(Rewrite(0, dict.fromkeys(some, repr(n)))))
                for n in (value, value + step)
            )
            if at is None or beside is None:
                return None
            if pair.equal(at):
                return value if value != start else None
            if torch.equal(at, beside):
                return None
            value += step * replace(pair, got=at).share_of(beside - at)
        return None

    def fitted(self, until: float) -> Iterator[Rewrite]:
        """Factors and terms that are products of what is at hand."""
        tried: list[torch.Tensor] = []
        every = (e for source in self.source.rules for e in source.expressions)
        for e in (e for e in every if e.key in self.noted.first and e.is_whole):
            value, needed = self.wanted(e, self.noted.first[e.key])
            if needed is None or time.process_time() > until:
                continue
            names, text = self.names_at(e), e.factor
            ratio = needed / value
            if bool((value != 0).all()) and not any(_is_like(ratio, other) for other in tried):
                tried.append(ratio)
                for by in products(ratio, names):
                    sign, bare = ("-", by[1:]) if by.startswith("-") else ("", by)
                    yield Rewrite(6, {e: f"{sign}{text} * {bare}"})
            term = needed - value
            for by in products(term, names):
                joined = f"- {by[1:]}" if by.startswith("-") else f"+ {by}"
                yield Rewrite(6, {e: f"{e.text} {joined}"})
            yield from (Rewrite(6, {e: by}) for by in products(needed, names))

    def wanted(self, e: Expression, value: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What it was and what it has to be, where each entry of the answer hangs on one of it."""
        got = self.pair.got
        zero = torch.zeros_like(got)
        if got.is_complex() or not bool(self.pair.known.all()):
            return zero, None
        if value is None:
            return zero, self.pair.expected
        if not is_plain(value) or not value.is_floating_point() or value.shape != got.shape:
            return zero, None
        one, two = (self.own(self.answers(Rewrite(0, {e: f"({e.text}) + {n}"}))) for n in (1, 2))
        if one is None or two is None:
            return zero, None
        by = one - got
        close = CLOSE * float(by.abs().max())
        if not by.all() or bool((two - one - by).abs().max() > close):
            return zero, None
        # A sum would have moved by all entries: of one alone, the others stay.
        mixed = self.own(self.answers(Rewrite(0, {e: _one_more(e.text)})))
        if mixed is None or bool(((mixed - got).reshape(-1)[1:].abs() > close).any()):
            return zero, None
        value = value.detach().to("cpu", got.dtype)
        return value, value + (self.pair.expected - got) / by

    def told(self, rewrite: Rewrite, gap: float = 0.0) -> Right:
        """The edit in words, once it is written into the source, compiled and judged."""
        for loose in (False, True):
            texts = {e.node: f"({t})" if loose else t for e, t in rewrite.texts.items()}
            rules = {e.node: e.rule for e in rewrite.texts}
            with suppress(Exception):  # no code, or none that runs
                (owner,) = {id(rule): rule for rule in rules.values()}.values()
                function = self.source.replaced(owner, texts)
                answers = self.rule.call(function)
                near = self.gap(answers) <= max(gap, self.pair.difference.close)
                if answers is not None and near and (gap or self.is_judged_right(function)):
                    return self.words(owner, texts, answers, gap)
        return Right()

    def is_judged_right(self, function: Callable[..., Any]) -> bool:
        """Whether the Function with another rule has no wrong derivative, and at other sizes."""
        if self.rule.does == "jvp":
            return True
        undo = around(back=lambda method, ctx, *given: function(ctx, *given))
        subject = mended(self.rule.probe.subject, [undo])
        if subject is None:
            return False
        there = replace(self.rule.probe, subject=subject)
        self.is_general = self.larger is not None and self.is_right_at(there.at(self.larger))
        return self.is_right_at(there)

    def is_right_at(self, probe: Probe) -> bool:
        with suppress(Exception):  # refused there
            return not judge(probe, self.only).is_wrong
        return False

    @cached_property
    def larger(self) -> Arguments | None:
        """Arguments of other sizes, where forward takes them."""
        probe = self.rule.probe
        with suppress(Exception):
            found = larger(probe.inputs, probe.generator("larger"))
            if found is not None:
                probe.at(found).output_values()
                return found
        return None

    def words(self, owner: Written, texts: Any, answers: Any, gap: float) -> Right:
        others = [k for k in range(len(answers)) if k != self.only]
        all_right = all(self.is_right(k, answers[k]) for k in others)
        called = self.rule.called if all_right else f"That {self.rule.answered} alone"
        but = f", but for {100 * gap:.2g} % of the largest entry," * (gap > 0)
        shown: dict[Any, dict[Any, str]] = {}
        for node, text in texts.items():
            shown.setdefault(owner.shown(node), {})[node] = text
        edits = [
            (_line(owner.spliced(inner, node)), _line(owner.text(node)), owner.where(node))
            for node, inner in shown.items()
        ]
        said = " and ".join(f"`{new}` for `{old}` at {where}" for new, old, where in edits)
        return Right(f"{called} is right{but} with {said}.", f"{EDIT}{said[1:]}.")


def _one_more(text: str) -> str:
    """An expression with one more at its first entry."""
    zeros = f"({text}).new_zeros(({text}).shape)"
    first = f"{zeros}.reshape(-1).index_fill(0, {zeros}.new_zeros(1).long(), 1)"
    return f"({text}) + {first}.reshape(({text}).shape)"


def _is_like(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=CLOSE)


def _line(text: str) -> str:
    return " ".join(text.split())


def _lowers(rewrite: Rewrite, noted: Watch) -> bool:
    ((e, text),) = rewrite.texts.items()
    value = noted.first[e.key]
    if not (
        isinstance(value, torch.Tensor) and value.is_floating_point() and hasattr(e.node, "func")
    ):
        return False
    owner = getattr(e.node.func, "value", None)
    of = None if owner is None else noted.first.get(e.rule.key(owner))
    if owner is None or text != e.rule.text(owner):
        return False
    whole = isinstance(of, torch.Tensor) and of.is_floating_point()
    return whole and torch.finfo(of.dtype).eps < torch.finfo(value.dtype).eps


def right_edit(
    rule: Rule, only: int, difference: Difference, is_right: IsRight, until: float
) -> Right:
    """Name the edit after which a rule is right.

    Of an edit that leaves another answer wrong, which is that of another fault then, it says so;
    one that makes another answer wrong is none.

    Arguments:
        rule: the rule that is wrong.
        only: the position of the input whose gradient that is, or of the output whose tangent.
        difference: what was expected and got.
        is_right: tells whether a tensor is the answer at a position.
        until: when time is over, in seconds of the process.

    Returns:
        What is to be edited; empty where no edit that was tried makes the rule right.
    """
    pair = Pair.of(difference)
    source = written(rule.method) if pair is not None and rule.is_had() else None
    if pair is None or source is None:
        return Right()
    search = _Search(rule, source, only, pair, is_right)
    if not search.starts():
        return Right()
    nearest, nearly, here = search.nearly, None, [Right()]
    for rewrite in itertools.chain(search.every(), search.fitted(until)):
        if time.process_time() > until:
            break
        answers = search.answers(rewrite)
        gap = search.gap(answers)
        if answers is None or not search.keeps(answers):
            continue
        if gap <= pair.difference.close:
            right = search.told(rewrite)
            if right.said and (search.is_general or search.larger is None):
                return right
            here += [right] * bool(right.said)  # a size that is a number by chance, for example
            if len(here) > _HERE:
                break
        elif rewrite.rank < NAMELESS and gap < nearest:
            nearest, nearly = gap, rewrite
    if len(here) == 1 and nearly is not None:
        return search.told(nearly, nearest)
    return here[min(1, len(here) - 1)]
