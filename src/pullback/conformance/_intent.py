"""Infer the gradient intent of a Function that declares none.

The rule, in order:

1. declared (on the class, or by the caller): taken as it is;
2. backward is not linear in the cotangent: ``nonlinear``, which the clause `linear` then calls
   broken because it was not declared;
3. backward agrees with the derivative: ``exact``;
4. it does not, and forward hides nothing: the true derivative is zero along every direction tried
   while backward is not (rounding, thresholds, quantisation: a straight-through estimator), or
   an output equals an input bit for bit (gradient scaling, reversal, noise): ``surrogate``;
5. anything else: ``exact``, so that a wrong derivative is found. A constant factor is not
   taken for a surrogate: a forgotten factor is the commonest mistake of all.
"""

from dataclasses import replace

import torch

from pullback.conformance._derivative import is_linear, try_derivative
from pullback.conformance._guard import guarded
from pullback.conformance._probe import Probe

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
    if not probe.outputs or not probe.inputs.differentiable:
        return replace(probe, intent="exact", reason="nothing is differentiated")
    try:
        with guarded():
            intent, reason = _infer(probe)
    except (
        Exception,
        SystemExit,
    ):  # a function that fails here fails in its clauses, where it is reported
        intent, reason = "exact", "the default: backward could not be compared with forward"
    return replace(probe, intent=intent, reason=reason)


def _infer(probe: Probe) -> tuple[str, str]:
    if not is_linear(probe):
        return "nonlinear", "backward is not linear in the cotangent"
    trial = try_derivative(probe, 0)
    if trial.match == "unclear":
        trial = try_derivative(probe, 2)
    if trial.match != "mismatch":
        return "exact", "backward agrees with the derivative"
    flat = [try_derivative(probe, number).estimate for number in (0, 1, 2, 3)]
    zeros = [e for e in flat if e.error <= e.noise and abs(e.value) + e.magnitude == 0.0]
    if len(zeros) >= 3:
        return "surrogate", "forward is constant almost everywhere, backward is not zero"
    if _is_identity(probe):
        return "surrogate", "an output equals an input bit for bit, backward is not the identity"
    return "exact", "the default: backward is not the derivative, and nothing shows that on purpose"


def _is_identity(probe: Probe) -> bool:
    """Whether every differentiated output equals some differentiated input, at several points.

    One point is not enough: at ones, ``x * x`` is ``x``.
    """
    for number in (0, 1, 2):
        points = probe.point(number)
        outputs = probe.evaluate(probe.leaves(points))
        if not all(any(torch.equal(y.detach(), x) for x in points) for y in outputs):
            return False
    return True
