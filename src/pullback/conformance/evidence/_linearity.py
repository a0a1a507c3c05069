"""Whether a backward is linear in its cotangent, and where it is not."""

import math
from typing import NamedTuple

import torch

from pullback.conformance.comparison._values import largest
from pullback.conformance.inputs._vectors import are_finite
from pullback.conformance.probing._probe import Probe, Tensors

__all__ = ["linearity_gap", "nothing_beside"]


class Gap(NamedTuple):
    """Where a backward is not linear."""

    place: int  # the position of the input
    expected: Tensors  # 2.5 B(a) - 1.5 B(b), or zeros
    got: Tensors  # B(2.5a - 1.5b), or B(0)
    points: Tensors  # where
    a: Tensors  # cotangents, zeros where B(0) is not zero
    b: Tensors  # cotangents, or zeros

    @property
    def size(self) -> float:
        """The largest difference beside the largest entry."""
        one, other = self.expected[self.place], self.got[self.place]
        if not other.isfinite().all():
            return math.inf
        return float((other - one).abs().max()) / max(float(t.abs().max()) for t in (one, other))


def linearity_gap(probe: Probe, number: int = 0) -> Gap | None:
    """Where B(2.5a - 1.5b) and 2.5 B(a) - 1.5 B(b) differ, or B(0) and 0; ``None`` if linear.

    A backward that solves a system to a tolerance is off by it whatever the cotangent's size. What
    is not linear grows or shrinks with the cotangent, so that a small gap is looked at again with
    cotangents a thousand times as large and as small. A clip far out, or at some deviations from
    the mean, acts on an outlier alone: without a gap one entry is made a thousand times as large.
    """
    points = probe.point(number)
    outputs = probe.output_values(points)
    first = _combined(probe, points, outputs, 1.0)
    others = ((1.0, 1.0), (1e3, 1.0), (1e-3, 1.0)) if first is not None else ()
    for size, outlier in (*others, (1.0, 1e3)):
        found = _combined(probe, points, outputs, size, outlier)
        # A tolerance that is absolute weighs as many times as much as cotangents are smaller.
        least = 10 * first.size / size if first is not None and size < 1 else 0.0
        if found is not None and found.size >= max(_SOLVED, least):
            return found
    still = [torch.zeros_like(y) for y in outputs]
    zeros = probe.backward(points, still)
    nothing = [torch.zeros_like(z) for z in zeros]
    left = probe.backward(points, probe.cotangents(outputs, "a"))
    for k, (zero, other) in enumerate(zip(zeros, left, strict=True)):
        solved = 10 * first.size if first else 0.0
        if are_finite(left) and not bool(nothing_beside(zero, other, solved).all()):
            return Gap(k, nothing, zeros, points, still, still)
    return None


# The largest relative error that is taken for that of a solver, where it does not grow.
_SOLVED = 1e-4
_ROUNDING = 64


def nothing_beside(zero: torch.Tensor, answer: torch.Tensor, close: float = 0.0) -> torch.Tensor:
    """Which entries of an answer to nothing are no more than the rounding of one to something.

    A solver that starts at random numbers ends beside zero.
    """
    close = max(close, _ROUNDING * torch.finfo(answer.dtype).eps)
    return zero.abs() <= close * (float(answer.abs().max()) if answer.numel() else 0.0)


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
    # The terms of a gradient may cancel, as those of ``x / |x|`` do where x is one number, and
    # rounding leaves something of them: a cotangent times outputs over inputs is their size.
    sizes = [size for x in points if (size := largest([x])) > 0]
    among = largest([*mixed, *a, *b]) * largest(outputs) / min(sizes) if sizes else 0.0
    place = probe.differ(got, expected, 1e3, among)
    if place is None or not are_finite(expected):
        return None
    return Gap(place, expected, got, points, a, b)
