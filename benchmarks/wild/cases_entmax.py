"""entmax: sparse attention."""

from benchmarks.wild._case import Published, randn, uniform

PACKAGE = "entmax"
CASES = [
    Published(
        "entmax.activations:SparsemaxFunction",
        lambda g: (randn(g, 3, 5), -1),
        command="torch.randn(3, 5, dtype=torch.float64), -1",
    ),
    Published(
        "entmax.activations:Entmax15Function",
        lambda g: (randn(g, 3, 5), -1),
        command="torch.randn(3, 5, dtype=torch.float64), -1",
    ),
    Published(
        "entmax.root_finding:EntmaxBisectFunction",
        lambda g: (randn(g, 2, 4), uniform(g, 1.4, 1.6, 2, 1), -1, 50, True),
    ),
    Published(
        "entmax.root_finding:SparsemaxBisectFunction",
        lambda g: (randn(g, 2, 4), -1, 50, True),
    ),
    Published(
        "entmax.root_finding:NormmaxBisectFunction",
        lambda g: (randn(g, 2, 4), 2, -1, 50),
    ),
    Published(
        "entmax.root_finding:BudgetBisectFunction",
        lambda g: (randn(g, 2, 4), 2, -1, 50),
    ),
    Published(
        "entmax.losses:SparsemaxLossFunction",
        lambda g: (randn(g, 3, 5), _target(g), None),
    ),
    Published(
        "entmax.losses:Entmax15LossFunction",
        lambda g: (randn(g, 3, 5), _target(g), None),
    ),
]


def _target(generator):
    import torch

    return torch.randint(0, 5, (3,), generator=generator)
