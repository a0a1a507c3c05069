"""`transforms`: `torch.func.grad`, `vjp`, `jacrev` and `hessian` agree with autograd."""

from dataclasses import replace

from pullback.conformance._clause import Finding, Probe, Verdict, clause
from pullback.conformance.clauses._hints import COMPLETE
from pullback.conformance.evidence._derivative import has_basis, spans
from pullback.conformance.evidence._transforms import ALONE, Batch
from pullback.conformance.process._failure import classify, describe

__all__ = ["transforms"]


@clause(
    why="torch.func.grad, vjp, jacrev and hessian must return what autograd returns. Code "
    "moved from one to the other would change its result.",
    breach="as a difference on a plane through the point, so that any size is cheap.",
    mend="The split form (`setup_context`), `pullback.Function`, or `pullback.complete(F)`.",
)
def transforms(probe: Probe) -> Finding:
    """Compare each transform with the Function's own backward."""
    lacking: dict[str, list[str]] = {}
    crashed: dict[str, list[str]] = {}
    batch = Batch.of(spans(probe) if has_basis(probe.output_values()) else probe)
    for name, transform in ALONE.items():
        try:
            wrong = transform.wrong(batch)
        except Exception as error:  # judged by its type
            kind = lacking if classify(error) is Verdict.LACKING else crashed
            kind.setdefault(describe(error, 120), []).append(name)
            continue
        if wrong is not None:
            expected, got = wrong
            there = replace(probe, inputs=probe.inputs.with_points(batch.items[0][0]))
            return there.broken(
                f"torch.func.{name} is silently wrong.",
                expected=expected, got=got, hint=COMPLETE,
                given=batch.given, repro=transform.shown(),
            )  # fmt: skip
    if crashed:
        return probe.crashes(f"torch.func fails in {_list(crashed)}", COMPLETE)
    if lacking:
        return probe.lacking(f"torch.func refuses {_list(lacking)}", COMPLETE)
    return probe.holds("torch.func.grad, vjp, jacrev and hessian agree with autograd.")


def _list(messages: dict[str, list[str]]) -> str:
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in messages.items())
