"""Compare a backward with finite differences at several points, tolerant of kinks and gauges.

Every second comparison is *coherent*: the direction is chosen so that all terms of <J'w, v> have
one sign and add up, which shows an error that all gradients share. In the others the terms have
random signs: their sum grows as the root of their number, so that one wrong entry stands out.

A null space or an invariant subspace has no basis of its own: a Function that returns an
orthonormal one, Y, is right where it is for every loss that sees the span alone, and its entries
may turn from point to point. What such losses see is the projection P = Y Y', which is unique. So
where a comparison of Y fails it is made again with P: the same Function, followed by a product
that autograd differentiates (the cotangent W of P reaches the Function as (W + W') Y).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pullback.conformance.evidence._evidence import (
    FARTHER_STEP,
    FIRST_STEP,
    OTHER_STEP,
    Estimate,
    Match,
    Slopes,
    compare,
    slopes,
)
from pullback.conformance.evidence._stopped import as_meant, held
from pullback.conformance.inputs import _tree
from pullback.conformance.inputs._arguments import is_uniform
from pullback.conformance.inputs._structure import tangent
from pullback.conformance.inputs._vectors import are_finite, coarsest, flatten, unflatten
from pullback.conformance.probing._probe import Probe, Tensors
from pullback.conformance.process._limits import NoEnd

__all__ = [
    "Trial",
    "aligned",
    "ask_second",
    "decide",
    "has_basis",
    "has_own_span",
    "judge",
    "second_slopes",
    "spans",
    "try_derivative",
    "try_second",
    "wanted_of",
]


@dataclass(frozen=True)
class Trial:
    """One comparison of a derivative with finite differences."""

    match: Match  # whether they agree
    value: float  # the derivative by the function's own rule
    estimate: Estimate  # by finite differences
    weights: Tensors = field(default_factory=list)  # the cotangents compared with
    # the direction; of a second derivative, that of the cotangents too
    step: Tensors = field(default_factory=list)
    points: Tensors = field(default_factory=list)  # where it was made
    cotangents: Tensors = field(default_factory=list)  # those of a second derivative

    @property
    def is_wrong(self) -> bool:
        """Whether it speaks against the derivative."""
        return self.match == "mismatch"

    @property
    def is_told(self) -> bool:
        """Whether it speaks for or against it."""
        return self.match != "unclear"


def judge(probe: Probe, only: int | None = None, wanted: int = 2, **options: Any) -> Trial:
    """Compare backward with finite differences, of all inputs or of one, until that is settled.

    Zeros hide what they are multiplied by, and ones that they are a factor, as weights do that
    begin there: the derivative is right beside them too then.
    """
    wanted = wanted_of(probe) if wanted > 1 else wanted
    return decide(lambda number: try_derivative(probe, number, only), wanted, **options)


def wanted_of(probe: Probe) -> int:
    """How many comparisons are to agree: two at the given point, and one beside what hides."""
    points = probe.inputs.points()
    return 2 + any(bool((point == 0).any()) or is_uniform(point) for point in points)


def decide(
    trial: Callable[[int], Trial], wanted: int = 2, limit: int = 7, *, singular: bool = True
) -> Trial:
    """Repeat a comparison at other points until it is settled.

    Trials 0 and 1 are at the given point, later ones close to it. Two mismatches settle it as
    wrong, ``wanted`` matches as right; a trial at a kink counts for neither, nor does one at a
    point close by that is outside of the domain. ``singular`` says that the given point may be one
    where no derivative is finite.
    """
    matches: list[Trial] = []
    misses: list[Trial] = []
    for number in range(limit):
        try:
            found = trial(number)
        except NoEnd:
            raise
        except Exception:
            if number < 2:
                raise
            continue
        if singular and number < 2 and not math.isfinite(found.value):
            continue  # the given point may be singular; the ones beside it decide
        if found.match == "match":
            matches.append(found)
        elif found.is_wrong:
            misses.append(found)
        if len(misses) >= 2:
            return misses[0]
        if len(matches) >= wanted and not misses:
            return matches[0]
    return matches[0] if len(matches) > len(misses) else _UNCLEAR


def try_derivative(
    probe: Probe, number: int, only: int | None = None, step: Tensors | None = None
) -> Trial:
    """Compare <w, df/dt> with <J'w, v> at one point along one direction, of one input or of all.

    Numbers 0 and 1 are at the given point, others close to it; odd ones are coherent. A mismatch is
    one where two sizes of steps agree on it. What was compared once is not compared again.
    """
    if step is not None:
        return _tried(probe, number, only, step)
    only = None if len(probe.inputs.differentiable) == 1 else only
    known = probe.inputs.judged
    how = probe.seed, probe.outputs, probe.kin, probe.free, probe.stops, probe.rough, probe.grain
    key = number, only, how
    if key not in known or known[key][0] is not probe.subject:
        known[key] = probe.subject, _tried(probe, number, only)
    return known[key][1]


def _tried(probe: Probe, number: int, only: int | None, step: Tensors | None = None) -> Trial:
    """One comparison, as `try_derivative` has it."""
    points = probe.point(number if number > 1 else 0)
    if step is None:
        step = probe.direction(f"derivative {number}", only)
    base = [y.detach() for y in probe.evaluate(probe.leaves(points))]
    weights = probe.spread(base, f"weights {number}")
    coherent = number % 2 == 1
    there = held(probe, points) if probe.stops else probe
    if coherent:
        step = _uphill(points, step, probe.backward(points, weights), probe.free)

    def outputs(moved: Tensors) -> Tensors:
        with torch.no_grad():
            return aligned(there.output_values(moved), base)

    def answer(given: Tensors) -> torch.Tensor:
        return _terms(probe.backward(points, given), step)

    along, grain = probe.along(outputs, step, points), _coarse(base)
    trial = _trial(
        probe, lambda size: _slopes(along, grain, size), weights, answer, coherent=coherent
    )
    if trial.is_wrong and has_basis(base):
        return try_derivative(spans(probe), number, only)
    return replace(trial, step=step, points=points)


def _trial(
    probe: Probe, slopes_by: Callable[[float], Slopes | None], weights: Tensors,
    answer: Callable[[Tensors], torch.Tensor], *, coherent: bool = False,
) -> Trial:  # fmt: skip
    """What backward answers for weights, by two sizes of steps where the first disagrees."""
    first = _compare(probe, slopes_by(FIRST_STEP), weights, answer, coherent)
    if not first.is_wrong:
        return first
    other = _compare(probe, slopes_by(OTHER_STEP), weights, answer, coherent)
    return first if other.is_wrong else other


def _compare(
    probe: Probe, found: Slopes | None, weights: Tensors,
    answer: Callable[[Tensors], torch.Tensor], coherent: bool,
) -> Trial:  # fmt: skip
    """Finite differences against what backward answers for weights, where these are settled."""
    if found is None:
        return _UNCLEAR
    settled = weights
    if not found.settled.all():
        settled = unflatten(flatten(weights) * found.settled, weights)
    terms = answer(settled)
    estimate, value = found.weigh(flatten(settled), coherent=coherent), float(terms.sum())
    trial = Trial("unclear", value, estimate, settled)
    if not (math.isfinite(value) or found.settled.all()):
        return trial  # zero times a slope that is infinite at an entry that is left out
    magnitude = float(terms.abs().sum() if coherent else terms.square().sum().sqrt())
    eps = max(coarsest(settled), torch.finfo(probe.dtype).eps)
    match = compare(estimate, value, magnitude, eps, probe.grain)
    if match == "match" and not terms.any() and not found.settled.all():
        # Zeros agree, but all that backward does is where differences are not settled.
        return trial if answer(weights).any() else replace(trial, match=match)
    if match == "mismatch":
        # Nor does what disagrees with itself tell a wrong derivative from noise.
        apart = abs(float(answer(settled).sum()) - value)
        match = "unclear" if apart > _ITSELF * abs(value - estimate.value) else match
    return replace(trial, match=match)


def try_second(probe: Probe, number: int, only: int | None = None) -> Trial:
    """Compare the derivative of <B(x, g), u> along v with finite differences of B itself.

    The right side differentiates the Function's own backward as written, forward run again
    included, so that a surrogate is compared with itself. Numbers are as in `try_derivative`; what
    moves alone is an input or, counted from their number on, a cotangent.

    Raises:
        RuntimeError: the function refuses a second derivative.
    """
    points = probe.point(number if number > 1 else 0)
    base = [y.detach() for y in probe.evaluate(probe.leaves(points))]
    cotangents = probe.cotangents(base, number)
    step = [*probe.direction(f"second {number}"), *probe.cotangents(cotangents, f"step {number}")]
    if only is not None:
        step = [v if k == only else v * 0 for k, v in enumerate(step)]
    start = [*points, *cotangents]
    weights = probe.spread(points, f"weights {number}")

    def answer(given: Tensors) -> torch.Tensor:
        return _terms(_second(probe, start, given), step)

    def slopes_by(size: float) -> Slopes | None:
        found = second_slopes(probe, start, step, size)
        if found is None:
            answer(weights)  # a refusal is told all the same
        return found

    trial = _trial(replace(probe, rough=probe.rough or probe.grain > 0), slopes_by, weights, answer)
    if trial.is_wrong and has_basis(base):
        return try_second(spans(probe), number, only)
    return replace(trial, step=step, points=points, cotangents=cotangents)


def ask_second(probe: Probe) -> Tensors:
    """A second derivative at the given point, of what may refuse one."""
    points = probe.point(0)
    cotangents = probe.cotangents([y.detach() for y in probe.evaluate(probe.leaves(points))])
    return _second(probe, [*points, *cotangents], probe.spread(points, "second"))


def _second(probe: Probe, start: Tensors, weights: Tensors) -> Tensors:
    """The gradient of <B(x, g), weights> by inputs and cotangents, B as it is written."""
    count = len(probe.inputs.differentiable)
    leaves = probe.leaves(start[:count])
    cotangents = [g.detach().clone().requires_grad_() for g in start[count:]]
    gradients = probe.pull(leaves, cotangents, create_graph=True)
    # What refuses `torch.autograd.grad` does so for itself: of its gradients the graph is torch's.
    plain = replace(probe, accumulates=False)
    return [g.detach() for g in plain.pull([*leaves, *cotangents], weights, gradients)]


def second_slopes(
    probe: Probe, start: Sequence[torch.Tensor], step: Sequence[torch.Tensor],
    first: float = FIRST_STEP,
) -> Slopes | None:  # fmt: skip
    """How the Function's own backward changes along a direction, by finite differences alone.

    This is the one oracle for every second derivative: forward runs again at each moved point, but
    what is stopped, and outputs that backward reads, move as backward says (`as_meant`).
    Start and step are of the inputs, then of the cotangents; ``None`` where no gradient is defined.
    """
    count = len(probe.inputs.differentiable)
    there = as_meant(probe, list(start[:count]), list(step[:count]))

    def at(t: float) -> torch.Tensor:
        def backward(moved: Tensors) -> Tensors:
            return there(t).backward(moved[:count], moved[count:])

        return probe.along(backward, step, start)(t)

    return _slopes(at, max(probe.grain, _coarse(start)), first)


# How far a backward may be from itself, beside how far it is from the truth.
_ITSELF = 0.25
_UNCLEAR = Trial("unclear", 0.0, Estimate(0.0, math.inf, 0.0, False))


def _slopes(
    function: Callable[[float], torch.Tensor], grain: float = 0.0, step: float = FIRST_STEP
) -> Slopes | None:
    """Finite differences of ``function``, or ``None`` where it is undefined beside the point."""
    try:
        found = slopes(function, step, grain)
        if found.settled.any() or (function(0.0).dtype == torch.float64 and not grain):
            return found
        # Rounding to float32 hides the slope of what is nearly saturated: not so farther apart.
        return slopes(function, FARTHER_STEP, grain)
    except Exception:  # refused or undefined there: then nothing is learnt here
        return None


def _terms(gradients: Tensors, step: Tensors) -> torch.Tensor:
    """The real terms of <gradient, step>, as one vector in float64."""
    return flatten(gradients).double() * flatten(step).double()


def _uphill(points: Tensors, step: Tensors, gradients: Tensors, free: bool) -> Tensors:
    """The step with its signs (or phases) turned to those of the gradient."""
    turned = []
    for point, v, gradient in zip(points, step, gradients, strict=True):
        sign = gradient.sgn()
        along = v.abs() * sign  # Re(conj(g) |v| g / |g|) = |g| |v|
        usable = torch.isfinite(gradient) & (gradient != 0)
        turned.append(tangent(point, torch.where(usable, along, v), linear=free))
    return turned


def _coarse(parts: Sequence[torch.Tensor]) -> float:
    """The precision of what is shown in float32 and has fewer digits; else 0."""
    eps = coarsest(parts)
    return eps if eps > torch.finfo(torch.float32).eps else 0.0


def aligned(outputs: Tensors, base: Tensors) -> Tensors:
    """Undo sign flips of columns and rows, as eigenvectors and singular vectors may have them.

    One vector may have them too; one number has a sign of its own.
    """
    return [_align(y, b) if y.ndim and y.numel() > 1 else y
            for y, b in zip(outputs, base, strict=True)]  # fmt: skip


def _align(output: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    if not output.is_complex() and not (output.signbit() != base.signbit()).any():
        return output  # the sum of two of one sign is no smaller than either
    for dim in (-2, -1)[-output.ndim :]:
        gap = (output + base).abs().square().sum(dim, keepdim=True)
        size = base.abs().square().sum(dim, keepdim=True)
        flipped = (gap < 0.01 * size) & (size > 0)
        if flipped.any():
            return torch.where(flipped, -output, output)
    return output


def has_basis(outputs: Sequence[torch.Tensor]) -> bool:
    """Whether an output is an orthonormal basis of a span: defined up to a rotation of it."""
    return any(is_basis(y.detach()) for y in outputs)


def is_basis(y: torch.Tensor) -> bool:
    """Whether the columns are orthonormal and fewer than the rows, or the rows than the columns."""
    if y.ndim < 2 or y.shape[-2] == y.shape[-1] or not y.numel():
        return False
    columns = _upright(y)
    eye = torch.eye(columns.shape[-1], dtype=y.dtype, device=y.device)
    return bool((columns.mH @ columns - eye).abs().max() < 1e3 * torch.finfo(y.dtype).eps)


def has_own_span(
    given: Sequence[torch.Tensor], found: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
) -> bool:
    """Whether bases as given are bases elsewhere too, of spans that have derivatives there.

    A basis of everything says nothing of its span; and where vectors of one singular value are on
    both sides of it, the span is any of many, which backward says by a NaN.
    """
    pairs = zip(given, found, strict=True)
    if not has_basis(given):
        return True
    whole = any(is_basis(y) and z.ndim > 1 and z.shape[-2] == z.shape[-1] for y, z in pairs)
    return not whole and are_finite(gradients)


def _upright(y: torch.Tensor) -> torch.Tensor:
    """The vectors of a basis as columns."""
    return y if y.shape[-2] > y.shape[-1] else y.mH


def spans(probe: Probe) -> Probe:
    """The probe with the projection on its span in place of each output that is a basis."""
    every = probe.run(probe.leaves())
    bases = {k for k in probe.outputs if is_basis(every[k].detach())}

    def call(*args: Any, **kwargs: Any) -> Any:
        found = probe.subject.call(*args, **kwargs)
        parts = _tree.tensors(found)
        columns = [_upright(y) if k in bases else y for k, y in enumerate(parts)]
        projected = (y @ y.mH if k in bases else y for k, y in enumerate(columns))
        return _tree.replace(found, projected)

    return replace(probe, subject=replace(probe.subject, call=call))
