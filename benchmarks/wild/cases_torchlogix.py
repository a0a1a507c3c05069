"""torchlogix: differentiable logic gates."""

from benchmarks.wild._case import Published, randn

PACKAGE = "torchlogix"
CASES = [
    Published(
        "torchlogix.functional:GradFactor",
        lambda g: (randn(g, 3, 4), 2.0),
        command="torch.randn(3, 4, dtype=torch.float64), 2.0",
    )
]
