"""One edit of a wrong backward that makes it right: what is edited, how, and in which line.

The operations of the author's backward are noted as torch dispatches them, and each is run in
another way: an operand is another tensor at hand, a number another one, the result is multiplied,
negated, transposed. So does a repair of programs by mutation (Le Goues et al., "GenProg", IEEE
Transactions on Software Engineering 38, 2012); the test is here by finite differences. How large a
factor has to be follows from two runs, where backward is linear in what is multiplied.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeGuard

import torch

from pullback.conformance._arguments import is_continuous
from pullback.conformance._changes import NAMELESS, Difference, Pair, changes, is_alike, is_same
from pullback.conformance._operations import Backward, Edit, Run, Step, edited
from pullback.conformance._probe import Tensors
from pullback.internal.torch import pytree

__all__ = ["right_edit"]

_FEWEST = 3  # numbers that a factor without a name must explain

_COMPARISONS = {
    "<": torch.lt, "<=": torch.le, ">": torch.gt, ">=": torch.ge, "==": torch.eq, "!=": torch.ne,
}  # fmt: skip
_OPERATORS = {
    "+": torch.add, "-": torch.sub, "*": torch.mul, "/": torch.div,
    "maximum": torch.maximum, "minimum": torch.minimum,
}  # fmt: skip
_FUNCTIONS = (
    torch.sin, torch.cos, torch.sinh, torch.cosh, torch.tanh, torch.exp, torch.expm1, torch.log,
    torch.log1p, torch.sqrt, torch.rsqrt, torch.square, torch.reciprocal, torch.abs, torch.sign,
    torch.sigmoid, torch.relu, torch.erf,
)  # fmt: skip
_SUMS = {"sum": torch.sum, "mean": torch.mean}
_BESIDE = {-1: "one less", 1: "one more"}
_NEWTON = 8
_MOST = 4  # dimensions of which every choice is tried

IsRight = Callable[[int, torch.Tensor], bool]
_Edited = Iterator[tuple[int, Edit, str]]


class _Tried(NamedTuple):
    """An edit of a step or several, in words; those of a lower rank are tried first."""

    rank: int
    steps: Sequence[int]
    edit: Edit
    said: str


def right_edit(
    backward: Backward, only: int, difference: Difference, is_right: IsRight, until: float
) -> str:
    """One sentence that names the edit after which backward is right.

    Of an edit that leaves another gradient wrong, which is that of another fault then, it says so;
    one that makes another gradient wrong is none.

    Arguments:
        backward: the backward that is wrong.
        only: the position of the input whose gradient that is.
        difference: the gradient expected and got, and what a number in it may be.
        is_right: tells whether a tensor is the gradient of the input at a position.
        until: when time is over, in seconds of the process.

    Returns:
        The sentence, or an empty text where no edit that was tried makes backward right.
    """
    pair = Pair.of(difference)
    base = None if pair is None else backward.answers()
    if pair is None or base is None or not backward.steps:
        return ""
    search, alone = _Search(backward, tuple(backward.steps), only, pair, base, is_right), ""
    every = itertools.takewhile(lambda tried: time.process_time() < until, _edits(search))
    for tried in sorted(every, key=search.order):
        if time.process_time() > until:
            break
        answers = search.answers(tried.steps, tried.edit)
        found = search.own(answers)
        if answers is None or found is None or not pair.equal(found):
            continue
        if search.are_right(answers):
            return f"{backward.called} is right where {tried.said}."
        if not alone and search.are_left(answers):
            alone = f"That {backward.answered} alone is right where {tried.said}."
    return alone


@dataclass(frozen=True)
class _Search:
    """What edits are made of."""

    backward: Backward  # runs with a step edited
    steps: Sequence[Step]  # those of backward as it is
    only: int  # the position of the input whose gradient is wrong
    pair: Pair  # that gradient expected and got
    base: Tensors  # all gradients as they are
    is_right: IsRight
    shared: set[int] = field(default_factory=set)  # the steps that another gradient reads too

    def order(self, tried: _Tried) -> tuple[int, bool, bool]:
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

    def name(self, tensor: torch.Tensor) -> str:
        return next((name for name, other in self.hand.items() if is_same(tensor, other)), "")

    @cached_property
    def made(self) -> Mapping[str, torch.Tensor]:
        """The results of the steps, by how each is written."""
        found = {self.steps[n].said: self.steps[n].found for n in reversed(self.first) if n}
        return {said: t for said, t in found.items() if _is_plain(t)}

    def source(self, tensor: torch.Tensor) -> str:
        """How the tensor is computed, where it is the result of another step."""
        found = (s.said for s in self.steps[1:] if _is_plain(s.found) and is_same(s.found, tensor))
        return next(found, "")

    def is_shared(self, tensor: torch.Tensor) -> bool:
        """Whether several operations read it, one of which may mean another one."""
        read = (leaf for n in self.first if n for leaf in self.steps[n].leaves)
        return sum(_is_plain(leaf) and is_same(leaf, tensor) for leaf in read) > 1

    def answers(self, edited: Sequence[int], edit: Edit) -> Tensors | None:
        """All gradients with steps edited, however often their places in the source are run."""
        places = {self.steps[k].place for k in edited}
        written = [k for k, other in enumerate(self.steps) if other.place in places]
        return self.backward.answers(written, edit)

    def numbers(self, edited: Sequence[int], edit: Edit) -> torch.Tensor | None:
        """The gradient that is wrong with steps edited."""
        return self.own(self.answers(edited, edit))

    def own(self, answers: Tensors | None) -> torch.Tensor | None:
        """The gradient that is wrong among all; ``None`` where it is of another shape, or not
        finite."""
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


def _is_plain(value: Any) -> TypeGuard[torch.Tensor]:
    """Whether it may be edited: a device that is given a wrong index is lost for the process."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    harmless = value.device.type == "cpu" or value.dtype == torch.bool or is_continuous(value)
    return harmless and value.numel() > 0


