"""pytorch-tabnet: sparse attention over features."""

from benchmarks.wild._case import Published, randn

PACKAGE = "pytorch-tabnet"
_MODULE = "pytorch_tabnet.sparsemax"
CASES = [
    Published(
        f"{_MODULE}:SparsemaxFunction",
        lambda g: (randn(g, 3, 5), -1),
        command="torch.randn(3, 5, dtype=torch.float64), -1",
    ),
    Published(
        f"{_MODULE}:Entmax15Function",
        lambda g: (randn(g, 3, 5), -1),
        command="torch.randn(3, 5, dtype=torch.float64), -1",
    ),
    Published(
        f"{_MODULE}:Entmoid15",
        lambda g: (randn(g, 3, 4),),
        command="torch.randn(3, 4, dtype=torch.float64)",
    ),
]
