"""One edit of a wrong backward that makes it right: what is edited, how, and in which line.

The operations of the author's backward are noted as torch dispatches them, and each is run in
another way: an operand is another tensor at hand, a number another one, the result is multiplied,
negated, transposed. So does a repair of programs by mutation (Le Goues et al., "GenProg", IEEE
Transactions on Software Engineering 38, 2012); the test is here by finite differences. How large a
factor has to be follows from two runs, where backward is linear in what is multiplied.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from pullback.conformance._arguments import is_continuous
from pullback.conformance._changes import (
    NAMELESS,
    Difference,
    Pair,
    changes,
    is_alike,
)
from pullback.conformance._operations import Backward, Edit, Run, Step, edited
from pullback.conformance._search import FEWEST, IsRight, Right, Search, Tried
from pullback.conformance._substitutes import Variant, is_plain, substitutes
from pullback.internal.torch import pytree

__all__ = ["right_edit"]


_BESIDE = {-1: "one less", 1: "one more"}
_NEWTON = 8

_Edited = Iterator[Variant]


def right_edit(
    backward: Backward, only: int, difference: Difference, is_right: IsRight, until: float
) -> Right:
    """Name the edit after which backward is right.

    Of an edit that leaves another gradient wrong, which is that of another fault then, it says so;
    one that makes another gradient wrong is none.

    Arguments:
        backward: the backward that is wrong.
        only: the position of the input whose gradient that is.
        difference: the gradient expected and got, and what a number in it may be.
        is_right: tells whether a tensor is the gradient of the input at a position.
        until: when time is over, in seconds of the process.

    Returns:
        What is to be edited; empty where no edit that was tried makes backward right.
    """
    pair = Pair.of(difference)
    base = None if pair is None else backward.answers()
    if pair is None or base is None or not backward.steps:
        return Right()
    search = Search(backward, tuple(backward.steps), only, pair, base, is_right)
    every = itertools.takewhile(lambda tried: time.process_time() < until, _edits(search))
    alone, nearly, nearest = Right(), Right(), search.nearly
    for tried in sorted(every, key=search.order):
        if time.process_time() > until:
            break
        answers = search.answers(tried.steps, tried.edit)
        gap = search.gap(answers)
        if answers is None or gap > pair.difference.close:
            if tried.rank < NAMELESS and gap < nearest and search.are_left(answers or base):
                nearly, nearest = search.told(tried, gap=gap), gap
        elif search.are_right(answers):
            return search.told(tried)
        elif not alone.said and search.are_left(answers):
            alone = search.told(tried, alone=True)
    return alone if alone.said else nearly


def _edits(search: Search) -> Iterator[Tried]:
    """Edits of each place of the source, the whole of backward among them, and of its operands."""
    for number in search.first:
        step = search.steps[number]
        own = itertools.chain(_operands(search, number), _plain(search, number))
        kinds: list[_Edited] = [own]
        if number and is_plain(step.found):
            of_result = partial(_of_result, step)
            some = is_continuous(step.found) and step.found.any()
            if some and search.share(number, of_result) is None:
                continue  # no edit of it reaches the gradient
            kinds.insert(0, _changed(search, number, step.found, of_result))
        kinds.insert(0, substitutes(step, search.hand) if number else iter(()))
        for rank, edit, said, becomes in itertools.chain.from_iterable(kinds):
            yield Tried(rank, [number], edit, f"{step.said} {said}", becomes)
        if not number:
            yield from _of_the_whole(search)
    lowering = [number for number in search.first if _lowers(search.steps[number])]
    for some in [[number] for number in lowering] + [lowering] * (len(lowering) > 1):
        said = " and ".join(search.steps[number].said for number in some)
        is_are = "is" if len(some) == 1 else "are"
        yield Tried(3, some, lambda run, leaves: leaves[0], f"{said} {is_are} left out")


def _of_the_whole(search: Search) -> Iterator[Tried]:
    """Edits of what forward left for backward, and of the order in which backward goes along it."""
    whole, names = search.steps[0], search.backward.names
    for k, (name, leaf) in enumerate(zip(names, whole.leaves, strict=True)):
        if type(leaf) in (int, float):
            for rank, value, said, _ in _meant(search, 0, k):
                edit = edited(k, lambda _, value=value: value)
                yield Tried(rank, [0], edit, f"{name} is {said} not {leaf:.6g}")
    for dim, size in enumerate(whole.leaves[-1].shape if is_plain(whole.leaves[-1]) else ()):
        said = f"it runs along dimension {dim} from the other end"
        if size > 1:
            yield Tried(6, [0], partial(_turned_round, dim, size), said)


def _turned_round(dim: int, size: int, run: Run, leaves: Sequence[Any]) -> Any:
    """Backward of what runs along a dimension the other way, put the right way round again."""

    def turn(value: Any) -> Any:
        fits = isinstance(value, torch.Tensor) and value.ndim > dim and value.shape[dim] == size
        return value.flip(dim) if fits else value

    return pytree.tree_map(turn, run([turn(leaf) for leaf in leaves]))


def _lowers(step: Step) -> bool:
    """Whether it rounds the numbers that it is given to fewer digits, and does nothing else."""
    found, whole = step.found, step.leaves[0] if step.leaves else None
    if not (isinstance(found, torch.Tensor) and isinstance(whole, torch.Tensor)):
        return False
    if not (found.is_floating_point() and whole.is_floating_point()):
        return False
    finer = torch.finfo(found.dtype).eps > torch.finfo(whole.dtype).eps
    return finer and torch.equal(found, whole.to(found.dtype))


def _operands(search: Search, number: int) -> _Edited:
    """Another operand, or two of them exchanged."""
    step = search.steps[number]
    tensors = {k: t for k, t in enumerate(step.leaves) if is_plain(t)}
    known = {k: search.name(t) or search.source(t) for k, t in tensors.items()}
    other = {} if number else dict(enumerate(search.backward.names))
    names = {k: name or other.get(k) or f"its operand {k}" for k, name in known.items()}
    for k, tensor in tensors.items():
        if not number or search.is_shared(tensor):  # else an edit of where it comes from
            edit = partial(edited, k)
            yield from _changed(search, number, tensor, edit, (k, names[k]))
            yield from _factors(search, step, tensor, edit, f"reads {names[k]}")
        for rank, others in ((4, search.hand), (6, search.made)) if known[k] else ():
            for other, value in others.items():
                if is_alike(value, tensor) and other != names[k] and not torch.equal(value, tensor):
                    edit = edited(k, lambda t, value=value: value.clone())  # a step may write there
                    called = step.source.called(value)
                    text = f"{called} ({other})" if called and called not in other else other
                    yield Variant(rank, edit, f"reads {text}, not {names[k]}",
                                  step.source.with_operands({k: called}))  # fmt: skip
    for k, n in itertools.combinations(tensors, 2):
        if is_alike(tensors[k], tensors[n]):
            one, other = (search.name(tensors[i]) or f"its operand {i}" for i in (k, n))
            said = f"reads {other} for {one}, and the other way round"
            texts = {k: step.source.operand(n), n: step.source.operand(k)}
            yield Variant(2, _exchanged(k, n), said, step.source.with_operands(texts))


def _plain(search: Search, number: int) -> _Edited:
    """Another number or flag."""
    step = search.steps[number]
    for k, leaf in enumerate(step.leaves):
        if type(leaf) is bool:
            becomes = step.source.with_operands({k: f"{not leaf}"})
            yield Variant(
                1, edited(k, lambda flag: not flag), f"reads {not leaf}, not {leaf}", becomes
            )
        elif type(leaf) in (int, float) and number:
            for rank, value, said, text in _meant(search, number, k):
                edit = edited(k, lambda _, value=value: value)
                becomes = step.source.with_operands({k: text})
                yield Variant(rank, edit, f"reads {said} not {leaf:.6g}", becomes)
            # What is written once may be several operations: a comparison, and its truth for `if`.
            same = (s for s in search.steps if s.place == step.place)
            turns = [s.leaves[k] for s in same if k < len(s.leaves)]
            for more, said in _BESIDE.items() if len({*turns}) > 1 and type(leaf) is int else ():
                edit = edited(k, lambda n, more=more: n + more)
                text = step.source.operand(k) and f"{step.source.operand(k)} {'+-'[more < 0]} 1"
                yield Variant(1, edit, f"reads {said} than {', '.join(map(str, turns[:3]))}, ...",
                              step.source.with_operands({k: text}))  # fmt: skip


def _meant(search: Search, number: int, place: int) -> Iterator[tuple[int, float, str, str]]:
    """Numbers that may be meant for another one: how likely, what it is, how it is written."""
    leaf, source = search.steps[number].leaves[place], search.steps[number].source
    whole, difference = isinstance(leaf, int), search.pair.difference
    for name, n in {n: (name, n) for name, n in reversed([*difference.numbers.items()])}.values():
        called = source.called(n) or (name if name.startswith("ctx.") else "")
        path = f"{called} ({name})" if called not in ("", name) else name
        if n != leaf:
            # An integer may be a dimension, for example.
            yield 0, int(n) if whole and n == int(n) else n, f"{path}, which is {n:.6g},", called
    near = range(-2, 4) if whole else (1.0, 2.0, 0.5)
    named = {n: f"{n}," for n in sorted(near, key=lambda n: (n * leaf < 0, abs(n)))}
    texts = {n: f"{n}" for n in named}
    if not whole and leaf:
        alone = {leaf**2: "square", abs(leaf) ** 0.5: "square root", -leaf: "negative",
                 1 / leaf: "reciprocal", 1 - leaf: "complement", 2 * leaf: "double",
                 leaf / 2: "half"}  # fmt: skip
        named |= {value: f"the {said} of {leaf:.6g}, {value:.6g}," for value, said in alone.items()}
    named |= {size: f"{size}, the size of {name}," for name, size in difference.sizes.items()}
    yield from ((1, n, said, texts.get(n, "")) for n, said in named.items() if n != leaf)
    follows = None if whole or search.is_small else _followed(search, number, place)
    if follows is not None:
        yield NAMELESS, follows, f"{follows:.6g},", f"{follows:.6g}"


def _followed(search: Search, number: int, place: int) -> float | None:
    """The number that makes the gradient right, by Gauss-Newton steps; ``None`` if it is none."""
    value = start = search.steps[number].leaves[place]
    pair = search.pair
    for _ in range(_NEWTON):
        step = 1e-6 * max(abs(value), 1e-3)
        at, beside = (
            search.numbers([number], edited(place, lambda _, n=n: n)) for n in (value, value + step)
        )
        if at is None or beside is None:
            return None
        if pair.equal(at):
            return value if value != start else None
        if torch.equal(at, beside):
            return None
        value += step * replace(pair, got=at).share_of(beside - at)
    return None


def _exchanged(one: int, other: int) -> Edit:
    def edit(run: Run, leaves: Sequence[Any]) -> Any:
        found = list(leaves)
        found[one], found[other] = leaves[other], leaves[one]
        return run(found)

    return edit


def _of_result(step: Step, change: Callable[[torch.Tensor], torch.Tensor]) -> Edit:
    def edit(run: Run, leaves: Sequence[Any]) -> Any:
        found = run(leaves)
        other = change(found)
        if other.shape != found.shape:
            raise ValueError("another shape")
        return found.copy_(other) if step.changes else other.to(found.dtype)

    return edit


def _changed(
    search: Search, number: int, tensor: torch.Tensor, edit: Callable[[Any], Edit],
    of: tuple[int, str] | None = None,
) -> _Edited:  # fmt: skip
    """Another tensor, a result or an operand that is read: a factor, a term, other places."""
    source, read = search.steps[number].source, f"reads {of[1]}" if of else ""
    written = source.operand(of[0]) if of else source.text
    if tensor.dtype == torch.bool:
        yield Variant(3, edit(torch.logical_not), f"{read or 'is'} negated")
        return
    share = search.share(number, edit)
    if share is not None:
        few = int((share.abs() > search.pair.difference.close * share.abs().max()).sum()) < FEWEST
        for change in changes(search.pair, tensor, share):
            if not few or change.rank < NAMELESS:
                verb, _, how = change.edit.partition(" ")
                said = f"{read} {'with ' * (verb == 'has')}{how}" if read else change.edit
                text = change.write(written, lambda name: source.called(search.all_at_hand[name]))
                becomes = source.with_operands({of[0]: text}) if of else text
                yield Variant(change.rank, edit(change.apply), said, becomes)


def _factors(search: Search, step: Step, tensor: torch.Tensor, edit: Callable[[Any], Edit],
             read: str) -> _Edited:  # fmt: skip
    """A factor that stands elsewhere in backward, and is forgotten where a tensor is read."""
    for name, other in search.made.items() if is_continuous(tensor) else ():
        if is_continuous(other) and is_alike(other, tensor) and name != step.said:
            yield Variant(6, edit(lambda t, by=other: t * by), f"{read} multiplied by {name}")