def _edits(search: _Search) -> Iterator[_Tried]:
    """Edits of each place of the source, the whole of backward among them, and of its operands."""
    for number in search.first:
        step = search.steps[number]
        own = itertools.chain(_operands(search, number), _plain(search, number))
        kinds: list[_Edited] = [own]
        if number and _is_plain(step.found):
            of_result = partial(_of_result, step)
            some = is_continuous(step.found) and step.found.any()
            if some and search.share(number, of_result) is None:
                continue  # no edit of it reaches the gradient
            kinds.insert(0, _changed(search, number, step.found, of_result))
            kinds += [] if step.changes else [_parts(step), _others(step), _sums(search, step)]
        for rank, edit, said in itertools.chain.from_iterable(kinds):
            yield _Tried(rank, [number], edit, f"{step.said} {said}")
        if not number:
            yield from _of_the_whole(search)
    lowering = [number for number in search.first if _lowers(search.steps[number])]
    for some in [[number] for number in lowering] + [lowering] * (len(lowering) > 1):
        said = " and ".join(search.steps[number].said for number in some)
        is_are = "is" if len(some) == 1 else "are"
        yield _Tried(3, some, lambda run, leaves: leaves[0], f"{said} {is_are} left out")


def _of_the_whole(search: _Search) -> Iterator[_Tried]:
    """Edits of what forward left for backward, and of the order in which backward goes along it."""
    whole, names = search.steps[0], search.backward.names
    for k, (name, leaf) in enumerate(zip(names, whole.leaves, strict=True)):
        if type(leaf) in (int, float):
            for rank, value, said in _meant(search, 0, k):
                edit = edited(k, lambda _, value=value: value)
                yield _Tried(rank, [0], edit, f"{name} is {said} not {leaf:.6g}")
    for dim, size in enumerate(whole.leaves[-1].shape if _is_plain(whole.leaves[-1]) else ()):
        said = f"it runs along dimension {dim} from the other end"
        if size > 1:
            yield _Tried(6, [0], partial(_turned_round, dim, size), said)


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


