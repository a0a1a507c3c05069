"""Infer the gradient intent of a Function that declares none.

The rule, in order:

1. declared (on the class, or by the caller): taken as it is;
2. backward is not linear in the cotangent, which the clause `linear` then calls broken because it
   was not declared: ``nonlinear`` where an output equals an input bit for bit, is passed straight
   through as below, or has no derivative that could be measured. What forward computes there is
   no reason to clip, to normalise or to take signs; of any other forward a backward that is not
   linear is a wrong derivative: ``exact``;
3. backward agrees with the derivative: ``exact``;
4. it is the derivative of forward with what that detaches held as it was, a gradient that is
   stopped on purpose: ``surrogate``, and held to that derivative (`_stopped`);
5. it is not, and an output moves with an input by jumps alone, or nowhere, with which backward
   is not zero (rounding, thresholds, quantisation: a straight-through estimator): ``surrogate``.
   That is decided for each input: one that no output jumps with is still held to the derivative,
   by the outputs that move smoothly with any input (the others answer by their surrogate). So is
   one with which they jump and move, where its gradient is a multiple of the derivative;
6. every output equals an input bit for bit (gradient scaling, reversal, noise): ``surrogate``,
   but where gradients are the cotangents of other outputs than theirs;
7. anything else: ``exact``, so that a wrong derivative is found. A constant factor is not
   taken for a surrogate: a forgotten factor is the commonest mistake of all.
"""

import itertools
import math
import time
from dataclasses import dataclass, replace

import torch

from pullback.conformance.comparison._values import same_bits
from pullback.conformance.evidence._derivative import decide, try_derivative
from pullback.conformance.evidence._linearity import linearity_gap
from pullback.conformance.evidence._screen import hides_slopes, is_multiple_of_own, unlike_own
from pullback.conformance.evidence._steps import (
    REACHES,
    Motion,
    Scan,
    is_flat,
    is_smooth,
    jumps,
    jumps_along,
    motions,
    scan_line,
)  # fmt: skip
from pullback.conformance.evidence._stopped import Stops, held
from pullback.conformance.inputs._vectors import flatten, inner, unflatten
from pullback.conformance.probing._probe import Probe, Tensors
from pullback.conformance.process._guard import guarded

__all__ = ["infer_intent"]

Positions = tuple[int, ...]


def infer_intent(probe: Probe) -> Probe:
    """The probe with its intent, and the reason where it was inferred."""
    declared = probe.subject.gradient
    if declared is not None:
        probe = replace(probe, intent=declared, inferred=False, reason="declared")
    if declared == "exact":
        return probe
    if probe.fault is not None:
        return _default(probe, "the default: plain backward does not run")
    if probe.erratic:
        return _default(probe, "the default: the same call gives other numbers each time")
    if not probe.outputs or not probe.inputs.differentiable:
        return _default(probe, "nothing is differentiated")
    try:
        with guarded():
            return _infer(probe) if declared is None else replace(probe, stops=_stops(probe))
    except (Exception, SystemExit):  # what fails here fails in its clauses, where it is reported
        return _default(probe, "the default: backward could not be compared")


def _default(probe: Probe, reason: str) -> Probe:
    return replace(probe, intent="exact", reason=reason) if probe.inferred else probe


def _infer(probe: Probe) -> Probe:
    """The probe with the intent, the reason, and what of a surrogate is held to a derivative."""
    # At the given point and at a second one.
    if linearity_gap(probe) is not None or linearity_gap(probe, 2) is not None:
        reason = "backward is not linear in the cotangent"
        # Whether forward has one that is measured and is not the identity's or a step's.
        told = any(try_derivative(probe, number).is_told for number in (0, 1))
        if told and not _is_identity(probe) and _stepped(probe) is None:
            return _default(probe, f"the default: {reason}, and forward has a derivative")
        return replace(probe, intent="nonlinear", reason=reason)
    trial = try_derivative(probe, 0)
    if trial.match == "match":
        trial = try_derivative(probe, 2)
    if trial.match == "match":
        return replace(probe, intent="exact", reason="backward agrees with the derivative")
    if trial.is_wrong and _stops(probe):
        every = tuple(range(len(probe.inputs.differentiable)))
        reason = "backward is the derivative with what forward detaches held as it is"
        return replace(
            probe, intent="surrogate", reason=reason, held=every, moving=probe.outputs, stops=True
        )
    if hides_slopes(probe) and trial.match == "unclear":
        # An input along which forward stands still to autograd, and that backward answers for.
        place = next((k for k, one, _ in unlike_own(probe, 0) or () if not one.any()), None)
        if place is None:
            return _default(probe, "the default: its precision shows no steps")
        reason = f"forward stands still along {probe.path(place)}, backward is not zero"
        return replace(probe, intent="surrogate", reason=reason)
    found = _stepped(probe)
    if found is not None:
        how, held, moving = found
        reason = f"forward {how}, backward is not zero"
        return replace(probe, intent="surrogate", reason=reason, held=held, moving=moving)
    if trial.is_wrong and _is_identity(probe) and not _is_permuted(probe):
        reason = "an output equals an input bit for bit, backward is not the identity"
        return replace(probe, intent="surrogate", reason=reason)
    return _default(probe, "the default: nothing shows that backward differs on purpose")


