"""`forward-over-forward`: nested forward mode is right, or refused."""

import torch

from pullback.conformance._clause import clause
from pullback.conformance._derivative import second_slopes
from pullback.conformance._evidence import compare
from pullback.conformance._probe import Probe, Tensors
from pullback.conformance._spans import has_basis, spans
from pullback.conformance._vectors import flatten, products
from pullback.conformance.clauses._hints import DERIVE, SCALAR
from pullback.conformance.clauses._push import push
from pullback.report import Finding

__all__ = ["forward_over_forward"]


@clause(
    "forward-over-forward",
    promise="Nested forward mode is right, or refused.",
    why="Second directional derivatives nest forward mode. torch answers some of these "
    "with zeros in place of an error. `jacfwd(jacfwd(f))` of a torch Function is one: "
    "torch differentiates a `jvp` once.",
    breach="against finite differences of the Function's own backward.",
    mend="`pullback.Function`, or `pullback.complete(F)`.",
)
def forward_over_forward(probe: Probe) -> Finding:
    """Compare nested forward mode with finite differences of the Function's own backward."""
    # Long: one trial after another, each with its own finding.
    if probe.intent == "nonlinear":
        return probe.skipped("A nonlinear backward has no transpose to differentiate.")
    points = probe.point(0)
    first, second = probe.direction("first"), probe.direction("second")
    try:
        _, tangents = push(probe, points, first)
    except Exception as error:  # judged by its type
        return probe.failed(error, "Forward mode refuses", DERIVE, rule="jvp")
    if probe.subject.operator is not None and any(t is None for t in tangents):
        return probe.skipped("Forward mode has no tangent; `forward` says why.")
    if has_basis(probe.output_values(points)):
        probe = spans(probe)
    for number in (0, 2):
        points = probe.point(number)
        weights = probe.cotangents(probe.output_values(points))
        try:
            twice = _push_twice(probe, points, first, second)
        except Exception as error:  # judged by its type
            return probe.failed(error, "Nested forward mode refuses", DERIVE)
        got, magnitude = products(weights, twice)

        still = [torch.zeros_like(w) for w in weights]
        slopes = second_slopes(probe, [*points, *weights], [*second, *still])
        if slopes is None:
            continue
        estimate = slopes.weigh(flatten(first))
        if compare(estimate, got, magnitude, probe.dtype) == "mismatch":
            return probe.broken(
                "Nested forward mode is silently wrong.",
                expected=f"{estimate.value:.8g} +- {estimate.error:.1g}",
                got=f"{got:.8g}",
                hint=f"torch differentiates a jvp of its own once only. {DERIVE}",
                repro=[
                    "from torch.func import jvp; x = xs[0].detach(); v = torch.ones_like(x)",
                    SCALAR,
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
