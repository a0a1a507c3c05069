"""gpytorch: Gaussian processes."""

import torch

from benchmarks.wild._case import Published, positive, randn

PACKAGE = "gpytorch"


def _square_distance(left, right):
    return (left.unsqueeze(-2) - right.unsqueeze(-3)).square().sum(-1)


def _distance(left, right):
    return (_square_distance(left, right) + 1e-12).sqrt()


def _points(generator, number):
    return randn(generator, number, 2, grad=False)


def _matern(nu):
    return Published(
        "gpytorch.functions.matern_covariance:MaternCovariance",
        lambda g: (_points(g, 3), _points(g, 2), positive(g, 1, 1), nu, _distance),
        command="torch.randn(3, 2, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64), "
        "torch.rand(1, 1, dtype=torch.float64).add(0.5).requires_grad_(), 1.5, torch.cdist",
    )


def _natural(generator):
    root = randn(generator, 3, 3, grad=False)
    precision = root @ root.mT + 2 * torch.eye(3, dtype=torch.float64)
    return randn(generator, 3), (-0.5 * precision).requires_grad_()


def _natural_tril(generator):
    root = randn(generator, 3, 3, grad=False).tril()
    diagonal = positive(generator, 3, grad=False)
    lower = root - root.diagonal().diag() + diagonal.diag()
    return randn(generator, 3), lower.requires_grad_()


CASES = [
    Published(
        "gpytorch.functions.rbf_covariance:RBFCovariance",
        lambda g: (_points(g, 3), _points(g, 2), positive(g, 1, 1), _square_distance),
        command="torch.randn(3, 2, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64), "
        "torch.rand(1, 1, dtype=torch.float64).add(0.5).requires_grad_(), "
        "lambda a, b: torch.cdist(a, b).square()",
    ),
    _matern(1.5),
    Published(
        "gpytorch.functions._log_normal_cdf:LogNormalCDF",
        lambda g: (randn(g, 7),),
        command="torch.randn(7, dtype=torch.float64)",
    ),
    Published(
        "gpytorch.variational.natural_variational_distribution:_NaturalToMuVarSqrt", _natural
    ),
    Published(
        "gpytorch.variational.tril_natural_variational_distribution:_TrilNaturalToMuVarSqrt",
        _natural_tril,
    ),
    Published(
        "gpytorch.variational.large_batch_variational_strategy:QuadFormDiagonal",
        lambda g: (randn(g, 3, 3), randn(g, 3, 2)),
    ),
]