def _operands(search: _Search, number: int) -> _Edited:
    """Another operand, or two of them exchanged."""
    step = search.steps[number]
    tensors = {k: t for k, t in enumerate(step.leaves) if _is_plain(t)}
    known = {k: search.name(t) or search.source(t) for k, t in tensors.items()}
    other = {} if number else dict(enumerate(search.backward.names))
    names = {k: name or other.get(k) or f"its operand {k}" for k, name in known.items()}
    for k, tensor in tensors.items():
        if not number or search.is_shared(tensor):  # else an edit of where it comes from
            yield from _changed(search, number, tensor, partial(edited, k), f"reads {names[k]}")
            yield from _factors(search, step, tensor, partial(edited, k), f"reads {names[k]}")
        for rank, others in ((4, search.hand), (6, search.made)) if known[k] else ():
            for other, value in others.items():
                if is_alike(value, tensor) and other != names[k] and not torch.equal(value, tensor):
                    edit = edited(k, lambda t, value=value: value.clone())  # a step may write there
                    yield rank, edit, f"reads {other} for {names[k]}"
    for k, n in itertools.combinations(tensors, 2):
        if is_alike(tensors[k], tensors[n]):
            one, other = (search.name(tensors[i]) or f"its operand {i}" for i in (k, n))
            said = f"reads {other} for {one}, and the other way round"
            yield 2, _exchanged(k, n), said


def _plain(search: _Search, number: int) -> _Edited:
    """Another number or flag, or another way to compare."""
    step = search.steps[number]
    for k, leaf in enumerate(step.leaves):
        if type(leaf) is bool:
            yield 1, edited(k, lambda flag: not flag), f"reads {not leaf} for {leaf}"
        elif type(leaf) in (int, float) and step.place:
            for rank, value, said in _meant(search, number, k):
                yield rank, edited(k, lambda _, value=value: value), f"reads {said} for {leaf:.6g}"
            # What is written once may be several operations: a comparison, and its truth for `if`.
            same = (s for s in search.steps if s.place == step.place)
            turns = [s.leaves[k] for s in same if k < len(s.leaves)]
            for more, said in _BESIDE.items() if len({*turns}) > 1 and type(leaf) is int else ():
                edit = edited(k, lambda n, more=more: n + more)
                yield 1, edit, f"reads {said} than {', '.join(map(str, turns[:3]))}, ..."
    if getattr(step.found, "dtype", None) == torch.bool and len(step.leaves) == 2:
        for sign, compare in _COMPARISONS.items():
            yield 2, lambda run, leaves, by=compare: by(*leaves), f"compares by {sign}"


def _meant(search: _Search, number: int, place: int) -> Iterator[tuple[int, float, str]]:
    """Numbers that may be meant for another one, and how likely each is."""
    leaf = search.steps[number].leaves[place]
    whole, difference = isinstance(leaf, int), search.pair.difference
    near = range(-2, 4) if whole else (1.0, 2.0, 0.5)
    named = {n: f"{n}" for n in sorted(near, key=lambda n: (n * leaf < 0, abs(n)))}
    if not whole and leaf:
        alone = {leaf**2: "square", abs(leaf) ** 0.5: "square root", -leaf: "negative",
                 1 / leaf: "reciprocal", 1 - leaf: "complement", 2 * leaf: "double",
                 leaf / 2: "half"}  # fmt: skip
        named |= {value: f"the {said} of {leaf:.6g}, {value:.6g}," for value, said in alone.items()}
    named |= {size: f"{size}, the size of {name}," for name, size in difference.sizes.items()}
    named |= {n: f"{name}, which is {n:.6g}," for name, n in difference.numbers.items()}
    yield from ((1, value, said) for value, said in named.items() if value != leaf)
    follows = None if whole else _followed(search, number, place)
    if follows is not None:
        yield NAMELESS, follows, f"{follows:.6g}"


def _followed(search: _Search, number: int, place: int) -> float | None:
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
    search: _Search, number: int, tensor: torch.Tensor, edit: Callable[[Any], Edit], read: str = ""
) -> _Edited:
    """Another tensor, a result or an operand that is read: a factor, a term, other places."""
    if tensor.dtype == torch.bool:
        yield 3, edit(torch.logical_not), f"{read or 'is'} negated"
        return
    share = search.share(number, edit)
    if share is not None:
        few = int((share.abs() > search.pair.difference.close * share.abs().max()).sum()) < _FEWEST
        for change in changes(search.pair, tensor, share):
            if not few or change.rank < NAMELESS:
                verb, _, how = change.edit.partition(" ")
                said = f"{read} {'with ' * (verb == 'has')}{how}" if read else change.edit
                yield change.rank, edit(change.apply), said