def _stops(probe: Probe) -> bool:
    """Whether backward stops gradients at what forward detaches, and is right but for that.

    Each gradient is the derivative with these values held, at the given point and beside it. One
    that is zero must be so by more than an argument that is detached where this has no effect.
    """
    points = probe.point(0)
    found = Stops.of(probe, points)
    if not found.values:
        return False
    outputs, there = probe.output_values(points), replace(probe, stops=True)
    if probe.differ(held(probe, points).output_values(points), outputs) is not None:
        return False  # what is detached is written to
    for k, gradient in enumerate(probe.backward(points, probe.spread(outputs, "stops"))):
        if not gradient.any():
            right = found.are_meant and all(_stands_still(probe, n, k) for n in (0, 2))
        else:
            trial = decide(lambda number, k=k: try_derivative(there, number, k), 3)
            right = trial.match == "match"
        if not right:
            return False
    return True


def _stands_still(probe: Probe, number: int, only: int) -> bool:
    """Whether forward stands still along one input with what it detaches at a point held."""
    points, step = probe.point(number), probe.direction("stops", only)
    there = held(probe, points)
    base = there.output_values(points)
    moved = (there.output_values(probe.moved(points, step, t)) for t in (2.0**-6, -(2.0**-6), 0.5))
    return all(same_bits(y, z) for found in moved for y, z in zip(base, found, strict=True))


def _stepped(probe: Probe) -> tuple[str, Positions, Positions] | None:
    """How an input is passed straight through, the inputs that nothing jumps with, by what."""
    count = len(probe.inputs.differentiable)
    moves = [motions(probe, k) for k in range(count)]
    until = time.process_time() + _SECONDS
    through = [k for k, found in enumerate(moves) if _passes(probe, k, found, until)]
    how = "moves by jumps with"
    if not through:
        through, how = _constant(probe, moves), "stands still along"
    if not through:
        return None
    smooth = [k for k, found in enumerate(moves) if found and not any(m.jumps for m in found)]
    # Close by first, then farther: of a few entries none may change its code close by.
    far = REACHES[2:], REACHES[1:]
    steps = {k: probe.direction(f"jumps {k}", k) for k in smooth}
    held = tuple(
        k for k, found in enumerate(moves)
        if (k in smooth and not jumps_along(probe, steps[k], *far))
        or (any(m.moves for m in found) and is_multiple_of_own(probe, k))
    )  # fmt: skip
    # Where no neuron comes to its threshold by its membrane, its spike stands still along it,
    # and backward is not zero all the same.
    by_output = zip(probe.outputs, zip(*filter(None, moves), strict=True), strict=True)
    moving = tuple(output for output, found in by_output if any(m.moves for m in found))
    return f"{how} {probe.path(through[0])}", held if moving else (), moving


def _passes(probe: Probe, only: int, found: list[Motion], until: float) -> bool:
    """Whether some output steps with an input, and sends a gradient to it."""
    stepped = [o for o, motion in enumerate(found) if motion.is_stepped]
    jumped = [o for o, motion in enumerate(found) if motion.jumps]
    doubted = found and not stepped and (jumped or not is_smooth(probe, only))
    if doubted and _steps_by_entry(probe, only, until):
        # A range that is measured moves every output a little; where it jumps need not be seen.
        stepped = jumped or list(range(len(found)))
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
            leaves = probe.leaves(points)
            outputs = probe.evaluate(leaves)
            alone = [g * (k == output) for k, g in enumerate(probe.spread(outputs, "answers"))]
            if bool(probe.pull(leaves, alone, outputs)[only].ne(0).any()):
                return True
        except Exception:
            if not far:
                raise
            continue  # not defined there
    return False


