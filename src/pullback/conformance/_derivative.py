"""Compare a backward with finite differences at several points, tolerant of kinks and gauges."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from pullback.conformance._finite import Estimate, Match, compare, differentiate
from pullback.conformance._probe import Probe, Tensors, flatten, products

__all__ = [
    "Trial",
    "decide",
    "is_linear",
    "linearity_gap",
    "second_estimate",
    "try_derivative",
    "try_second",
]


@dataclass(frozen=True)
class Trial:
    """One comparison of a derivative with finite differences.

    Arguments:
        match: whether they agree.
        value: the derivative by the function's own rule.
        estimate: by finite differences.
    """

    match: Match
    value: float
    estimate: Estimate


def decide(trial: Callable[[int], Trial], wanted: int = 2, limit: int = 7) -> Trial | None:
    """Repeat a comparison at other points until it is settled.

    Trials 0 and 1 are at the given point, later ones close to it. Two mismatches settle it as
    wrong, ``wanted`` matches as right; a trial at a kink counts for neither.

    Arguments:
        trial: makes one comparison, by number.
        wanted: how many matches settle it.
        limit: how many trials are made at most.

    Returns:
        A mismatch, a match, or ``None`` if nothing was settled.
    """
    matches: list[Trial] = []
    misses: list[Trial] = []
    for number in range(limit):
        found = trial(number)
        if number < 2 and not math.isfinite(found.value):
            continue  # the given point may be singular; the ones beside it decide
        if found.match == "match":
            matches.append(found)
        elif found.match == "mismatch":
            misses.append(found)
        if len(misses) >= 2:
            return misses[0]
        if len(matches) >= wanted and not misses:
            return matches[0]
    return matches[0] if len(matches) > len(misses) else None


def try_derivative(probe: Probe, number: int, only: int | None = None) -> Trial:
    """Compare <w, df/dt> with <J'w, v> at one point along one direction.

    Arguments:
        probe: the subject.
        number: 0 and 1 are at the given point, others close to it.
        only: the position of the input to move, or ``None`` for all at once.

    Returns:
        The comparison.
    """
    points = probe.point(number if number > 1 else 0)
    step = probe.direction(f"derivative {number}", only)
    base = [y.detach() for y in probe.evaluate(probe.leaves(points))]
    cotangents = probe.cotangents(base, number)
    product = products(probe.backward(points, cotangents), step)

    def outputs(moved: Tensors) -> Tensors:
        with torch.no_grad():
            return _aligned(probe.evaluate(moved), base)

    return _compare(probe, probe.along(outputs, step, points), cotangents, product)


def try_second(probe: Probe, number: int, only: int | None = None) -> Trial:
    """Compare the derivative of <B(x, g), u> along v with finite differences of B itself.

    The right side differentiates the Function's own backward as written, so that a surrogate is
    compared with itself.

    Arguments:
        probe: the subject.
        number: 0 and 1 are at the given point, others close to it.
        only: the position of the input to move; the number of inputs for the cotangent.

    Returns:
        The comparison.

    Raises:
        RuntimeError: the function refuses a second derivative.
    """
    points = probe.point(number if number > 1 else 0)
    leaves = probe.leaves(points)
    outputs = probe.evaluate(leaves)
    cotangents = [g.requires_grad_() for g in probe.cotangents(outputs, number)]
    gradients = probe.pull(leaves, cotangents, outputs, create_graph=True)
    weights = probe.cotangents(gradients, f"weights {number}")
    sources = [*leaves, *cotangents]
    carrying = [(b, u) for b, u in zip(gradients, weights, strict=True) if b.requires_grad]
    answers: Sequence[torch.Tensor | None] = [None] * len(sources)
    if carrying:
        answers = torch.autograd.grad(
            [b for b, _ in carrying], sources, [u for _, u in carrying], allow_unused=True
        )
    second = [
        torch.zeros_like(s) if a is None else a for s, a in zip(sources, answers, strict=True)
    ]
    step = [*probe.direction(f"second {number}"), *probe.cotangents(cotangents, f"step {number}")]
    if only is not None:
        step = [v if k == only else v * 0 for k, v in enumerate(step)]
    product = products([s.detach() for s in second], step)
    count = len(points)

    def backward(moved: Tensors) -> Tensors:
        return probe.backward(moved[:count], moved[count:])

    start = [*points, *[g.detach() for g in cotangents]]
    return _compare(probe, probe.along(backward, step, start), weights, product)


def second_estimate(probe: Probe, only: int) -> Estimate:
    """How the Function's own backward changes with one input, by finite differences alone."""
    points = probe.inputs.points()
    outputs = [y.detach() for y in probe.evaluate(probe.leaves(points))]
    cotangents = probe.cotangents(outputs, "second")
    weights = probe.cotangents(points, "second weights")

    def backward(moved: Tensors) -> Tensors:
        return probe.backward(moved, cotangents)

    step = probe.direction("second alone", only)
    return _compare(probe, probe.along(backward, step, points), weights, (0.0, 0.0)).estimate


