"""iunets: matrix exponentials and Cayley transforms."""

from benchmarks.wild._case import Published, randn

PACKAGE = "iunets"
CASES = [
    Published(
        "iunets.expm:expm",
        lambda g: (randn(g, 2, 3, 3),),
        command="torch.randn(2, 3, 3, dtype=torch.float64)",
    ),
    Published(
        "iunets.cayley:cayley",
        lambda g: (randn(g, 2, 3, 3),),
        command="torch.randn(2, 3, 3, dtype=torch.float64)",
    ),
]
