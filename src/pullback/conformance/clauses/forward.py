"""`forward` and `forward-over-forward`: tangents, the other direction of the same linear map."""

from collections.abc import Sequence

import torch
from torch.autograd import forward_ad

from pullback.conformance._derivative import decide, try_derivative
from pullback.conformance._finite import compare, differentiate
from pullback.conformance._probe import Probe, Tensors, flatten, products
from pullback.conformance._report import Finding

__all__ = ["forward", "forward_over_forward"]

_DERIVE = (
    "Write Function from pullback, which derives it from backward, or use pullback.complete(F)."
)


def forward(probe: Probe) -> Finding:
    """Compare <w, Jv> with <J'w, v>; a tangent that is silently None counts as zero."""
    for number in (0, 2):
        points = probe.point(number)
        step = probe.direction(f"forward {number}")
        try:
            outputs, tangents = _push(probe, points, step)
        except Exception as error:  # judged by its message
            return probe.failed(error, "Forward mode refuses", _DERIVE)
        filled = [
            torch.zeros_like(y) if t is None else t for y, t in zip(outputs, tangents, strict=True)
        ]
        weights = probe.cotangents(outputs, number)
        got, magnitude = products(weights, filled)
        expected, scale = products(probe.backward(points, weights), step)
        if probe.intent == "nonlinear":
            trial = decide(lambda n: try_derivative(probe, n))
            if trial is None:
                return probe.skipped(
                    "A nonlinear backward has no transpose, and forward a kink here."
                )
            expected = _true_derivative(probe, points, step, weights)
        tolerance = max(magnitude, scale) * torch.finfo(probe.dtype).eps ** 0.6
        if abs(got - expected) > tolerance:
            return _broken(probe, expected, got, any(t is None for t in tangents))
    return probe.holds("<w, Jv> = <J'w, v>: the tangent is the transpose of backward.")


def _push(
    probe: Probe, points: Sequence[torch.Tensor], step: Sequence[torch.Tensor]
) -> tuple[Tensors, list[torch.Tensor | None]]:
    """Outputs and tangents, detached from forward mode."""
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x.clone(), v) for x, v in zip(points, step, strict=True)]
        pairs = [forward_ad.unpack_dual(y) for y in probe.evaluate(duals)]
        return [p.primal.detach() for p in pairs], [p.tangent for p in pairs]


def _true_derivative(probe: Probe, points: Tensors, step: Tensors, weights: Tensors) -> float:
    with torch.no_grad():
        return differentiate(probe.along(probe.evaluate, step, points), flatten(weights)).value


def _broken(probe: Probe, expected: float, got: float, missing: bool) -> Finding:
    what = (
        "A tangent is silently None" if missing else "The tangent is not the transpose of backward"
    )
    return probe.broken(
        f"{what}: <w, Jv> is not <J'w, v>.",
        expected=f"{expected:.8g} (<J'w, v>, by backward)",
        got=f"{got:.8g} (<w, Jv>, by forward mode)",
        hint=f"Correct jvp, or leave it out. {_DERIVE}",
        repro=[
            "import torch.autograd.forward_ad as fwd; vs = [torch.randn_like(x) for x in xs]",
            "ws = [torch.randn_like(y) for y in outs()]; gs = torch.autograd.grad(outs(), xs, ws)",
            "with fwd.dual_level():",
            "    new = [fwd.make_dual(x.detach(), v) for x, v in zip(xs, vs)]; "
            "args = torch.utils._pytree.tree_map(lambda a: next((n for x, n in zip(xs, new) "
            "if x is a), a), args)",
            "    print('forward ', [fwd.unpack_dual(y).tangent for y in outs()], 'times', ws)",
            "    print('backward', sum((g * v).sum() for g, v in zip(gs, vs)).item(), '= <w, Jv>')",
        ],
    )


def forward_over_forward(probe: Probe) -> Finding:
    """Compare nested forward mode with finite differences of the Function's own backward."""
    if probe.intent == "nonlinear":
        return probe.skipped("A nonlinear backward has no transpose to differentiate.")
    points = probe.point(0)
    first, second = probe.direction("first"), probe.direction("second")
    try:
        _push(probe, points, first)
    except Exception as error:  # judged by its message
        return probe.failed(error, "Forward mode refuses", _DERIVE)
    for number in (0, 2):
        points = probe.point(number)
        weights = probe.cotangents([y.detach() for y in probe.evaluate(probe.leaves(points))])
        try:
            tangents = _push_twice(probe, points, first, second)
        except Exception as error:  # judged by its message
            return probe.failed(error, "Nested forward mode refuses", _DERIVE)
        got, magnitude = products(weights, tangents)

        def backward(moved: Tensors, weights: Tensors = weights) -> Tensors:
            return probe.backward(moved, weights)

        estimate = differentiate(probe.along(backward, second, points), flatten(first))
        if compare(estimate, got, magnitude, probe.dtype) == "mismatch":
            return probe.broken(
                "Nested forward mode is silently wrong.",
                expected=f"{estimate.value:.8g} +- {estimate.error:.1g}",
                got=f"{got:.8g}",
                hint=f"torch differentiates a jvp of its own once only. {_DERIVE}",
                repro=[
                    "from torch.func import jvp; x = xs[0].detach(); v = torch.ones_like(x)",
                    "def f(x): return sum(y.sum() for y in torch.utils._pytree.tree_leaves(call("
                    "*[x if a is xs[0] else a for a in args], **kwargs)))",
                    "def B(t): z = (x + t * v).requires_grad_(); "
                    "return (torch.autograd.grad(f(z), z)[0] * v).sum().item()",
                    "print('forward over forward   ', "
                    "jvp(lambda z: jvp(f, (z,), (v,))[1], (x,), (v,))[1].item())",
                    "print('differences of backward', (B(1e-5) - B(-1e-5)) / 2e-5)",
                ],
            )
    return probe.holds("Nested forward mode agrees with finite differences of backward.")


def _push_twice(probe: Probe, points: Tensors, first: Tensors, second: Tensors) -> Tensors:
    def once(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.func.jvp(probe.flat, leaves, tuple(first))[1]

    found = torch.func.jvp(once, tuple(points), tuple(second))[1]
    return [tangent.detach() for tangent in found]
