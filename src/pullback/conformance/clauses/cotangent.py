"""`cotangent`: the incoming cotangent is never changed."""

from pullback.conformance._clause import Finding, Probe, clause
from pullback.conformance.comparison._values import same_bits
from pullback.internal.torch import version_of, versions_of

__all__ = ["cotangent"]


@clause(
    why="The incoming gradient may be shared with other branches of the graph, or held by "
    "a hook or by the caller. Changing it in place changes their gradients too.",
    breach="as a cotangent that differs from its copy, or whose version has moved.",
    mend="`cotangent * 2`, not `cotangent.mul_(2)`.",
)
def cotangent(probe: Probe) -> Finding:
    """Compare each incoming cotangent with its copy after backward."""
    leaves = probe.leaves()
    outputs = probe.evaluate(leaves)
    incoming = probe.cotangents(outputs)
    copies = [g.clone() for g in incoming]
    versions = versions_of(incoming)
    probe.pull(leaves, incoming, outputs)
    for k, (now, then) in enumerate(zip(incoming, copies, strict=True)):
        same = same_bits(now, then)
        if not same or version_of(now) != versions[k]:
            return probe.broken(
                f"Backward changed the cotangent of output {k} in place"
                f"{', here by the numbers that stood there' if same else ''}.",
                expected="" if same else then, got="" if same else now,
                place=f"cotangent of output {k}", said="",
                hint="Work on a clone: other branches of the graph may share the cotangent.",
                given={"w": copies},
                repro=[
                    f"ys = outs(); print('before', w[{k}])",
                    "torch.autograd.grad(ys, xs, [*w], allow_unused=True)",  # no copies
                    f"print('after ', w[{k}])",
                ],
            )  # fmt: skip
    return probe.holds("Cotangents are left as they came.")
