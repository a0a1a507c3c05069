"""`linear`: backward is linear in the cotangent, and zero maps to zero."""

from dataclasses import replace

import torch

from pullback.conformance._clause import Finding, Probe, clause
from pullback.conformance.cause._repair import Right
from pullback.conformance.cause._wrong_derivative import edit_of
from pullback.conformance.evidence._linearity import linearity_gap

__all__ = ["linear"]


@clause(
    why="Autograd adds cotangents that arrive over several paths and scales them, for "
    "loss scaling as for weighted losses. That is right only for a backward that is "
    "linear in the cotangent and sends zero to zero.",
    breach="as `B(2.5a - 1.5b)` off from `2.5 B(a) - 1.5 B(b)`, also where `b` has an outlier, or "
    "`B(0)` off from zero.",
    mend='Make it linear, or declare `gradient = "nonlinear"`.',
)
def linear(probe: Probe) -> Finding:
    """Compare B(2.5a - 1.5b) with 2.5 B(a) - 1.5 B(b), and B(0) with 0."""
    if probe.intent == "nonlinear" and not probe.inferred:
        return probe.skipped("The backward is declared nonlinear in the cotangent.")
    for number in (0, 2):
        gap = linearity_gap(probe, number)
        if gap is not None:
            break
    else:
        return probe.holds("B(2.5a - 1.5b) = 2.5 B(a) - 1.5 B(b) and B(0) = 0.")
    there = replace(probe, inputs=probe.inputs.with_points(gap.points))
    detail, moving = "Backward is not linear in the cotangent.", any(bool(g.any()) for g in gap.a)
    if not moving:  # B(g) - B(0) is linear, as far as can be told
        outputs = [y.detach() for y in probe.evaluate(probe.leaves(gap.points))]
        other = probe.backward(gap.points, probe.cotangents(outputs, "a"))[gap.place]
        whole = torch.equal(other, gap.got[gap.place])
        detail = (
            f"{'The gradient' if whole else 'A term of the gradient'} of {probe.path(gap.place)} "
            "is not multiplied by the cotangent: it is the same for every one, zero too."
        )
    edit = edit_of(there, gap.place) if probe.intent == "exact" or probe.inferred else Right()
    return there.broken(
        f"{detail} {edit.said}".strip(),
        expected=gap.expected[gap.place],
        got=gap.got[gap.place],
        said="",
        place=probe.path(gap.place),
        hint=f"{edit.mend or 'Make backward linear in the cotangent.'} If it is on purpose, as of "
        'one that clips, declare gradient = "nonlinear".',
        given={"a": gap.a, "b": gap.b},
        repro=[
            "def B(w):",
            f"    g = torch.autograd.grad(outs(), xs, w, allow_unused=True)[{gap.place}]",
            f"    return torch.zeros_like(xs[{gap.place}]) if g is None else g",
            *(["print('2.5 B(a) - 1.5 B(b)', 2.5 * B(a) - 1.5 * B(b))",
               "print('B(2.5 a - 1.5 b)   ', B([2.5 * g - 1.5 * h for g, h in zip(a, b)]))"]
              if moving else ["print('0   ', 0 * B(a))", "print('B(0)', B([0 * g for g in a]))"]),
        ],
    )  # fmt: skip
