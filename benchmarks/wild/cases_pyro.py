"""pyro-ppl: distributions with path derivatives of their own."""

from benchmarks.wild._case import Published, positive, randn

PACKAGE = "pyro-ppl"
CASES = [
    Published(
        "pyro.ops.special:_SafeLog",
        lambda g: (positive(g, 3, 4),),
        command="torch.rand(3, 4, dtype=torch.float64) + 0.5",
    ),
    Published(
        "pyro.distributions.relaxed_straight_through:QuantizeCategorical",
        lambda g: (positive(g, 3, 4),),
    ),
    Published(
        "pyro.distributions.relaxed_straight_through:QuantizeBernoulli",
        lambda g: (positive(g, 3, 4),),
    ),
]


def _lower(generator):
    import torch

    lower = randn(generator, 3, 3, grad=False).tril() * 0.3
    return (lower + torch.eye(3, dtype=torch.float64)).requires_grad_()