def _factors(search: _Search, step: Step, tensor: torch.Tensor, edit: Callable[[Any], Edit],
             read: str) -> _Edited:  # fmt: skip
    """A factor that stands elsewhere in backward, and is forgotten where a tensor is read."""
    for name, other in search.made.items() if is_continuous(tensor) else ():
        if is_continuous(other) and is_alike(other, tensor) and name != step.said:
            yield 6, edit(lambda t, by=other: t * by), f"{read} multiplied by {name}"


def _parts(step: Step) -> _Edited:
    """As many entries from the other end of what an operation takes a part of."""
    whole = step.leaves[0] if step.leaves else None
    if not isinstance(whole, torch.Tensor) or whole.ndim != step.found.ndim:
        return
    for dim, (count, every) in enumerate(zip(step.found.shape, whole.shape, strict=True)):
        for side, start in (("first", 0), ("last", every - count)) if count < every else ():
            place = dim, start, count
            yield (
                4, lambda run, leaves, place=place: leaves[0].narrow(*place),
                f"takes the {side} {count} of {every} along dimension {dim}",
            )  # fmt: skip


def _others(step: Step) -> _Edited:
    """Another operation of the same operands."""
    tensors = [leaf for leaf in step.leaves if _is_plain(leaf) and is_continuous(leaf)]
    if not is_continuous(step.found) or len(tensors) != len(step.leaves):
        return
    if len(tensors) == 2:
        for sign, compute in _OPERATORS.items():
            yield 4, lambda run, leaves, by=compute: by(*leaves), f"computes with {sign}"
    elif len(tensors) == 1 and step.found.shape == tensors[0].shape and step.found.any():
        for compute in _FUNCTIONS:
            yield 4, lambda run, leaves, by=compute: by(*leaves), f"computes {compute.__name__}"


def _sums(search: _Search, step: Step) -> _Edited:
    """A sum or mean along other dimensions, or within the segments that an index names."""
    whole = step.leaves[0] if step.leaves else None
    if not (_is_plain(whole) and is_continuous(whole)) or whole.numel() <= step.found.numel():
        return
    every = [*range(whole.ndim)][:_MOST]
    extents = [d for n in every for d in itertools.combinations(every, n + 1)]
    for name, reduce in _SUMS.items():
        reduced = {d: reduce(whole, d, keepdim=True) for d in extents}
        same = {d: r for d, r in reduced.items() if r.numel() == step.found.numel()}
        kept = [d for d, r in same.items() if torch.allclose(step.found.reshape(r.shape), r)]
        for dims in [d for d in extents if d not in kept] if kept else ():
            along = f"dimension{'s' * (len(dims) > 1)} {' and '.join(map(str, dims))}"
            yield (
                4, lambda run, leaves, by=reduce, dims=dims: by(leaves[0], dims, keepdim=True),
                f"is a {name} along {along}",
            )  # fmt: skip
        for path, index in search.hand.items() if kept else ():
            for dim in every if index.dtype == torch.int64 and index.ndim == 1 else ():
                if len(index) == whole.shape[dim] and int(index.min()) >= 0:
                    edit = partial(_within_segments, dim, index, name == "mean")
                    yield 4, edit, f"is a {name} within each segment of {path}"


def _within_segments(
    dim: int, index: torch.Tensor, mean: bool, run: Run, leaves: Sequence[Any]
) -> torch.Tensor:
    """What each entry finds in its own segment."""
    whole = leaves[0]
    shape = [int(index.max()) + 1 if k == dim else n for k, n in enumerate(whole.shape)]
    count = torch.bincount(index)[index].reshape([-1] + [1] * (whole.ndim - 1 - dim))
    by = whole / count if mean else whole
    return whole.new_zeros(shape).index_add(dim, index, by).index_select(dim, index)
