"""`forward-over-forward`: nested forward mode is right, or refused."""

from dataclasses import replace

from pullback.conformance._clause import Finding, Probe, clause
from pullback.conformance.clauses._hints import DERIVE
from pullback.conformance.evidence._derivative import has_basis, spans
from pullback.conformance.evidence._transforms import NESTED, Batch, push

__all__ = ["forward_over_forward"]


@clause(
    why="Second directional derivatives nest forward mode. torch answers some of these "
    "with zeros in place of an error. `jacfwd(jacfwd(f))` of a torch Function is one: "
    "torch differentiates a `jvp` once.",
    breach="against finite differences of the Function's own backward.",
    mend="`pullback.Function`, or `pullback.complete(F)`.",
)
def forward_over_forward(probe: Probe) -> Finding:
    """Compare nested forward mode with finite differences of the Function's own backward."""
    if probe.intent == "nonlinear":
        return probe.skipped("A nonlinear backward has no transpose to differentiate.")
    points = probe.point(0)
    try:
        _, tangents = push(probe, points, probe.direction("first"))
    except Exception as error:  # judged by its type
        return probe.failed(error, "Forward mode refuses", DERIVE, rule="jvp")
    if probe.subject.operator is not None and any(t is None for t in tangents):
        return probe.skipped("Forward mode has no tangent; `forward` says why.")
    batch = Batch.of(spans(probe) if has_basis(probe.output_values(points)) else probe)
    try:
        wrong = NESTED.wrong(batch)
    except Exception as error:  # judged by its type
        return probe.failed(error, "Nested forward mode refuses", DERIVE)
    if wrong is None:
        return probe.holds("Nested forward mode agrees with finite differences of backward.")
    expected, got = wrong
    there = replace(probe, inputs=probe.inputs.with_points(batch.items[0][0]))
    return there.broken(
        "Nested forward mode is silently wrong.", expected=expected, got=got,
        hint=f"torch differentiates a jvp of its own once only. {DERIVE}",
        given=batch.given, repro=["from torch.func import jvp", *NESTED.shown()],
    )  # fmt: skip
