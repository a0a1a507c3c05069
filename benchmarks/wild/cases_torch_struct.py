"""torch-struct: structured prediction."""

from benchmarks.wild._case import Published, randn

PACKAGE = "torch-struct"
CASES = [
    Published(
        "torch_struct.semirings.sparse_max:_SimplexProject",
        lambda g: (randn(g, 3, 4), -1),
        command="torch.randn(3, 4, dtype=torch.float64), -1",
    ),
]
