"""The promises about numbers: right as given, and at other values, sizes, dtypes and strides."""

import itertools
import math
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch

from pullback.conformance import Arguments, Resizing, resizings, together
from pullback.report import Verdict
from pullback.verification._answers import same_bits
from pullback.verification._error import Result
from pullback.verification._work import Trial, Work, broken, promise, raises, wrong

__all__ = ["dtype", "gradients", "layout", "outputs", "second", "sizes", "values"]

_ENTRIES = 2**17
_LARGEST = 1500


@promise(
    "its outputs are the reference's, within its rounding",
    "Compare the entry named here with the reference, term by term.",
)
def outputs(work: Work) -> Result:
    """The example, and other values of its kind."""
    trials = ("", work.given), ("draw 1", work.fresh(1)), ("draw 2", work.fresh(2))
    found = _agreement(work.silent(), trials)
    return replace(found, detail=f"{found.detail}{_cause(work)}") if found.fault else found


def _cause(work: Work) -> str:
    """Why no kernel could have given what this reference gives."""
    own, other = (
        replace(work, seed=work.seed + k).silent().refer(work.given, work.dtype) for k in (0, 1)
    )
    if not same_bits(own, other):
        return (" The reference draws random numbers: a kernel that draws others cannot be "
                "compared; let both take them as an argument.")  # fmt: skip
    name = work.unequal()
    said = f" {name.capitalize()} holds other numbers than the reference's: load the same state."
    return said if name else ""


@promise(
    "its gradients are the reference's, within their rounding",
    "Derive the backward from the reference; pullback.check names the clause.",
)
def gradients(work: Work) -> Result:
    """The gradients at the example, of each argument alone too, and at other values."""
    truth = work.truth(work.given)
    if truth.fault or not truth.history:
        return Result(Verdict.SKIPPED, truth.fault or "the reference cannot be differentiated")
    if not any(gradient.numel() for gradient in truth.gradients):
        return Result(Verdict.SKIPPED, "what is differentiated has no entries")
    trials = [("", work.given), ("draw 1", work.fresh(1))]
    each = work.given.differentiable
    for k in each if len(each) > 1 else ():
        # What is not needed is not saved, as a rule; what is needed may be missing then.
        alone = work.given.with_differentiable((k,))
        trials.append((f"where {work.given.paths[k]} alone requires one", alone))
    return _agreement(work, trials)


def _agreement(work: Work, trials: Sequence[tuple[str, Arguments]]) -> Result:
    worst = 0.0, 0.0
    for name, arguments in trials:
        found = work.compare(arguments)
        if found.fault:
            return wrong(name, found)
        if found.verdict is Verdict.CRASHES and work.gradients and not found.history:
            # It answers where none are asked for.
            return Result(Verdict.LACKING, f"it refuses to be differentiated: {found.detail}")
        if found.verdict is not Verdict.HOLDS:
            return raises(found.detail) if found.verdict is Verdict.CRASHES else found
        if work.gradients and not found.history:
            return Result(Verdict.LACKING, "it gives no gradient, where its reference does")
        worst = max(worst[0], found.kernel), max(worst[1], found.reference)
    return Result(
        Verdict.HOLDS, f"off by {worst[0]:.3g} units in the last place at most; the reference in "
        f"that dtype by {worst[1]:.3g}",
    )  # fmt: skip


@promise(
    "its second derivatives are the reference's, or refused",
    "Declare backward once_differentiable, or compute it of saved tensors by torch alone.",
)
def second(work: Work) -> Result | None:
    """The gradient of the gradient, where the kernel does not refuse it."""
    if not work.gradients:
        return Result(Verdict.SKIPPED, "it gives no gradient that is right")
    try:
        given = _second(work, work.kernel.of(torch.float64))
    except Exception as error:
        return Result(Verdict.LACKING, f"refused: {type(error).__name__}: {error}")
    try:
        true = _second(work, work.reference.of(torch.float64))
    except Exception as error:
        return Result(Verdict.SKIPPED, f"the reference has none: {type(error).__name__}: {error}")
    for k, (one, other) in enumerate(zip(given, true, strict=True)):
        scale = max(1.0, float(other.abs().max())) if other.numel() else 1.0
        if one.shape == other.shape and not bool(((one - other).abs() <= 1e-6 * scale).all()):
            entry = int((one - other).abs().argmax())
            expected, got = (f"{float(t.flatten()[entry]):.8g}" for t in (other, one))
            path = work.given.paths[work.given.differentiable[k]]
            return broken(f"The second derivative with respect to {path} is wrong.", expected, got)
    return None


