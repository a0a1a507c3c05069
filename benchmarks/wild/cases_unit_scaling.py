"""unit-scaling: scaled gradients, scale tracking."""

from benchmarks.wild._case import Published, randn

PACKAGE = "unit-scaling"
CASES = [
    Published(
        "unit_scaling.scale:_ScaledGrad",
        lambda g: (randn(g, 3, 4), 0.5, 2.0),
        gradient="surrogate",
        command="torch.randn(3, 4, dtype=torch.float64), 0.5, 2.0",
    ),
    Published(
        "unit_scaling.utils:ScaleTracker",
        lambda g: (randn(g, 3, 4), _pair()),
        notes="records into its argument",
    ),
]


def _pair():
    from unit_scaling.utils import ScalePair

    return ScalePair()
