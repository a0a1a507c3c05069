"""Special values for the same arguments: zeros, ties, masks, very large and very small numbers.

Those near the ends of a precision are compared with the same ones computed in float64.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from pullback.conformance.comparison._changes import is_alike
from pullback.conformance.comparison._values import same_bits
from pullback.conformance.evidence._screen import RIGHT, Run
from pullback.conformance.inputs._arguments import Arguments
from pullback.conformance.inputs._structure import keep, outside
from pullback.conformance.inputs._vectors import are_finite, coarsest, spread, wide
from pullback.conformance.probing._mends import by_autograd
from pullback.conformance.probing._probe import Probe, Tensors
from pullback.conformance.process._limits import NoEnd
from pullback.report import Finding

__all__ = [
    "REPRO", "at_an_end", "at_the_ends", "beside_wide", "controls", "specials",
]  # fmt: skip

Change = Callable[[torch.Tensor], torch.Tensor]

_OPTIONS = 2  # floating-point numbers among the arguments by which those in tensors are measured


def specials(arguments: Arguments) -> Iterator[tuple[str, Arguments]]:
    """The arguments with special values in place of their own.

    Each is tried in all differentiated inputs at once, then in each input alone. Masks are tried
    empty and full. Other integers are left as they are: a kernel may read what they point to.
    """
    for name, made in _specials(arguments):
        pairs = zip(made.values, arguments.values, strict=True)
        if any(not same_bits(one, given) for one, given in pairs):
            yield name, made


def _specials(arguments: Arguments) -> Iterator[tuple[str, Arguments]]:
    positions = [k for k in arguments.differentiable if arguments.values[k].numel()]
    first = arguments.values[positions[0]] if positions else None
    alike = [k for k in positions if first is not None and is_alike(arguments.values[k], first)]
    if len(alike) > 1:
        yield "equal inputs", _changed(arguments, alike, lambda value: arguments.values[alike[0]])
    choices = [positions, *([[k] for k in positions[:3]] if len(positions) > 1 else [])]
    for chosen in choices:
        where = "every input" if chosen is choices[0] else arguments.paths[chosen[0]]
        for name, change in _CHANGES.items():
            yield f"{name} in {where}", _changed(arguments, chosen, change)
    numbers = {abs(leaf) for leaf in arguments.others() if type(leaf) is float}
    for number in sorted(n for n in numbers if 0 < n < math.inf)[:_OPTIONS]:
        # What lies below a threshold or an epsilon takes another way; so does a norm of a few.
        below = partial(_of_size, size=number / 8)
        yield (
            f"numbers an eighth of {number:g} in every input",
            _changed(arguments, positions, below),
        )
    if positions:  # scores come first, and are what is masked so
        masked = _changed(arguments, positions[:1], _masked)
        yield f"minus infinity in {arguments.paths[positions[0]]}", masked
    for k, value in enumerate(arguments.values):
        if value.dtype == torch.bool and value.numel():
            for name, fill in (("empty", False), ("full", True)):
                full = arguments.with_some({k: torch.full_like(value, fill)})
                yield f"an {name} mask in {arguments.paths[k]}", full


def controls(probe: Probe, made: Arguments) -> Iterator[Arguments]:
    """Ordinary numbers where special values lie, which a Function may be no better at.

    Those given in another order: what is made of another argument is none of the Function's beside
    it. And of a range that is not theirs: a logarithm is no function of negative numbers, whatever
    a clamp makes of them.
    """
    given, drawn = probe.inputs.values, probe.generator("outside")
    pairs = [*zip(given, made.values, strict=True)]
    moved = [k for k, (value, other) in enumerate(pairs) if not same_bits(value, other)]
    yield probe.inputs.with_some(
        _kept(given, {k: given[k].flatten().roll(k + 1).view_as(given[k]) for k in moved})
    )
    left = [k for k, (value, other) in enumerate(pairs) if outside(value, other)]
    if left:
        yield probe.inputs.changed(left, lambda v: spread(v, drawn) * (2 * v.abs().max()))


def _changed(arguments: Arguments, chosen: Sequence[int], change: Change) -> Arguments:
    """The arguments with some tensors changed, as far as that keeps their structure."""
    given = arguments.values
    return arguments.with_some(_kept(given, {k: change(given[k]) for k in chosen}))


def _kept(
    given: Sequence[torch.Tensor], made: Mapping[int, torch.Tensor]
) -> dict[int, torch.Tensor]:
    """What can be made an argument of the kind that was given."""
    every = {k: keep(given[k], value) for k, value in made.items()}
    return {k: value for k, value in every.items() if value is not None}


def _typical(value: torch.Tensor) -> float:
    size = value.abs().double()
    return float(size.median()) if value.numel() else 0.0


def _of_size(value: torch.Tensor, size: float) -> torch.Tensor:
    return value / max(_typical(value), 1e-300) * size


def _some_zeros(value: torch.Tensor) -> torch.Tensor:
    flat = value.reshape(-1).clone()
    flat[::2] = 0
    return flat.reshape(value.shape)


def _tied(value: torch.Tensor) -> torch.Tensor:
    """Pairs of equal neighbours."""
    flat = value.reshape(-1).clone()
    count = flat.numel() // 2
    flat[1 : 2 * count : 2] = flat[0 : 2 * count : 2]
    return flat.reshape(value.shape)


def _masked(value: torch.Tensor) -> torch.Tensor:
    """Minus infinity in the first entry of each row, as an attention mask has it."""
    if value.is_complex() or not value.ndim or value.shape[-1] < 2:
        return value
    masked = value.clone()
    masked[..., 0] = -torch.inf
    return masked


_CHANGES: dict[str, Change] = {
    "zeros": torch.zeros_like,
    "some zeros": _some_zeros,
    "negative zeros": lambda value: torch.full_like(value, -0.0),
    "equal neighbours": _tied,
    "one value": lambda value: torch.full_like(value, _typical(value) or 1.0),
    "large numbers": lambda value: value * 1e6,
    "small numbers": lambda value: value * 1e-8,
}


_ROUGHLY = 2.0**-6  # thirty of which are a half
_WIDER = "Compute in float32 what squares or divides, or scale before squaring."
REPRO = [
    "print('inputs  ', xs)",
    "ys = outs(); print('outputs ', ys)",
    "print('gradient', torch.autograd.grad(ys, xs, [torch.ones_like(y) for y in ys], "
    "allow_unused=True))",
]


def beside_wide(level: torch.dtype) -> list[str]:
    """Lines of a script: the gradients of ``w`` at ``args``, and at the same numbers made wide."""
    return [
        "print('low ', torch.autograd.grad(outs(), xs, w, allow_unused=True))",
        "def wide(a):",
        "    if not isinstance(a, torch.Tensor) or not (a.is_floating_point() or a.is_complex()):",
        "        return a",
        f"    to = {level}.to_complex() if a.is_complex() else {level}",
        "    return a.detach().to(to).requires_grad_(a.requires_grad)",
        "args = tree_map(wide, args)",
        "xs = [a for a in tree_leaves(args) if isinstance(a, torch.Tensor) and a.requires_grad]",
        "w = [g.to(y.dtype) for g, y in zip(w, outs())]",
        "print('wide', torch.autograd.grad(outs(), xs, w, allow_unused=True))",
    ]


def at_the_ends(probe: Probe) -> Iterator[tuple[str, Arguments]]:
    """The arguments in each precision, with numbers near the ends of its range."""
    arguments = probe.inputs
    plain = not (probe.draws or probe.rough) and probe.dtype == torch.float64
    if not plain or any(x.is_complex() for x in arguments.points()):
        return
    for level in (torch.float32, torch.bfloat16, torch.float16):
        limits, named = torch.finfo(level), str(level).removeprefix("torch.")
        for what, size in (("large", limits.max**0.75), ("small", limits.tiny**0.75)):
            change = partial(_of_size, size=size)
            for chosen in dict.fromkeys((arguments.differentiable, arguments.differentiable[:1])):
                yield f"{what} numbers in {named}", _changed(arguments, chosen, change).cast(level)


def at_an_end(probe: Probe, name: str, inputs: Arguments, low: Probe) -> Finding | str:
    """What is wrong near the end of a precision.

    Not of one in which ordinary numbers are wrong, and the derivative that torch has of forward.
    """
    finding = _judge_end(low, name)
    if finding is None or _is_right_in(probe, inputs.points()[0].dtype):
        return finding or RIGHT
    own = by_autograd(low.subject)
    return finding if own is None or not _judge_end(replace(low, subject=own), name) else ""


def _is_right_in(probe: Probe, level: torch.dtype) -> bool:
    """Whether a precision is one in which ordinary numbers, those given, are right.

    A control: where they are not, what is wrong at the ends of the precision is wrong in all of it,
    as an operation of torch is that has no kernel to speak of there.
    """
    try:
        run = Run.of(probe.at(probe.inputs.cast(level)))
        true = Run.of(probe, [wide(g) for g in run.cotangents])
    except Exception:  # refused
        return False
    pairs = zip([*run.outputs, *run.gradients], [*true.outputs, *true.gradients], strict=True)
    return all(bool(a.isfinite().all()) and _near(a, b, _ROUGHLY) for a, b in pairs)


def _judge_end(low: Probe, name: str, given: Tensors | None = None) -> Finding | None:
    """Near the ends of a precision, with the same numbers computed in float64.

    Two witnesses: an iteration may come upon a zero, and divide by it, for one cotangent by luck.
    """
    high = low.at(low.inputs.cast(torch.float64))
    try:
        run = Run.of(low, given)
        true = Run.of(high, [wide(g) for g in run.cotangents])
        points = high.inputs.points()
        eps = coarsest(low.inputs.points())
        steps = zip(points, low.direction("eps"), strict=True)
        shaken = high.backward([(x * (1 + eps * v)).double() for x, v in steps], true.cotangents)
    except NoEnd:
        raise
    except Exception:  # loud, so not silently wrong
        return None
    if not (are_finite(run.outputs) and are_finite(true.outputs) and are_finite(true.gradients)):
        return None
    if not all(_near(a, b, eps) for a, b in zip(run.outputs, true.outputs, strict=True)):
        return None  # forward itself lost the number
    found = zip(run.gradients, true.gradients, shaken, strict=True)
    for k, (one, exact, moved) in enumerate(found):
        if not one.numel():
            continue
        limits = torch.finfo(one.dtype)
        size = float(exact.abs().max())
        if not limits.tiny * 16 < size < limits.max**0.5:
            continue  # such numbers do not fit
        allowed = 0.3 * size + 30 * float((moved - exact).abs().max().nan_to_num())
        allowed += _saturated(run) * eps
        # Near zero rounding may take every digit of a difference, and so it may of what a surrogate
        # is taken of, of which forward shows a sign alone; what is not finite is a mistake.
        told = name.startswith("large") and low.intent == "exact"
        off = told and float((wide(one) - exact).abs().max()) > allowed
        if off or not bool(one.isfinite().all()):
            others = low.cotangents(run.outputs, "another")
            if given is None and _judge_end(low, name, others) is None:
                return None
            return low.broken(
                f"At {name} forward is right and the gradient is not.",
                expected=exact, got=one, place=low.path(k), hint=_WIDER,
                given={"w": run.cotangents}, repro=beside_wide(torch.float64),
            )  # fmt: skip
    return None


def _saturated(run: Run) -> float:
    """By how many roundings a slope may be off that is a difference of numbers of order one.

    So is the slope of what saturates, as 1 - y * y is that of the hyperbolic tangent.
    """
    tops = [float(y.abs().max()) for y in run.outputs if y.numel()]
    if not all(0.1 < top < 10 for top in tops):
        return 0.0
    return 30 * max((float(g.abs().max()) for g in run.cotangents if g.numel()), default=0.0)


def _near(one: torch.Tensor, true: torch.Tensor, eps: float) -> bool:
    if not true.numel():
        return True
    size = float(true.abs().max())
    return float((wide(one) - wide(true)).abs().max()) <= 30 * eps * size
