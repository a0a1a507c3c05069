"""`compositions`: each pair of transforms equals its parts, or refuses by itself."""

from pullback.conformance._clause import Finding, Probe, clause
from pullback.conformance.clauses._hints import SCALAR
from pullback.conformance.evidence._transforms import PAIRS, Batch, Transform, push
from pullback.conformance.process._failure import describe

__all__ = ["compositions"]


@clause(
    why="Gradients of each sample, Hessian-vector products and Laplace approximations are "
    "transforms of transforms. Each level asks other rules of a Function, so that two that are "
    "right alone may be wrong together.",
    breach="against a loop over the Function's own backward, and against finite differences of it: "
    "vmap of grad, grad of vmap, vmap of jvp, jvp of vmap, jvp of grad, grad of jvp, hessian of "
    "vmap and vmap of hessian. Compiled ones are judged by `compile`.",
    mend="`pullback.Function`, or `pullback.complete(F)`.",
)
def compositions(probe: Probe) -> Finding:
    """Compare each pair of transforms with what the Function's own backward says."""
    batch = Batch.of(probe)
    answered: list[str] = []
    refused: dict[str, list[str]] = {}
    points, _, step, _ = batch.items[0]
    # A nonlinear backward has no transpose, and torch drops the tangents of operators.
    reverse = probe.intent == "nonlinear" or (
        probe.subject.operator is not None
        and any(tangent is None for tangent in push(probe, points, step)[1])
    )
    for name, pair in PAIRS.items():
        if reverse and name not in ("vmap of grad", "grad of vmap"):
            continue
        try:
            wrong = pair.wrong(batch)
        except Exception as error:  # loud: `transforms`, `vmap` and `forward` say how clearly
            refused.setdefault(describe(error, 100), []).append(name)
            continue
        answered.append(name)
        if wrong is not None:
            expected, got = wrong
            return probe.broken(
                f"The {name} is silently wrong.",
                expected=expected, got=got, repro=_repro(pair),
                hint="Leave out jvp and vmap and let pullback.Function derive them, or use "
                "pullback.complete(F).",
            )  # fmt: skip
    said = "; ".join(f"{', '.join(names)}: {text}" for text, names in refused.items())
    if not answered:
        return probe.skipped(f"Every pair is refused, as its parts are: {said}.")
    more = f" Refused: {said}." if said else ""
    return probe.holds(f"Right, each against its parts: {', '.join(answered)}.{more}")


def _repro(pair: Transform) -> list[str]:
    return [
        "from torch.func import grad, jvp, vmap; x = xs[0].detach(); V = torch.randn(3, *x.shape)",
        SCALAR,
        "def b(z): z = z.clone().requires_grad_(); return torch.autograd.grad(f(z), z)[0]",
        "def B(Z): return torch.stack([b(z) for z in Z])",
        "X = torch.stack([x, 1.1 * x, 0.9 * x]); V = V.to(x)",
        f"print('composed', {pair.source})",
        f"print('parts   ', {pair.parts})",
    ]
