"""sparsemax: projection onto the simplex."""

from benchmarks.wild._case import Published, randn

PACKAGE = "sparsemax"
CASES = [
    Published(
        "sparsemax.sparsemax:SparsemaxFunction",
        lambda g: (randn(g, 3, 5), -1),
        command="torch.randn(3, 5, dtype=torch.float64), -1",
    )
]
