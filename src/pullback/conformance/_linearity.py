"""Where a backward is not linear in the cotangent."""

import math
from typing import NamedTuple

import torch

from pullback.conformance._probe import Probe, Tensors
from pullback.conformance._vectors import are_finite

__all__ = ["Gap", "is_linear", "linearity_gap"]


class Gap(NamedTuple):
    """Where a backward is not linear.

    Arguments:
        place: the position of the input.
        expected: 2.5 B(a) - 1.5 B(b), or zeros.
        got: B(2.5a - 1.5b), or B(0).
        points: where.
        a: cotangents, zeros where B(0) is not zero.
        b: cotangents, or zeros.
    """

    place: int
    expected: Tensors
    got: Tensors
    points: Tensors
    a: Tensors
    b: Tensors


def linearity_gap(probe: Probe, number: int = 0) -> Gap | None:
    """Where B(2.5a - 1.5b) and 2.5 B(a) - 1.5 B(b) differ, or B(0) and 0.

    A backward that solves a system to a tolerance is off by it whatever the cotangent's size. What
    is not linear grows or shrinks with the cotangent, so that a small gap is looked at again with
    cotangents a thousand times as large and as small. A clip far out, or at some deviations from
    the mean, acts on an outlier alone: without a gap one entry is made a thousand times as large.

    Returns:
        Where, or ``None`` if linear.
    """
    points = probe.point(number)
    outputs = [y.detach() for y in probe.evaluate(probe.leaves(points))]
    found = _combined(probe, points, outputs, 1.0)
    if found is not None and _gap(found) < _SOLVED:
        larger = (_combined(probe, points, outputs, size) for size in (1e3, 1e-3))
        found = next((g for g in larger if g is not None and _gap(g) >= _SOLVED), None)
    if found is None:
        outlying = _combined(probe, points, outputs, 1.0, outlier=1e3)
        found = outlying if outlying is not None and _gap(outlying) >= _SOLVED else None
    if found is not None:
        return found
    still = [torch.zeros_like(y) for y in outputs]
    zeros = probe.backward(points, still)
    nothing = [torch.zeros_like(z) for z in zeros]
    left = probe.backward(points, probe.cotangents(outputs, "a"))
    finite = are_finite(left)
    for k, zero in enumerate(zeros):
        if finite and bool(zero.abs().gt(0).any() or zero.isnan().any()):
            return Gap(k, nothing, zeros, points, still, still)
    return None


# The largest relative error that is taken for that of a solver, where it does not grow.
_SOLVED = 1e-4


def _combined(
    probe: Probe, points: Tensors, outputs: Tensors, size: float, outlier: float = 1.0
) -> Gap | None:
    a, b = ([size * g for g in probe.cotangents(outputs, label)] for label in ("a", "b"))
    for g in b:
        g.view(-1)[g.numel() // 2 :][:1] *= outlier
    mixed = [2.5 * x - 1.5 * y for x, y in zip(a, b, strict=True)]
    left, right = probe.backward(points, a), probe.backward(points, b)
    expected = [2.5 * x - 1.5 * y for x, y in zip(left, right, strict=True)]
    got = probe.backward(points, mixed)
    place = probe.differ(got, expected, looser=1e3)
    if place is None or not are_finite(expected):
        return None
    return Gap(place, expected, got, points, a, b)


def _gap(found: Gap) -> float:
    """The largest difference beside the largest entry."""
    place, expected, got = found[:3]
    if not got[place].isfinite().all():
        return math.inf
    size = max(float(expected[place].abs().max()), float(got[place].abs().max()))
    return float((got[place] - expected[place]).abs().max()) / size


def is_linear(probe: Probe) -> bool:
    """Whether the backward is linear in the cotangent, at the given point and a second one."""
    return linearity_gap(probe) is None and linearity_gap(probe, 2) is None