def linearity_gap(probe: Probe, number: int = 0) -> tuple[int, Tensors, Tensors] | None:
    """Where B(2.5a - 1.5b) and 2.5 B(a) - 1.5 B(b) differ, or B(0) and 0.

    Returns:
        The position of the input, what was expected and what was got; ``None`` if linear.
    """
    points = probe.point(number)
    outputs = [y.detach() for y in probe.evaluate(probe.leaves(points))]
    a, b = probe.cotangents(outputs, "a"), probe.cotangents(outputs, "b")
    mixed = [2.5 * x - 1.5 * y for x, y in zip(a, b, strict=True)]
    left, right = probe.backward(points, a), probe.backward(points, b)
    expected = [2.5 * x - 1.5 * y for x, y in zip(left, right, strict=True)]
    got = probe.backward(points, mixed)
    place = probe.differ(got, expected, looser=1e3)
    if place is not None and all(t.isfinite().all() for t in expected):
        return place, expected, got
    zeros = probe.backward(points, [torch.zeros_like(y) for y in outputs])
    nothing = [torch.zeros_like(z) for z in zeros]
    finite = all(t.isfinite().all() for t in left)
    for k, zero in enumerate(zeros):
        if finite and bool(zero.abs().gt(0).any() or zero.isnan().any()):
            return k, nothing, zeros
    return None


def is_linear(probe: Probe) -> bool:
    """Whether the backward is linear in the cotangent, at the given point and a second one."""
    return linearity_gap(probe) is None and linearity_gap(probe, 2) is None


def _compare(
    probe: Probe,
    function: Callable[[float], torch.Tensor],
    weights: Tensors,
    product: tuple[float, float],
) -> Trial:
    """Finite differences of ``function``, weighted, against ``product`` with its magnitude."""
    value, magnitude = product
    try:
        estimate = differentiate(function, flatten(weights))
    except (RuntimeError, ValueError, ArithmeticError):
        # Beside the point the function may be undefined: then nothing is learnt here.
        estimate = Estimate(0.0, float("inf"), 0.0, False)
    return Trial(compare(estimate, value, magnitude, _precision(probe, weights)), value, estimate)


def _precision(probe: Probe, weights: Tensors) -> torch.dtype:
    eps = max((torch.finfo(w.dtype).eps for w in weights), default=0.0)
    low = max(eps, torch.finfo(probe.dtype).eps)
    return {2.0**-52: torch.float64, 2.0**-23: torch.float32}.get(low, torch.float16)


def _aligned(outputs: Tensors, base: Tensors) -> Tensors:
    """Undo sign flips of columns and rows, as eigenvectors and singular vectors may have them."""
    return [_align(y, b) if y.ndim >= 2 else y for y, b in zip(outputs, base, strict=True)]


def _align(output: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    for dim in (-2, -1):
        gap = (output + base).abs().square().sum(dim, keepdim=True)
        size = base.abs().square().sum(dim, keepdim=True)
        flipped = (gap < 0.01 * size) & (size > 0)
        if flipped.any():
            return torch.where(flipped, -output, output)
    return output
