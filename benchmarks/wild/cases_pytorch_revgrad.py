"""pytorch-revgrad: gradient reversal."""

from benchmarks.wild._case import Published, randn

PACKAGE = "pytorch-revgrad"
CASES = [
    Published(
        "pytorch_revgrad.functional:RevGrad",
        lambda g: (randn(g, 3, 4), _one()),
        command="torch.randn(3, 4, dtype=torch.float64), torch.tensor(1.0)",
    )
]


def _one():
    import torch

    return torch.tensor(1.0, dtype=torch.float64)
