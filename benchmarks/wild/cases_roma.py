"""roma: rotations, the few published Functions that come with a jvp."""

from benchmarks.wild._case import Published, randn

PACKAGE = "roma"
CASES = [
    Published(
        "roma.mappings:_ProcrustesManualDerivatives",
        lambda g: (randn(g, 2, 3, 3), True, 1e-5),
        command="torch.randn(2, 3, 3, dtype=torch.float64), True, 1e-5",
    ),
    Published(
        "roma.mappings:_HornEigenvectorManualDerivatives",
        lambda g: (randn(g, 2, 3, 3), 1e-5),
    ),
    Published(
        "roma.mappings:_ProcrustesRegularization",
        lambda g: (randn(g, 2, 3, 3), randn(g, 2, 3, 3), 0.1),
        notes="adds a term that does not depend on the cotangent, so that nothing is its transpose",
    ),
]
