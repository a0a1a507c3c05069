"""`linear`: backward is linear in the cotangent, and zero maps to zero."""

from pullback.conformance._clause import clause
from pullback.conformance._linearity import linearity_gap
from pullback.conformance._probe import Probe
from pullback.report import Finding

__all__ = ["linear"]


@clause(
    "linear",
    promise="Backward is linear in the cotangent, and zero maps to zero.",
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
    place, expected, got = gap
    return probe.broken(
        "Backward is not linear in the cotangent.",
        expected=expected[place],
        got=got[place],
        place=probe.path(place),
        hint="Make backward linear in the cotangent, or, where it is not on purpose (clipping), "
        'declare gradient = "nonlinear".',
        repro=[
            "ws = [[torch.randn_like(y) for y in outs()] for _ in range(2)]",
            "for w in ws[1]: w.view(-1)[w.numel() // 2:][:1] *= 1e3  # an outlier shows a clip",
            "def B(w): return torch.autograd.grad(outs(), xs, w, allow_unused=True)",
            "mixed = B([2.5 * a - 1.5 * b for a, b in zip(*ws)])",
            f"a, b, k = B(ws[0]), B(ws[1]), {place}",
            "print('2.5 B(a) - 1.5 B(b)', 2.5 * a[k] - 1.5 * b[k])",
            "print('B(2.5 a - 1.5 b)   ', mixed[k], 'B(0)', B([y * 0 for y in outs()])[k])",
        ],
    )
