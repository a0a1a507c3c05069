"""One edit of a wrong rule that makes it right, in the author's source.

The rule is called again and again with expressions replaced (`_search`), on the context that
forward has left; what it answers is compared with the numbers expected. An edit that is right there
is written into the source, compiled, and judged as any Function is, at other points, sizes and
options: what is printed has been run.
"""

import ast
import heapq
import itertools
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from pullback.conformance.cause._judged import Grade, Judge
from pullback.conformance.cause._rule import Rule
from pullback.conformance.cause._search import NAMELESS, IsRight, Search
from pullback.conformance.comparison._changes import Difference, Pair
from pullback.conformance.source._bounds import without_bounds
from pullback.conformance.source._branches import branch_not_run
from pullback.conformance.source._names import Rewrite, is_flag, is_number, lowers
from pullback.conformance.source._rewrites import rewrites
from pullback.conformance.source._sources import written
from pullback.conformance.source._statements import statements
from pullback.conformance.source._twins import twins
from pullback.conformance.source._vain import is_vain
from pullback.conformance.source._written import Edit, Expression, in_words

__all__ = ["EDIT", "Right", "right_edit"]

EDIT = "Write `"
"""How each edit begins."""
# Seconds by the clock after which a rule that takes less than this share of them waits, and no end
# is seen of it.
_LONGEST, _SHARE = 15.0, 0.05
_BETTER = 1.0  # seconds of work, once there is an edit, for one that is right in more ways
_SEVERAL = 12  # edits of a rule that are not right in all ways: it is tried no further
_DIGITS = 5  # of a number that is short to write
_FACTOR = 2  # the least rank of one by a factor
_STEPS = 64  # statements of a run that is not slow
_Order = tuple[int, int, int, int]


class Right(NamedTuple):
    """What makes a rule right."""

    said: str = ""  # one sentence; empty where nothing was found
    mend: str = ""  # what to do
    whole: bool = False  # whether all answers are right then
    sure: bool = False  # whether it is so wherever it was looked


@dataclass(frozen=True)
class _Repair:
    """Writes edits into the source."""

    search: Search
    judge: Judge

    def likeliest(self) -> Iterator[tuple["_Repair", Rewrite]]:
        """All edits of the rule, the likeliest first."""
        for rewrite in _likeliest(self.search):
            yield self, rewrite

    def told(self, rewrite: Rewrite, gap: float = 0.0) -> Right:
        """The edit in words, once it is written into the source, compiled and judged."""
        search = self.search
        for loose in (False, True):
            edit = {**rewrite.texts, **search.beside}
            texts = {e: f"({t})" if loose else t for e, t in edit.items()}
            with suppress(Exception):  # no code, or none that runs
                function = search.source.replaced(texts)
                answers = search.rule.call(function)
                near = search.gap(answers) <= max(gap, search.pair.difference.close)
                if answers is None or not near:
                    continue
                grade = self.judge.grade(function, nearly=gap > 0)
                if grade:
                    others = (k for k in range(len(answers)) if k != search.only)
                    whole = all(search.is_right(k, answers[k]) for k in others)
                    whole = whole and self.judge.keeps_constants(function)
                    parts = edit.items()
                    other = max(branch_not_run(e, text, search.noted) for e, text in parts)
                    return self.words(texts, gap, whole=whole, grade=grade, other=other)
        return Right()

    def words(self, edit: Edit, gap: float, *, whole: bool, grade: Grade, other: int) -> Right:
        """An edit as it is told, with the line of which it has seen one branch alone."""
        rule = self.search.rule
        called = rule.called if whole else f"That {rule.answered} alone"
        but = f", but for {100 * gap:.2g} % of the largest entry," * (gap > 0)
        said = in_words(edit)
        alone = ", with these arguments alone" * (grade is Grade.HERE)
        unseen = f", where line {other} goes the way that it went here" * bool(other)
        # Whoever made an edit that is right here alone would be led astray.
        also = f", if that is right too where line {other} goes the other way" * bool(other)
        mend = "" if alone else f"{EDIT}{said[1:]}{also}."
        told = f"{called} is right{but} with {said}{alone or unseen}."
        return Right(told, mend, whole, grade is Grade.BESIDE and not other)


