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
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from pullback.conformance._arguments import is_continuous
from pullback.conformance._changes import NAMELESS, arranged, changes
from pullback.conformance._operations import Backward, Edit, Run, Step, edited
from pullback.conformance._pair import Difference, Pair, is_alike, is_same

__all__ = ["right_edit"]

_FEWEST = 3  # numbers that a factor without a name must explain

_COMPARISONS = {
    "<": torch.lt, "<=": torch.le, ">": torch.gt, ">=": torch.ge, "==": torch.eq, "!=": torch.ne,
}  # fmt: skip

_Edited = Iterator[tuple[int, Edit, str]]


class _Tried(NamedTuple):
    """An edit of one step, in words; those of a lower rank are tried first."""

    rank: int
    step: int
    edit: Edit
    said: str


def right_edit(backward: Backward, only: int, difference: Difference, until: float) -> str:
    """One sentence that names the edit after which backward is right.

    Arguments:
        backward: the backward that is wrong.
        only: the position of the input whose gradient that is.
        difference: the gradient expected and got, and what a number in it may be.
        until: when time is over, in seconds of the process.

    Returns:
        The sentence, or an empty text where no edit that was tried makes backward right.
    """
    pair = Pair.of(difference)
    if pair is None or backward.answers() is None or not backward.steps:
        return ""
    search = _Search(backward, tuple(backward.steps), only, pair)
    every = itertools.takewhile(lambda tried: time.process_time() < until, _edits(search))
    for tried in sorted(every, key=lambda tried: tried.rank):
        if time.process_time() > until:
            break
        found = search.numbers(tried.step, tried.edit)
        if found is not None and pair.equal(found):
            return f"Backward is right where {tried.said}."
    return ""


@dataclass(frozen=True)
class _Search:
    """What edits are made of.

    Arguments:
        backward: runs with a step edited.
        steps: those of backward as it is.
        only: the position of the input whose gradient is wrong.
        pair: that gradient expected and got.
    """

    backward: Backward
    steps: Sequence[Step]
    only: int
    pair: Pair

    @property
    def hand(self) -> Mapping[str, torch.Tensor]:
        return self.pair.difference.hand

    def name(self, tensor: torch.Tensor) -> str:
        return next((name for name, other in self.hand.items() if is_same(tensor, other)), "")

    def numbers(self, step: int, edit: Edit) -> torch.Tensor | None:
        """The gradient with one step edited, wherever its place in the source is run."""
        written = [k for k, other in enumerate(self.steps) if other.said == self.steps[step].said]
        answers = self.backward.answers(written, edit)
        found = None if answers is None else answers[self.only]
        if found is None or found.shape != self.pair.got.shape or not found.isfinite().all():
            return None
        return found.to("cpu", self.pair.got.dtype)


def _is_plain(value: Any) -> bool:
    """Whether it may be edited: a device that is given a wrong index is lost for the process."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    harmless = value.device.type == "cpu" or value.dtype == torch.bool or is_continuous(value)
    return harmless and value.numel() > 0


def _edits(search: _Search) -> Iterator[_Tried]:
    """Edits of each place of the source, the whole of backward among them, and of its operands."""
    first = {step.said: number for number, step in reversed([*enumerate(search.steps)])}
    for number in sorted(first.values()):
        step = search.steps[number]
        for rank, edit, said in itertools.chain(_operands(search, step), _plain(search, step)):
            yield _Tried(rank, number, edit, f"{step.said} {said}")
        if number and _is_plain(step.found):
            yield from _changed(search, number, step.found, partial(_of_result, step), step.said)
            for rank, edit, said in _parts(step):
                yield _Tried(rank, number, edit, f"{step.said} {said}")
    for k, leaf in enumerate(search.steps[0].leaves):
        if _is_plain(leaf):
            yield from _changed(search, 0, leaf, partial(edited, k), search.name(leaf))


def _operands(search: _Search, step: Step) -> _Edited:
    """Another operand, or two of them exchanged."""
    tensors = {k: t for k, t in enumerate(step.leaves) if _is_plain(t)}
    names = {k: search.name(t) for k, t in tensors.items()}
    for k, tensor in tensors.items():
        name = names[k] or f"its operand {k}"
        for change in arranged(tensor):
            what = change.edit.removeprefix("is ")
            yield change.rank, edited(k, change.apply), f"reads {name} {what}"
        for other, value in search.hand.items() if names[k] else ():
            if is_alike(value, tensor) and other != names[k]:
                yield 4, edited(k, lambda t, value=value: value), f"reads {other} for {name}"
    for k, n in itertools.combinations(tensors, 2):
        if is_alike(tensors[k], tensors[n]):
            one, other = names[k] or f"its operand {k}", names[n] or f"its operand {n}"
            yield 2, _exchanged(k, n), f"reads {other} for {one}, and the other way round"


def _plain(search: _Search, step: Step) -> _Edited:
    """Another number or flag, or another way to compare."""
    for k, leaf in enumerate(step.leaves):
        if type(leaf) is bool:
            yield 1, edited(k, lambda flag: not flag), f"reads {not leaf} for {leaf}"
        elif type(leaf) in (int, float):
            for value, said in _meant(search.pair.difference, leaf):
                yield 1, edited(k, lambda _, value=value: value), f"reads {said} for {leaf:.6g}"
    if getattr(step.found, "dtype", None) == torch.bool and len(step.leaves) == 2:
        for sign, compare in _COMPARISONS.items():
            yield 2, lambda run, leaves, by=compare: by(*leaves), f"compares by {sign}"


def _meant(difference: Difference, number: float) -> Iterator[tuple[float, str]]:
    """Numbers that may be meant for another one."""
    named = {
        **{size: f"{size}, the size of {name}," for name, size in difference.sizes.items()},
        **{value: f"{name}, which is {value:.6g}," for name, value in difference.numbers.items()},
    }
    near = range(-2, 4) if isinstance(number, int) else (1.0, 2.0, 0.5)
    for value, said in {**{n: f"{n}" for n in near}, **named}.items():
        if value != number:
            yield value, said


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
    search: _Search, number: int, tensor: torch.Tensor, edit: Callable[[Any], Edit], said: str
) -> Iterator[_Tried]:
    """Another tensor: a factor, a term, other places of its entries."""
    if tensor.dtype == torch.bool:
        yield _Tried(3, number, edit(torch.logical_not), f"{said} is negated")
        return
    twice = search.numbers(number, edit(lambda t: t + t))
    if twice is None or torch.equal(twice, search.pair.got):
        return
    share = twice - search.pair.got
    few = int((share.abs() > search.pair.difference.close * share.abs().max()).sum()) < _FEWEST
    for change in changes(search.pair, tensor, share):
        if not (few and change.rank == NAMELESS):
            yield _Tried(change.rank, number, edit(change.apply), f"{said} {change.edit}")


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
