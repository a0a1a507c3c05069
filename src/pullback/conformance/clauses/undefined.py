"""`undefined`: an undefined cotangent counts as zero, under both materialize settings."""

from dataclasses import replace
from typing import Any

import torch

from pullback.conformance._clause import Finding, Probe, Tensors, clause
from pullback.conformance.evidence._linearity import nothing_beside
from pullback.conformance.evidence._screen import Run
from pullback.conformance.inputs._vectors import are_finite

__all__ = ["undefined"]


class _UndefinedGradient(torch.autograd.Function):
    """The identity with an undefined gradient."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        return args[0].clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return None


@clause(
    why="An output that the loss does not use has no cotangent. Backward must treat it as "
    "zero, not fail and not reuse another one.",
    breach="when gradients by one output at a time do not sum to the joint one, or fail.",
    mend="Test for `None` after `set_materialize_grads(False)`.",
)
def undefined(probe: Probe) -> Finding:
    """Leave out cotangents: products by output must sum to the joint one, and none gives zero."""
    run = Run.of(probe)
    joint = run.gradients
    if len(run.outputs) > 1 and probe.intent != "nonlinear":
        total = [torch.zeros_like(g) for g in joint]
        for k in range(len(run.outputs)):
            alone = replace(probe, outputs=probe.outputs[k : k + 1])
            try:
                found = Run.of(alone, run.cotangents[k : k + 1]).gradients
            except Exception as error:  # judged by its type
                return _fails(probe, error, f"only output {k} is used")
            total = [a + b for a, b in zip(total, found, strict=True)]
        settled = are_finite(joint)
        place = probe.differ(total, joint, looser=1e3) if settled else None
        if place is not None:
            return _broken(probe, joint[place], total[place], place, run.cotangents)
    return _none_at_all(probe, joint) or probe.holds(
        "Gradients by one output at a time sum to the joint one; no cotangent gives no gradient."
    )


def _none_at_all(probe: Probe, joint: Tensors) -> Finding | None:
    leaves = probe.leaves()
    found = [_UndefinedGradient.apply(y) for y in probe.evaluate(leaves)]
    try:
        gradients = probe.pull(leaves, [torch.ones_like(y) for y in found], found)
    except Exception as error:  # judged by its type
        return _fails(probe, error, "every cotangent is undefined")
    for k, gradient in enumerate(gradients):
        # Zero times a slope that is infinite there is NaN in torch's own functions too.
        wrong = ~nothing_beside(gradient, joint[k].nan_to_num(0.0, 0.0, 0.0)) & joint[k].isfinite()
        if bool(wrong.any()) and probe.intent != "nonlinear":
            given = [torch.ones_like(y) for y in found]
            return _broken(probe, torch.zeros_like(gradient), gradient, k, given)
    return None


def _fails(probe: Probe, error: Exception, when: str) -> Finding:
    return probe.failed(
        error,
        f"Backward fails when {when}",
        "After ctx.set_materialize_grads(False) a cotangent may be None: test for it.",
        transform=False,
    )


def _broken(
    probe: Probe, expected: object, got: object, place: int, cotangents: Tensors
) -> Finding:
    return probe.broken(
        "Gradients by one output at a time do not sum to the joint gradient.",
        expected=expected,
        got=got,
        place=probe.path(place),
        hint="Treat a cotangent that is None as zero, and add the parts of all outputs.",
        given={"w": cotangents},
        repro=[
            "n = len(outs())",
            "print('joint', torch.autograd.grad(outs(), xs, w, allow_unused=True))",
            "for k in range(n):",
            "    print('output', k, 'alone', torch.autograd.grad(outs()[k], xs, w[k], "
            "allow_unused=True))",
        ],
    )