def right_edit(
    rules: Sequence[Rule], only: int, difference: Difference, is_right: IsRight, until: float
) -> Right:
    """Name the edit after which a Function is right.

    Of an edit that leaves another answer wrong, which is that of another fault then, it says so;
    one that makes another answer wrong is none.

    Arguments:
        rules: those that may be wrong, the likeliest first.
        only: the position of the input whose gradient that is, or of the output whose tangent.
        difference: what was expected and got.
        is_right: tells whether a tensor is the answer at a position.
        until: when time is over, in seconds of the process.

    Returns:
        What is to be edited; empty where no edit that was tried makes the rule right.
    """
    pair = Pair.of(difference)
    if pair is None:
        return Right()
    nearest, nearly, found = math.inf, None, [Right()]
    several: Counter[int] = Counter()
    began, worked = time.monotonic(), time.process_time()
    for repair, rewrite in _edits(rules, only, pair, is_right, until):
        search = repair.search
        now, waited = time.process_time(), time.monotonic() - began
        if now > until or (waited > _LONGEST and now - worked < _SHARE * waited):
            break
        if several[id(search)] > _SEVERAL:
            continue
        answers = search.answers(rewrite)
        gap = search.gap(answers)
        near = rewrite.rank < NAMELESS and gap < min(nearest, search.nearly)
        # What becomes of the other answers is asked last: it takes finite differences.
        if answers is None or not (gap <= difference.close or near) or not search.keeps(answers):
            continue
        if is_vain(rewrite.texts) or search.goes_elsewhere(rewrite):
            continue
        if gap > difference.close:
            nearest, nearly = gap, (repair, rewrite)
            continue
        right = repair.told(rewrite)
        if right.whole and right.mend:
            if right.sure:
                return right
            until = min(until, time.process_time() + _BETTER)
        found += [right] * bool(right.said)
        several[id(search)] += bool(right.said)
    best = max(found, key=lambda r: (bool(r.said), bool(r.mend), r.whole, r.sure))
    return best if best.said or nearly is None else nearly[0].told(nearly[1], nearest)


def _edits(
    rules: Sequence[Rule], only: int, pair: Pair, is_right: IsRight, until: float
) -> Iterator[tuple[_Repair, Rewrite]]:
    """The edits of all rules; what takes several factors at once, last."""
    repairs = list[_Repair]()
    for rule in rules:
        source = written(rule.method) if rule.is_had() else None
        search = Search(rule, source, only, pair, is_right) if source is not None else None
        if search is not None and search.starts():
            repairs.append(_Repair(search, Judge(rule, only)))
    # A number that is written in one of the rules is likelier than one that another rule lacks.
    for repair in repairs:
        yield from ((repair, rewrite) for rewrite in _numbers_off(repair.search))
    left = [repair.likeliest() for repair in repairs]
    for edits in left:
        # What is unlikely in a long rule is left until what is likely in the next is tried.
        yield from _until(edits, (time.process_time() + until) / 2)
    yield from itertools.chain(*left)
    for repair in repairs:
        yield from ((repair, rewrite) for rewrite in repair.search.masks(until))
        yield from ((repair, rewrite) for rewrite in repair.search.fitted(until))
    for repair in repairs:
        unbounded = _unbounded(repair.search)
        yield from () if unbounded is None else replace(repair, search=unbounded).likeliest()


def _numbers_off(search: Search) -> Iterator[Rewrite]:
    """Factors that are written as numbers and off by what the whole answer is off by."""
    pair = search.pair
    by = 1 + pair.share_of(pair.got)
    if by <= 0 or not (pair.tells_ratios and pair.equal(by * pair.got)):
        return
    for e in search.evaluated:
        own: Any = getattr(e.node, "value", None) if isinstance(e.node, ast.Constant) else None
        match e.rule.parent[e.node]:
            case ast.BinOp(left=one, op=ast.Mult() | ast.Div() as op, right=two) as product if (
                is_number(own)
            ):
                beside = two if one is e.node else one
                divides = isinstance(op, ast.Div)
                number = own / by if divides and two is e.node else own * by
                number = round(number, _DIGITS)
                if number == 1 and not (divides and one is e.node):
                    yield Rewrite(0, {Expression(e.rule, product): e.rule.text(beside)})
                elif number and number == round(4 * number) / 4:
                    yield Rewrite(1, {e: f"{number:g}"})


