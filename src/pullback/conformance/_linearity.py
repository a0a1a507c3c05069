"""Whether a backward is linear in its cotangent, beyond what a solver leaves."""

import math

import torch

from pullback.conformance._probe import Probe, Tensors

__all__ = ["is_linear", "linearity_gap"]


def linearity_gap(probe: Probe, number: int = 0) -> tuple[int, Tensors, Tensors] | None:
    """Where B(2.5a - 1.5b) and 2.5 B(a) - 1.5 B(b) differ, or B(0) and 0.

    A backward that solves a system to a tolerance is off by it whatever the cotangent's size. What
    is not linear grows or shrinks with the cotangent, so that a small gap is looked at again with
    cotangents a thousand times as large and as small. A clip far out, or at some deviations from
    the mean, acts on an outlier alone: without a gap one entry is made a thousand times as large.

    Returns:
        The position of the input, what was expected and what was got; ``None`` if linear.
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
    zeros = probe.backward(points, [torch.zeros_like(y) for y in outputs])
    nothing = [torch.zeros_like(z) for z in zeros]
    left = probe.backward(points, probe.cotangents(outputs, "a"))
    finite = all(t.isfinite().all() for t in left)
    for k, zero in enumerate(zeros):
        if finite and bool(zero.abs().gt(0).any() or zero.isnan().any()):
            return k, nothing, zeros
    return None


# The largest relative error that is taken for that of a solver, where it does not grow.
_SOLVED = 1e-4


def _combined(
    probe: Probe, points: Tensors, outputs: Tensors, size: float, outlier: float = 1.0
) -> tuple[int, Tensors, Tensors] | None:
    a, b = ([size * g for g in probe.cotangents(outputs, label)] for label in ("a", "b"))
    for g in b:
        g.view(-1)[g.numel() // 2 :][:1] *= outlier
    mixed = [2.5 * x - 1.5 * y for x, y in zip(a, b, strict=True)]
    left, right = probe.backward(points, a), probe.backward(points, b)
    expected = [2.5 * x - 1.5 * y for x, y in zip(left, right, strict=True)]
    got = probe.backward(points, mixed)
    place = probe.differ(got, expected, looser=1e3)
    if place is None or not all(t.isfinite().all() for t in expected):
        return None
    return place, expected, got


def _gap(found: tuple[int, Tensors, Tensors]) -> float:
    """The largest difference beside the largest entry."""
    place, expected, got = found
    if not got[place].isfinite().all():
        return math.inf
    size = max(float(expected[place].abs().max()), float(got[place].abs().max()))
    return float((got[place] - expected[place]).abs().max()) / size


def is_linear(probe: Probe) -> bool:
    """Whether the backward is linear in the cotangent, at the given point and a second one."""
    return linearity_gap(probe) is None and linearity_gap(probe, 2) is None
