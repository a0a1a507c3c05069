"""The edits of a rule that are tried one by one, the likeliest first."""

import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence

import torch

from pullback.conformance._place import Rewrite, is_flag, lowers
from pullback.conformance._rewrites import rewrites
from pullback.conformance._search import Search
from pullback.conformance._statements import statements
from pullback.conformance._twins import twins
from pullback.conformance._written import Expression

__all__ = ["likeliest"]

_FACTOR = 2  # the least rank of one by a factor
_STEPS = 64  # statements of a run that is not slow
_Order = tuple[int, int, int, int]


def likeliest(search: Search) -> Iterator[Rewrite]:
    """All edits, the likeliest first.

    What hangs on an expression is asked when one of its edits may be the next: that takes a
    call, and a long one of what loops over entries.
    """
    known = [e for e in search.expressions if e.key in search.noted.first]
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