def _unbounded(search: Search) -> Search | None:
    """The search where nothing is bounded; ``None`` where nothing is, or no numbers come of it."""
    bounds = without_bounds(search.evaluated, search.noted)
    answers = search.answers(Rewrite(0, bounds)) if bounds else None
    got = search.own(answers)
    if answers is None or got is None:
        return None
    pair = replace(search.pair, got=got)
    return replace(search, pair=pair, base=answers, beside=bounds, doubled={})


def _until(
    edits: Iterator[tuple[_Repair, Rewrite]], end: float
) -> Iterator[tuple[_Repair, Rewrite]]:
    """Those that are asked for before a time of the process; the others are left."""
    for edit in edits:
        yield edit
        if time.process_time() > end:
            return


def _likeliest(search: Search) -> Iterator[Rewrite]:
    """All edits, the likeliest first.

    What hangs on an expression is asked when one of its edits may be the next: that takes a
    call, and a long one of what loops over entries.
    """
    known = search.evaluated
    own = [[*rewrites(e, search.noted, *search.names_at(e), search.rules)] for e in known]
    queue: list[tuple[_Order, tuple[int, int], Rewrite | None]] = []
    for n, (e, found) in enumerate(zip(known, own, strict=True)):
        rank = min([0 if is_flag(e) else _FACTOR, *(rewrite.rank for rewrite in found)])
        queue.append(((0, rank + _far(search, e), 0, 0), (n, -1), None))
    for k, rewrite in enumerate(_of_several(search, itertools.chain(*own))):
        queue.append((_order(search, 0, rewrite), (len(known), k), rewrite))
    heapq.heapify(queue)
    while queue:
        _, (n, _), next_ = heapq.heappop(queue)
        if next_ is not None:
            yield next_
            continue
        for k, (against, rewrite) in enumerate(_edits_of(search, known[n], own[n])):
            heapq.heappush(queue, (_order(search, against, rewrite), (n, k), rewrite))


def _edits_of(
    search: Search, e: Expression, own: Sequence[Rewrite]
) -> Iterator[tuple[int, Rewrite]]:
    """Those of one expression, and how much speaks against each."""
    against, lost = search.reach(e), not search.pair.got.any()
    if against is None:
        return
    # A flag loses an answer; one that is there, and wrong, was computed so.
    against += is_flag(e) and not lost
    yield from ((against, rewrite) for rewrite in (*own, *search.factors(e)))
    if lost and is_flag(e) and type(search.noted.first[e.key]) is int:
        yield 0, Rewrite(0, {e: f"{search.rule.places[search.only]}"})


def _of_several(search: Search, own: Iterable[Rewrite]) -> Iterator[Rewrite]:
    """Those of several expressions at once, and of statements."""
    texts = {
        e: text for r in own if len(r.texts) == 1 for e, text in r.texts.items()
        if lowers(e, text, search.noted) and search.reach(e) is not None
    }  # fmt: skip
    if len(texts) > 1:
        yield Rewrite(3, texts)
    yield from _turned_round(search)
    for source in search.rules if search.rule.does != "fill" else ():
        yield from statements(source, search.noted)
        yield from twins(source, search.noted)


def _far(search: Search, e: Expression) -> int:
    """By how many calls the rule calls it, and more where it is slow to be tried there.

    Where nothing is answered at all, what a branch is taken by is near wherever it stands.
    """
    if e.is_asked and not search.pair.got.any():
        return 0
    slow = search.noted.steps[e.key[0]] // _STEPS
    return search.rules[e.rule] + slow.bit_length() * bool(search.rules[e.rule])


def _order(search: Search, against: int, rewrite: Rewrite) -> _Order:
    """The likeliest first: of the rule itself before what others may call too, short ones."""
    far = max(_far(search, e) for e in rewrite.texts)
    return against, rewrite.rank + far, far, sum(map(len, rewrite.texts.values()))


def _turned_round(search: Search) -> Iterator[Rewrite]:
    """A loop along a dimension from its other end, and its results put back in order."""
    whole = [e for e in search.source.rule.expressions if e.is_whole]
    for e in search.source.rule.expressions:
        looped = search.noted.first.get(e.key) if e.is_looped else None
        for other in whole if isinstance(looped, torch.Tensor) else ():
            if isinstance(search.noted.first.get(other.key), torch.Tensor):
                texts = {x: f"{x.atom}.flip(0)" for x in (e, other)}
                yield Rewrite(6, texts)