def _second(work: Work, function: Callable[..., Any]) -> list[torch.Tensor]:
    """The derivative of a weighted sum of the gradients, in float64."""
    wide = work.given.cast(torch.float64)
    tensors = [value.clone() for value in wide.values]
    points = [tensors[k].requires_grad_() for k in wide.differentiable]
    outputs = enumerate(work.outputs(function, wide, tensors).values())
    roots = {k: output for k, output in outputs if output.requires_grad}
    # `once_differentiable` refuses where a cotangent is followed, and where backward reaches it.
    weights = [work.weights(root, k).requires_grad_() for k, root in roots.items()]
    first = torch.autograd.grad(
        list(roots.values()), points, weights, create_graph=True, allow_unused=True
    )
    found = [g for g in first if g is not None and g.requires_grad]
    if not found:
        return [torch.zeros_like(point) for point in points]
    torch.autograd.backward(found, [work.weights(g, 17 + k) for k, g in enumerate(found)])
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in points]


@promise("it is right at every size", "Mask the last block.")
def sizes(work: Work) -> Result:
    """Each size that the arguments have: neighbours, one, odd, and beyond 64, 128 and 1,024."""

    def trials() -> Iterator[Trial]:
        drawn = torch.Generator().manual_seed(work.seed)
        most = max((n for value in work.given.values for n in value.shape), default=1)
        found = list(resizings(work.given, max(_LARGEST, 2 * most + 1), _ENTRIES, drawn))
        for resizing in found:
            n = resizing.size
            wanted = [n - 1, n + 1, 1, 2 * n + 1, 67, 131, 1027]
            more = resizing.at(n + 1) if n < resizing.largest else None
            if more is not None and work.silent().truth(more).fault:
                # One size may fit by broadcasting; it has to be even, or is another's as well.
                wanted = [n // 2, 2 * n, 3 * n, 130, 1026]
            size, name, made = n, "", None
            for size in dict.fromkeys(s for s in wanted if 1 <= s <= resizing.largest and s != n):
                name, made = f"size {size} of {resizing.where}", resizing.at(size)
                yield name, made, torch.clone
            for said, change in _CHANGES.items() if more and made else ():
                yield f"{name}, {said}", work.changed(partial(change, size), made), torch.clone
        wanted = [max(1, r.size - 1) for r in found], [min(67, r.largest) for r in found]
        for sizes in wanted if len(found) > 1 else ():
            if _is_small(found, sizes):
                name = f"sizes {sizes} in place of {[r.size for r in found]}"
                yield name, together(found, sizes, drawn), torch.clone

    return work.over(trials())


def _largest_last(size: int, value: torch.Tensor) -> torch.Tensor:
    """The largest entry along dimensions of a size in the last one's place, and that in its."""
    value = value.clone()
    for dim, n in enumerate(() if value.is_complex() else value.shape):
        if n == size:
            most, last = value.max(dim, keepdim=True), value.narrow(dim, n - 1, 1).clone()
            value.scatter_(dim, most.indices, last).narrow(dim, n - 1, 1).copy_(most.values)
    return value


_CHANGES = {  # where a wrong tail, or numbers put beside those given, decide
    "the largest numbers last": _largest_last,
    "all below zero": lambda _, value: -value.abs(),
    "all above zero": lambda _, value: value.abs(),
}


def _is_small(found: Sequence[Resizing], sizes: Sequence[int]) -> bool:
    """Whether arguments of these sizes have no more entries than are tried."""
    by_size = {resizing.size: size for resizing, size in zip(found, sizes, strict=True)}
    shapes = [value.shape for value in found[0].arguments.values]
    return all(math.prod(by_size.get(n, n) for n in shape) <= _ENTRIES for shape in shapes)


@promise(
    "it is right in every floating dtype, or refuses it",
    "Accumulate in float32, of float64 in float64, and return the dtype of the input; "
    "or raise a TypeError.",
)
def dtype(work: Work) -> Result:
    """Other floating dtypes: right, or refused."""
    every = torch.float32, torch.float64, torch.bfloat16, torch.float16
    others = [dtype for dtype in every if dtype != work.dtype]
    if any(value.is_complex() for value in work.given.values):
        others = []
    cast = ((str(dtype), work.given.cast(dtype), torch.clone) for dtype in others)
    found = work.over(cast, refusals=True)
    wide = work.given.cast(torch.float64)
    if found.detail.startswith(str(torch.float64)):
        answer = work.answer(wide)
        if answer.outputs and not work.judge_as(torch.float32, work.given, answer).fault:
            return replace(found, detail=f"{found.detail} It is as exact as float32 alone.")
    return found


@promise(
    "it is right for any strides, of inputs and of cotangents",
    "Use the strides, or call contiguous() first.",
)
def layout(work: Work) -> Result:
    """Any strides of inputs and cotangents: the memory between entries holds other numbers."""
    placings = {
        "transposed": _transposed,
        "every second entry": _sparse,
        "inside of a larger tensor": _inside,
        "channels last": _channels_last,
        "expanded": _expanded,
    }
    rows = work.changed(_first_row)
    trials = [
        (name, rows if place is _expanded else work.given, place)
        for name, place in placings.items()
    ]
    result = work.over(trials)
    if result.verdict is not Verdict.HOLDS:
        return result
    shared = work.silent().over(_as_one(work))  # which has one gradient for both
    if shared.verdict.is_bad:
        return shared
    for name, place in {**placings, "expanded": _first_expanded}.items():
        if work.gradients:
            found = replace(work, cotangents=place).compare(work.given)
            if found.fault:
                return wrong(f"cotangents {name}", found)
    return result


def _as_one(work: Work) -> list[Trial]:
    """Arguments of one shape as one tensor, where the reference writes to none."""
    kinds = [(value.shape, value.dtype) for value in work.given.values]
    firsts = [work.given.values[kinds.index(kind)] for kind in kinds]
    if len(set(kinds)) == len(kinds) or work.reference.written(work.given):
        return []
    given = work.given.with_values(firsts)
    made: MutableMapping[Any, torch.Tensor] = WeakValueDictionary()  # as long as a call takes

    def place(value: torch.Tensor) -> torch.Tensor:
        return made.setdefault((value.shape, value.dtype), value.clone())

    return [("one tensor twice", given, place)]


def _channels_last(value: torch.Tensor) -> torch.Tensor:
    if value.ndim < 3:
        return value.clone()
    return value.movedim(1, -1).contiguous().movedim(-1, 1).detach()


def _transposed(value: torch.Tensor) -> torch.Tensor:
    if value.ndim < 2:
        return _sparse(value)
    return value.transpose(0, -1).contiguous().transpose(0, -1).detach()


def _sparse(value: torch.Tensor) -> torch.Tensor:
    return _amid(value, (*value.shape, 2), (..., 0))


def _inside(value: torch.Tensor) -> torch.Tensor:
    wide = tuple(n + 3 for n in value.shape)
    return _amid(value, wide, tuple(slice(1, n + 1) for n in value.shape))


def _amid(value: torch.Tensor, shape: tuple[int, ...], part: Any) -> torch.Tensor:
    """A part of a larger tensor, whose other numbers would be seen."""
    number = value.is_floating_point() or value.is_complex()
    return value.new_full(shape, 1e4 if number else 0)[part].copy_(value).detach()


def _expanded(value: torch.Tensor) -> torch.Tensor:
    if value.ndim < 2 or value.shape[0] < 2 or not bool((value == value[:1]).all()):
        return value.clone()
    return value[:1].clone().expand(value.shape).detach()


def _first_expanded(value: torch.Tensor) -> torch.Tensor:
    """Rows that are one in memory, as of the cotangent of a sum: ones may give zeros alone."""
    return _expanded(_first_row(value))


def _first_row(value: torch.Tensor) -> torch.Tensor:
    return value[:1].expand(value.shape).contiguous() if value.ndim > 1 else value


@promise(
    "it is right at special values",
    "Subtract the largest score, add the reference's small number, mind both signs.",
)
def values(work: Work) -> Result:
    """Special values: zeros, ties, other signs, large and small numbers."""
    half = torch.finfo(work.dtype).max < 1e6
    changes = {
        "zeros": torch.zeros_like,
        "ties": lambda x: x.flatten()[0].expand(x.shape).contiguous() if x.numel() else x,
        "other signs": lambda x: -x,
        "large numbers": lambda x: x * (20 if half else 100),
        "small numbers": lambda x: x * 1e-3,
        "very small numbers": lambda x: x * (1e-4 if half else 1e-12),
        "one large entry": _one_large,
    }

    changed = ((name, work.changed(change), torch.clone) for name, change in changes.items())
    drawn = ((f"draw {k}", work.fresh(k), torch.clone) for k in range(3, 6))
    return work.over(itertools.chain(changed, _other_integers(work.given), drawn))


def _other_integers(given: Arguments) -> Iterator[Trial]:
    """Integers in another order, and by one larger, but for those that may be offsets or sizes."""
    sizes = {n for value in given.values for n in value.shape}

    def is_free(value: torch.Tensor) -> bool:
        whole = not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
        flat = value.flatten()
        return whole and bool((flat.diff() < 0).any()) and int(flat.max()) not in sizes

    free = [is_free(value) for value in given.values]
    changes: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "integers in another order": lambda value: value.flip(tuple(range(value.ndim))),
        "integers by one larger": lambda value: value + 1,
    }
    for name, change in changes.items() if any(free) else ():
        pairs = zip(given.values, free, strict=True)
        made = [change(value) if is_changed else value for value, is_changed in pairs]
        yield name, given.with_values(made), torch.clone


def _one_large(value: torch.Tensor) -> torch.Tensor:
    made = value.clone()
    if made.numel():
        made.view(-1)[made.numel() // 2] *= 50
    return made
