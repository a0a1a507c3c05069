"""One edit of a wrong backward that makes it right: what is edited, how, and in which line.

The operations of the author's backward are noted as torch dispatches them, and each is run in
another way: an operand is another tensor at hand, a number another one, the result is multiplied,
negated, transposed. So does a repair of programs by mutation (Le Goues et al., "GenProg", IEEE
Transactions on Software Engineering 38, 2012); the test is here by finite differences. How large a
factor has to be follows from two runs, where backward is linear in what is multiplied.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from pullback.conformance._arguments import is_continuous
from pullback.conformance._operations import Backward, Edit, Run, Step, edited
from pullback.conformance._pair import CLOSE, Difference, are_close
from pullback.conformance._relations import named_factor

__all__ = ["right_edit"]

_FEWEST = 3  # numbers that a factor without a name must explain
_EXACT = 1e-5  # many edits are tried: none may be right by chance

_COMPARISONS = {
    "<": torch.lt, "<=": torch.le, ">": torch.gt, ">=": torch.ge, "==": torch.eq, "!=": torch.ne,
}  # fmt: skip

Change = Callable[[torch.Tensor], torch.Tensor]
_Edited = Iterator[tuple[int, Edit, str]]
_Changed = Iterator[tuple[int, Change, str]]


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
    answers = backward.answers()
    if answers is None or not backward.steps or answers[only].shape != difference.expected.shape:
        return ""
    steps, got = tuple(backward.steps), answers[only]
    known = slice(None) if difference.known is None else difference.known.cpu()
    close = _EXACT if difference.close <= CLOSE else difference.close
    expected = difference.expected.cpu()[known]

    def numbers(step: int, edit: Edit) -> torch.Tensor | None:
        written = [k for k, other in enumerate(steps) if other.said == steps[step].said]
        found = backward.answers(written, edit)
        if found is None or found[only].shape != got.shape or not found[only].isfinite().all():
            return None
        return found[only].cpu()[known]

    asked = _Asked(steps, _at_hand(backward, steps[0]), expected, got.cpu()[known], numbers,
                   difference)  # fmt: skip
    every = itertools.takewhile(lambda tried: time.process_time() < until, _edits(asked))
    for tried in sorted(every, key=lambda tried: tried.rank):
        if time.process_time() > until:
            break
        found = numbers(tried.step, tried.edit)
        if found is not None and are_close(expected, found, close):
            return f"Backward is right where {tried.said}."
    return ""


@dataclass(frozen=True)
class _Asked:
    """What edits are made of.

    Arguments:
        steps: those of backward as it is.
        hand: tensors that may be meant for one another.
        expected: the right numbers, where they are known.
        got: the numbers as they are.
        numbers: those with one step edited.
        difference: what a number may be.
    """

    steps: Sequence[Step]
    hand: Mapping[str, torch.Tensor]
    expected: torch.Tensor
    got: torch.Tensor
    numbers: Callable[[int, Edit], torch.Tensor | None]
    difference: Difference

    def name(self, tensor: torch.Tensor) -> str:
        return next((name for name, other in self.hand.items() if _is_same(tensor, other)), "")


def _at_hand(backward: Backward, whole: Step) -> dict[str, torch.Tensor]:
    """Arguments, outputs, cotangents and what was saved, each under its first name."""
    inputs = backward.probe.inputs.with_points(backward.points)
    outputs = backward.probe.output_values(backward.points)
    named = [
        *zip(inputs.paths, inputs.values, strict=True),
        *((f"output {k}", y) for k, y in enumerate(outputs)),
        *((f"the cotangent of output {k}", w) for k, w in enumerate(backward.weights)),
        *((f"ctx.saved_tensors[{k}]", t) for k, t in enumerate(whole.leaves)),
        *backward.own.items(),
    ]
    found: dict[str, torch.Tensor] = {}
    for name, tensor in named:
        if _is_plain(tensor) and not any(_is_same(tensor, other) for other in found.values()):
            found[name] = tensor
    return found


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    alike = all(getattr(one, k) == getattr(other, k) for k in ("dtype", "device", "shape"))
    return alike and torch.equal(one, other)


def _is_plain(value: Any) -> bool:
    """Whether it may be edited: a device that is given a wrong index is lost for the process."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    harmless = value.device.type == "cpu" or value.dtype == torch.bool or is_continuous(value)
    return harmless and value.numel() > 0


def _edits(asked: _Asked) -> Iterator[_Tried]:
    """Edits of each place of the source, the whole of backward among them, and of its operands."""
    first = {step.said: number for number, step in reversed([*enumerate(asked.steps)])}
    for number in sorted(first.values()):
        step = asked.steps[number]
        for rank, edit, said in itertools.chain(_operands(asked, step), _plain(asked, step)):
            yield _Tried(rank, number, edit, f"{step.said} {said}")
        if number and _is_plain(step.found):
            yield from _changed(asked, number, step.found, partial(_of_result, step), step.said)
            for rank, edit, said in _parts(step):
                yield _Tried(rank, number, edit, f"{step.said} {said}")
    for k, leaf in enumerate(asked.steps[0].leaves):
        if _is_plain(leaf):
            yield from _changed(asked, 0, leaf, partial(edited, k), asked.name(leaf))


