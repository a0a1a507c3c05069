"""Infer the gradient intent of a Function that declares none.

The rule, in order:

1. declared (on the class, or by the caller): taken as it is;
2. backward is not linear in the cotangent: ``nonlinear``, which the clause `linear` then calls
   broken because it was not declared;
3. backward agrees with the derivative: ``exact``;
4. it does not, and an output moves with an input by jumps alone, with which backward is not zero
   (rounding, thresholds, quantisation: a straight-through estimator): ``surrogate``. That is
   decided for each input: one that no output jumps with is still held to the derivative;
5. every output equals an input bit for bit (gradient scaling, reversal, noise): ``surrogate``;
6. anything else: ``exact``, so that a wrong derivative is found. A constant factor is not
   taken for a surrogate: a forgotten factor is the commonest mistake of all.
"""

from dataclasses import replace

import torch

from pullback.conformance._derivative import is_linear, try_derivative
from pullback.conformance._guard import guarded
from pullback.conformance._probe import Probe
from pullback.conformance._steps import Motion, jumps_anywhere, motions, steps_by_entry

__all__ = ["infer_intent"]


def infer_intent(probe: Probe) -> Probe:
    """The probe with its intent, and the reason where it was inferred.

    Arguments:
        probe: prepared, without intent.

    Returns:
        The same probe with ``intent``, ``inferred`` and ``reason``.
    """
    declared = probe.subject.gradient
    if declared is not None:
        return replace(probe, intent=declared, inferred=False, reason="declared")
    if probe.fault is not None:
        return replace(probe, intent="exact", reason="the default: plain backward does not run")
    if not probe.outputs or not probe.inputs.differentiable:
        return replace(probe, intent="exact", reason="nothing is differentiated")
    try:
        with guarded():
            intent, reason, held = _infer(probe)
    except (
        Exception,
        SystemExit,
    ):  # a function that fails here fails in its clauses, where it is reported
        intent, reason, held = "exact", "the default: backward could not be compared", ()
    return replace(probe, intent=intent, reason=reason, held=held)


def _infer(probe: Probe) -> tuple[str, str, tuple[int, ...]]:
    """The intent, the reason, and the inputs of a surrogate that the derivative is asked of."""
    if not is_linear(probe):
        return "nonlinear", "backward is not linear in the cotangent", ()
    trial = try_derivative(probe, 0)
    if trial.match == "match":
        trial = try_derivative(probe, 2)
    if trial.match == "match":
        return "exact", "backward agrees with the derivative", ()
    found = _stepped(probe)
    if found is not None:
        path, held = found
        return "surrogate", f"forward moves by jumps with {path}, backward is not zero", held
    if trial.match == "mismatch" and _is_identity(probe):
        reason = "an output equals an input bit for bit, backward is not the identity"
        return "surrogate", reason, ()
    return "exact", "the default: nothing shows that backward differs on purpose", ()


def _stepped(probe: Probe) -> tuple[str, tuple[int, ...]] | None:
    """An input that is passed straight through steps, and the inputs nothing jumps with."""
    count = len(probe.inputs.differentiable)
    moves = [motions(probe, k) for k in range(count)]
    through = [k for k, found in enumerate(moves) if _passes(probe, k, found)]
    if not through:
        return _constant(probe, moves)
    smooth = [k for k, found in enumerate(moves) if found and not any(m.jumps for m in found)]
    held = tuple(k for k in smooth if not jumps_anywhere(probe, k))
    return probe.path(through[0]), held


def _passes(probe: Probe, only: int, found: list[Motion]) -> bool:
    """Whether some output steps with an input, and sends a gradient to it."""
    stepped = [o for o, motion in enumerate(found) if motion.is_stepped]
    if not stepped and any(m.jumps for m in found) and steps_by_entry(probe, only):
        stepped = [o for o, motion in enumerate(found) if motion.jumps]
    return any(_answers(probe, only, output) for output in stepped)


def _answers(probe: Probe, only: int, output: int) -> bool:
    """Whether backward answers the cotangent of one output alone with something but zero."""
    leaves = probe.leaves()
    outputs = probe.evaluate(leaves)
    alone = [g * (k == output) for k, g in enumerate(probe.spread(outputs, "answers"))]
    return bool(probe.pull(leaves, alone, outputs)[only].ne(0).any())


def _constant(probe: Probe, moves: list[list[Motion]]) -> tuple[str, tuple[int, ...]] | None:
    """A forward that is constant wherever it was looked at, with a backward that is not zero."""
    if not moves or any(m.moves or m.jumps for found in moves for m in found) or [] in moves:
        return None
    count = range(len(probe.outputs))
    for k in range(len(moves)):
        if any(_answers(probe, k, output) for output in count):
            return probe.path(k), ()
    return None


def _is_identity(probe: Probe) -> bool:
    """Whether every differentiated output equals some differentiated input, near and far.

    One point is not enough: at ones, ``x * x`` is ``x``; nor are points nearby: on one side of
    zero a rectifier is the identity.
    """
    points, step = probe.inputs.points(), probe.direction("identity")
    seen = 0
    for reach in (0.0, 0.02, -1.0, 4.0, -4.0):
        moved = [x + reach * v for x, v in zip(points, step, strict=True)]
        try:
            outputs = probe.evaluate(probe.leaves(moved))
        except Exception:  # noqa: S112 - not defined so far away
            continue
        if not all(any(torch.equal(y.detach(), x) for x in moved) for y in outputs):
            return False
        seen += 1
    return seen > 1
