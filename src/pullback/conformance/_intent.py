"""Infer the gradient intent of a Function that declares none.

The rule, in order:

1. declared (on the class, or by the caller): taken as it is;
2. backward is not linear in the cotangent: ``nonlinear``, which the clause `linear` then calls
   broken because it was not declared;
3. backward agrees with the derivative: ``exact``;
4. it does not, and an output moves with an input by jumps alone, or nowhere, with which backward
   is not zero (rounding, thresholds, quantisation: a straight-through estimator): ``surrogate``.
   That is decided for each input: one that no output jumps with is still held to the derivative,
   by the outputs that move smoothly with any input (the others answer by their surrogate);
5. every output equals an input bit for bit (gradient scaling, reversal, noise): ``surrogate``;
6. anything else: ``exact``, so that a wrong derivative is found. A constant factor is not
   taken for a surrogate: a forgotten factor is the commonest mistake of all.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from pullback.conformance._derivative import try_derivative
from pullback.conformance._entries import steps_by_entry
from pullback.conformance._guard import guarded
from pullback.conformance._probe import Probe, Tensors
from pullback.conformance._steps import REACHES, Motion, jumps_along, motions
from pullback.conformance._vectors import are_finite

__all__ = ["Gap", "infer_intent", "is_linear", "linearity_gap"]

Positions = tuple[int, ...]


def infer_intent(probe: Probe) -> Probe:
    """The probe with its intent, and the reason where it was inferred."""
    declared = probe.subject.gradient
    if declared is not None:
        return replace(probe, intent=declared, inferred=False, reason="declared")
    if probe.fault is not None:
        return replace(probe, intent="exact", reason="the default: plain backward does not run")
    if not probe.outputs or not probe.inputs.differentiable:
        return replace(probe, intent="exact", reason="nothing is differentiated")
    try:
        with guarded():
            intent, reason, held, moving = _infer(probe)
    except (Exception, SystemExit):  # what fails here fails in its clauses, where it is reported
        intent, reason = "exact", "the default: backward could not be compared"
        held = moving = ()
    return replace(probe, intent=intent, reason=reason, held=held, moving=moving)


def _infer(probe: Probe) -> tuple[str, str, Positions, Positions]:
    """The intent, the reason, and what of a surrogate is still held to the derivative."""
    if not is_linear(probe):
        return "nonlinear", "backward is not linear in the cotangent", (), ()
    trial = try_derivative(probe, 0)
    if trial.match == "match":
        trial = try_derivative(probe, 2)
    if trial.match == "match":
        return "exact", "backward agrees with the derivative", (), ()
    found = _stepped(probe)
    if found is not None:
        how, held, moving = found
        return "surrogate", f"forward {how}, backward is not zero", held, moving
    if trial.is_wrong and _is_identity(probe):
        reason = "an output equals an input bit for bit, backward is not the identity"
        return "surrogate", reason, (), ()
    return "exact", "the default: nothing shows that backward differs on purpose", (), ()


def _stepped(probe: Probe) -> tuple[str, Positions, Positions] | None:
    """How an input is passed straight through, the inputs that nothing jumps with, by what."""
    count = len(probe.inputs.differentiable)
    moves = [motions(probe, k) for k in range(count)]
    through = [k for k, found in enumerate(moves) if _passes(probe, k, found)]
    how = "moves by jumps with"
    if not through:
        through, how = _constant(probe, moves), "stands still along"
    if not through:
        return None
    smooth = [k for k, found in enumerate(moves) if found and not any(m.jumps for m in found)]
    # Close by first, then farther: of a few entries none may change its code close by.
    far = REACHES[2:], REACHES[1:]
    steps = {k: probe.direction(f"jumps {k}", k) for k in smooth}
    held = tuple(k for k in smooth if not jumps_along(probe, steps[k], *far))
    # Where no neuron comes to its threshold by its membrane, its spike stands still along it,
    # and backward is not zero all the same.
    by_output = zip(probe.outputs, zip(*filter(None, moves), strict=True), strict=True)
    moving = tuple(output for output, found in by_output if any(m.moves for m in found))
    return f"{how} {probe.path(through[0])}", held if moving else (), moving


def _passes(probe: Probe, only: int, found: list[Motion]) -> bool:
    """Whether some output steps with an input, and sends a gradient to it."""
    stepped = [o for o, motion in enumerate(found) if motion.is_stepped]
    if not stepped and found and steps_by_entry(probe, only):
        # A range that is measured moves every output a little; where it jumps need not be seen.
        stepped = [o for o, motion in enumerate(found) if motion.jumps] or list(range(len(found)))
    return any(_answers(probe, only, output) for output in stepped)


def _answers(probe: Probe, only: int, output: int) -> bool:
    """Whether backward answers the cotangent of one output alone with something but zero.

    Asked at the given point, then along the line on which the output steps: a code at the end of
    its range passes nothing on, and is left for other values of the input.
    """
    given, step = probe.inputs.points(), probe.direction(f"steps {only}", only)
    for far in (0.0, *(side * reach for reach in REACHES for side in (-1, 1))):
        points = [x + far * v for x, v in zip(given, step, strict=True)]
        try:
            gradient = _gradient(probe, points, only, output)
        except Exception:
            if not far:
                raise
            continue  # not defined there
        if bool(gradient.ne(0).any()):
            return True
    return False


def _gradient(probe: Probe, points: Sequence[torch.Tensor], only: int, output: int) -> torch.Tensor:
    leaves = probe.leaves(points)
    outputs = probe.evaluate(leaves)
    alone = [g * (k == output) for k, g in enumerate(probe.spread(outputs, "answers"))]
    return probe.pull(leaves, alone, outputs)[only]


def _constant(probe: Probe, moves: list[list[Motion]]) -> list[int]:
    """Inputs that get a gradient from an output that is constant wherever it was looked at."""
    if [] in moves:
        return []
    by_output = enumerate(zip(*moves, strict=True))
    still = [o for o, found in by_output if not any(m.moves or m.jumps for m in found)]
    return [k for k in range(len(moves)) if any(_answers(probe, k, o) for o in still)]


def _is_identity(probe: Probe) -> bool:
    """Whether every differentiated output equals some differentiated input, near and far.

    One point is not enough: at ones, ``x * x`` is ``x``; nor are points nearby: on one side of
    zero a rectifier is the identity, and far from it whatever cuts small entries.
    """
    points, step = probe.inputs.points(), probe.direction("identity")
    seen = 0
    lines = [(1.0, reach) for reach in (0.0, 0.02, -1.0, 4.0, -4.0)]
    for size, reach in (*lines, (2.0**-6, 0.0), (-(2.0**-6), 0.0)):
        moved = [size * x + reach * v for x, v in zip(points, step, strict=True)]
        try:
            outputs = probe.evaluate(probe.leaves(moved))
        except Exception:  # noqa: S112 - not defined so far away
            continue
        if not all(any(torch.equal(y.detach(), x) for x in moved) for y in outputs):
            return False
        seen += 1
    return seen > 1


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