def _operands(asked: _Asked, step: Step) -> _Edited:
    """Another operand, or two of them exchanged."""
    tensors = {k: t for k, t in enumerate(step.leaves) if _is_plain(t)}
    names = {k: asked.name(t) for k, t in tensors.items()}
    for k, tensor in tensors.items():
        name = names[k] or f"its operand {k}"
        if tensor.ndim > 1 and tensor.shape[-1] == tensor.shape[-2]:
            yield 3, edited(k, lambda t: t.mT), f"reads {name} transposed"
        if tensor.is_complex():
            yield (
                3,
                edited(k, lambda t: t.conj().resolve_conj()),
                f"reads the complex conjugate of {name}",
            )
        for other, value in asked.hand.items() if names[k] else ():
            if value.shape == tensor.shape and value.dtype == tensor.dtype and other != names[k]:
                yield 4, edited(k, lambda t, value=value: value), f"reads {other} for {name}"
    for k, n in itertools.combinations(tensors, 2):
        if tensors[k].shape == tensors[n].shape and tensors[k].dtype == tensors[n].dtype:
            one, other = names[k] or f"its operand {k}", names[n] or f"its operand {n}"
            yield 2, _exchanged(k, n), f"reads {other} for {one}, and the other way round"


def _plain(asked: _Asked, step: Step) -> _Edited:
    """Another number or flag, or another way to compare."""
    for k, leaf in enumerate(step.leaves):
        if type(leaf) is bool:
            yield 1, edited(k, lambda flag: not flag), f"reads {not leaf} for {leaf}"
        elif type(leaf) in (int, float):
            for value, said in _meant(asked.difference, leaf):
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


def _of_result(step: Step, change: Change) -> Edit:
    def edit(run: Run, leaves: Sequence[Any]) -> Any:
        found = run(leaves)
        other = change(found)
        if other.shape != found.shape:
            raise ValueError("another shape")
        return found.copy_(other) if step.changes else other.to(found.dtype)

    return edit


def _changed(
    asked: _Asked, number: int, tensor: torch.Tensor, edit: Callable[[Change], Edit], said: str
) -> Iterator[_Tried]:
    """Another tensor: a factor, a term, other places of its entries."""
    if tensor.dtype == torch.bool:
        yield _Tried(3, number, edit(torch.logical_not), f"{said} is negated")
        return
    twice = asked.numbers(number, edit(lambda t: t + t))
    if twice is None or torch.equal(twice, asked.got):
        return
    kinds = _factors(asked, twice - asked.got), _changes(asked, tensor)
    for rank, change, words in itertools.chain(*kinds):
        yield _Tried(rank, number, edit(change), f"{said} {words}")


def _factors(asked: _Asked, share: torch.Tensor) -> _Changed:
    """The factor that makes backward right if it is linear in this result."""
    off = asked.expected - asked.got
    factor = 1 + complex((share.conj() * off).sum() / share.abs().square().sum()).real
    if abs(factor) < _EXACT:
        yield 5, torch.zeros_like, "is left out"
    else:
        named = named_factor(asked.difference, abs(factor))
        if abs(factor + 1) < _EXACT:
            yield 2, torch.neg, "is negated"
        elif named is not None:
            how, sign = "divided" if named.divides else "multiplied", "-" if factor < 0 else ""
            said = f"is {how} by {sign}{named.text}{named.why}"
            value = math.copysign(named.value, factor)
            yield 2, lambda t: t * value, said
        if int((share.abs() > _EXACT * share.abs().max()).sum()) >= _FEWEST:
            yield 7, lambda t: t * factor, f"is multiplied by {factor:.6g}"


def _changes(asked: _Asked, tensor: torch.Tensor) -> _Changed:
    """What may be done with a tensor."""
    for name, other in asked.hand.items():
        by = _fitting(other, tensor)
        if by is not None:
            yield 3, partial(torch.mul, by), f"is multiplied by {name}"
            yield 3, lambda t, by=by: t / by, f"is divided by {name}"
            yield 6, partial(torch.add, by), f"has {name} added"
            yield 6, lambda t, by=by: t - by, f"has {name} subtracted"
    for dim in range(tensor.ndim):
        yield 5, lambda t, dim=dim: t.flip(dim), f"is reversed along dimension {dim}"
        away = f"has its mean along dimension {dim} subtracted"
        yield 5, lambda t, dim=dim: t - t.mean(dim, keepdim=True), away
    if tensor.ndim > 1 and tensor.shape[-1] == tensor.shape[-2]:
        yield 5, lambda t: t.mT, "is transposed"
    for name, number in asked.difference.numbers.items():
        said = f"is raised to the power {name}, which is {number:.4g}"
        yield 4, lambda t, number=number: t**number, said
    yield 5, lambda t: 1 - t, "is subtracted from 1"
    yield 5, torch.square, "is squared"
    yield 5, torch.sqrt, "is its square root"
    yield 5, torch.reciprocal, "is its reciprocal"
    yield 5, lambda t: t + 1, "has 1 added"
    yield 5, lambda t: t - 1, "has 1 subtracted"


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


def _fitting(tensor: torch.Tensor, result: torch.Tensor) -> torch.Tensor | None:
    """A tensor that can be multiplied with a result, as it is or as one number for each row."""
    for view in (tensor, tensor.unsqueeze(-1)):
        try:
            if torch.broadcast_shapes(view.shape, result.shape) == result.shape:
                return view
        except RuntimeError:
            continue
    return None