def _constant(probe: Probe, moves: list[list[Motion]]) -> list[int]:
    """Inputs that get a gradient from an output that is constant wherever it was looked at."""
    if [] in moves:
        return []
    by_output = enumerate(zip(*moves, strict=True))
    still = [o for o, found in by_output if not any(m.moves or m.jumps for m in found)]
    return [k for k in range(len(moves)) if any(_answers(probe, k, o) for o in still)]


def _is_identity(probe: Probe) -> bool:
    """Whether every differentiated output equals some input, near and far.

    One point is not enough: at ones, ``x * x`` is ``x``; nor are points nearby: on one side of
    zero a rectifier is the identity, and far from it whatever cuts small entries.
    """
    points, step, seen = probe.inputs.points(), probe.direction("identity"), 0
    constants = [v for k, v in enumerate(probe.inputs.values)
                 if k not in probe.inputs.differentiable]  # fmt: skip
    lines = [(1.0, reach) for reach in (0.0, 0.02, -1.0, 4.0, -4.0)]
    for size, reach in (*lines, (2.0**-6, 0.0), (-(2.0**-6), 0.0)):
        moved = [size * x + reach * v for x, v in zip(points, step, strict=True)]
        try:
            outputs = probe.evaluate(probe.leaves(moved))
        except Exception:  # noqa: S112 - not defined so far away
            continue
        if not all(any(torch.equal(y.detach(), x) for x in (*moved, *constants)) for y in outputs):
            return False
        seen += 1
    return seen > 1


def _is_permuted(probe: Probe) -> bool:
    """Whether backward hands several cotangents on as they are, in another order.

    Who means another gradient than that of the identity scales it, turns it round or cuts it.
    """
    points = probe.inputs.points()
    cotangents = probe.spread(probe.output_values(points), "permuted")
    gradients = probe.backward(points, cotangents)
    places = [k for g in gradients for k, w in enumerate(cotangents) if torch.equal(g, w)]
    return len(cotangents) > 1 and sorted(places) == [*range(len(cotangents))]


# A quantiser that measures its range by single entries scales every output a little with the entry
# that sets the range, so that no output is piecewise constant along a line on which all entries
# move. Along one entry alone it is: between two of its jumps every output stands still, and
# backward answers all the same. An exact Function with jumps (a threshold that cuts, a fraction)
# moves on one side of them, and where it does not its backward is zero, whatever factor is wrong
# with it. Signs times a measured mean move a little on both sides: there the jumps must be most of
# what the entry does, and backward must foretell the whole change and not the smooth part alone.
_ENTRIES = 6
_SECONDS = 2.0  # of work, after which one entry of each input is enough
# Beside the size of an output, or what backward foretells of a line: what is less is no step of a
# quantiser, but where a solver stops.
_STOPS, _LEAST = 2.0**-32, 2.0**-20
# The whole line, for jumps that are few, and its middle, where the entry sets no range.
_FAR, _CLOSE = (2.0, 1.0, 0.25, 2.0**-6), (0.125,)
_PLACES = 33
_BISECTED = 3
# What is left to slopes, at most, of what moves mostly by jumps.
_SMOOTH = 0.4


@dataclass(frozen=True)
class _Entry:
    """One entry of an input that moves alone, and the output that moves most with it."""

    step: Tensors
    only: int
    number: int
    scan: Scan
    own: int


def _steps_by_entry(probe: Probe, only: int, until: float) -> bool:
    """Whether outputs jump with single entries of an input, which backward passes straight through.

    Returns:
        Whether one entry tried stands still between its jumps, or half of them move mostly by
        jumps; not where an entry that nothing jumps with has a wrong derivative.
    """
    numbers = _spread_out(probe.inputs.points()[only].numel(), probe.generator("entries"))
    tried, passed, most = list[_Entry](), False, 0
    for number in numbers:
        if tried and time.process_time() > until:
            break
        entry = _entry(probe, only, number)
        if entry is None:
            continue
        tried.append(entry)
        if not passed:
            passed = _is_passed(probe, entry)
            most += not passed and _jumps_most(probe, entry)
    if passed:
        return not any(
            try_derivative(probe, 0, step=entry.step).is_wrong
            and not jumps_along(probe, entry.step, _FAR)
            for entry in tried
        )
    return 2 * most >= len(tried) > 0


