"""zuko: inverses and integrals with implicit gradients."""

import torch

from benchmarks.wild._case import Published, randn, uniform

PACKAGE = "zuko"


def _bisection(generator):
    scale = uniform(generator, 0.5, 2.0, 3)
    low, high = torch.full((3,), -9.0).double(), torch.full((3,), 9.0).double()
    return (lambda x: scale * x + x**3), randn(generator, 3), low, high, 60, scale


def _quadrature(generator):
    scale = uniform(generator, 0.5, 2.0, 3)
    low = uniform(generator, -1.0, 0.0, 3)
    high = uniform(generator, 1.0, 2.0, 3)
    return (lambda x: (scale * x).cos()), low, high, 5, scale


CASES = [
    Published("zuko.utils:Bisection", _bisection, notes="its function closes over a tensor"),
    Published("zuko.utils:GaussLegendre", _quadrature, notes="its function closes over a tensor"),
]