def _spread_out(count: int, generator: torch.Generator) -> list[int]:
    """A random entry of each of some equal parts: one part may be quantised and another not."""
    parts = min(count, _ENTRIES)
    edges = [count * k // parts for k in range(parts + 1)] if parts else []
    return [
        int(torch.randint(low, high, (1,), generator=generator, device="cpu"))
        for low, high in itertools.pairwise(edges)
    ]


def _entry(
    probe: Probe, only: int, number: int, reaches: tuple[float, ...] = _FAR
) -> _Entry | None:
    """One entry and its line, as long as a typical entry is large; ``None`` if nothing moves."""
    step = probe.direction(f"entry {number}", only)
    flat = step[only].reshape(-1)
    alone = torch.zeros_like(flat)
    typical = flat.abs().square().mean().sqrt()
    alone[number] = flat[number].sgn() * torch.maximum(flat[number].abs(), typical)
    step[only] = alone.reshape(step[only].shape)
    scan = scan_line(probe, step, _PLACES, reaches)
    if scan is None:
        return None
    spread = scan.values.amax(0) - scan.values.amin(0)
    own = int(spread.argmax())
    still = max(64 * float(scan.rounding[own]), _STOPS * float(scan.values[:, own].abs().max()))
    moves = float(spread[own]) > still
    return _Entry(step, only, number, scan, own) if moves else None


def _is_passed(probe: Probe, entry: _Entry) -> bool:
    """Whether every output stands still on both sides of a jump, with a gradient all the same."""
    for line in (entry, _entry(probe, entry.only, entry.number, _CLOSE)):
        if line is None:
            continue
        for _, place in jumps(line.scan, line.own, _BISECTED):
            if is_flat(line.scan, None, place):
                return _height(line, place) > _LEAST * line.scan.reach * abs(
                    _foretold(probe, line, place)
                ) > 0  # fmt: skip
    return False


def _height(entry: _Entry, place: float) -> float:
    """How far the entry's own output jumps at a place."""
    apart = entry.scan.reach * _LEAST
    sides = [entry.scan.line(place + side * apart) for side in (-1, 1)]
    low, high = (math.nan if v is None else float(v[entry.own]) for v in sides)
    return abs(high - low)


def _jumps_most(probe: Probe, entry: _Entry) -> bool:
    """Whether the entry's own output moves mostly by jumps, which backward foretells."""
    places, values = entry.scan.places, entry.scan.values[:, entry.own].tolist()
    widths = [b - a for a, b in itertools.pairwise(places)]
    near = 2 * entry.scan.reach / _PLACES * 2.0**-12
    beside = [entry.scan.line(t + near) for t in places]
    if len(places) < _PLACES or any(v is None for v in beside):
        return False
    changes = [float(v[entry.own]) - value for v, value in zip(beside, values, strict=True)]  # type: ignore[index]
    total = sum(abs(b - a) for a, b in itertools.pairwise(values))
    # A jump that happens to lie within a small step is no slope.
    slopes = [change / near * (abs(change) < total / 256) for change in changes]
    smooth = [slope * width for slope, width in zip(slopes, widths, strict=False)]
    if sum(map(abs, smooth)) >= _SMOOTH * total:
        return False
    told = [_foretold(probe, entry, t) * width for t, width in zip(places, widths, strict=False)]
    if abs(sum(told) - (values[-1] - values[0])) > abs(sum(told) - sum(smooth)):
        return False
    # Beside a jump that a divisor makes as it passes zero, as in softmax(x / t), all is saturated.
    return any(
        abs(_foretold(probe, entry, place)) > 0 for _, place in jumps(entry.scan, entry.own, 1)
    )


def _foretold(probe: Probe, entry: _Entry, place: float) -> float:
    """The slope of the entry's own output along its line, as backward has it."""
    points = probe.inputs.points()
    moved = [x + place * v for x, v in zip(points, entry.step, strict=True)]
    outputs = probe.output_values(moved)
    unit = torch.zeros_like(flatten(outputs))
    unit[entry.own] = 1.0
    gradients = probe.backward(moved, unflatten(unit, outputs))
    gradient, step = (found[entry.only].reshape(-1) for found in (gradients, entry.step))
    return inner(gradient[entry.number], step[entry.number])
