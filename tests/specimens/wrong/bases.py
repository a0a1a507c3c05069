"""Wrong where an output is an orthonormal basis, whose choice is free and excuses nothing."""

import torch
from tests.specimens._specimen import Specimen, normal
from tests.specimens.right.manners import FirstEigenvector, NullRows, NullSpace, symmetric

__all__ = ["SPECIMENS"]


class Scaled(NullSpace):
    """Every gradient is twice what it is."""

    @staticmethod
    def backward(ctx, cotangent):
        return 2 * NullSpace.backward(ctx, cotangent)


class ScaledRows(NullRows):
    """Every gradient is twice what it is."""

    @staticmethod
    def backward(ctx, cotangent):
        return 2 * NullRows.backward(ctx, cotangent)


class OtherSign(FirstEigenvector):
    """The gradient of the other of the two eigenvectors that differ by their sign."""

    @staticmethod
    def backward(ctx, cotangent):
        return -FirstEigenvector.backward(ctx, cotangent)


class NotFiniteAtZero(NullSpace):
    """NaN where an entry is zero."""

    @staticmethod
    def backward(ctx, cotangent):
        gradient = NullSpace.backward(ctx, cotangent)
        return torch.where((ctx.saved_tensors[0] == 0).any(), torch.nan, gradient)


class TwiceAtZero(NullSpace):
    """Twice what it is where an entry is zero."""

    @staticmethod
    def backward(ctx, cotangent):
        gradient = NullSpace.backward(ctx, cotangent)
        return torch.where((ctx.saved_tensors[0] == 0).any(), 2 * gradient, gradient)


class ConstantInverse(NullSpace):
    """The pseudo-inverse is a constant to the second derivative."""

    @staticmethod
    def backward(ctx, cotangent):
        a, basis = ctx.saved_tensors
        return -torch.linalg.pinv(a).mT.detach() @ cotangent @ basis.mT


class UnitColumn(torch.autograd.Function):
    """A single column has no choice but its sign; its backward is wrong beside zeros."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x / x.norm(dim=0, keepdim=True).clamp(min=1e-12)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        norm = x.norm(dim=0, keepdim=True)
        y = x / norm
        gradient = (cotangent - y * (y * cotangent).sum(0, keepdim=True)) / norm
        return torch.where((x[:1] == 0).all(), 2 * gradient, gradient)


def wide():
    return (normal(2, 5),)


SPECIMENS = [
    Specimen(Scaled, wide, "derivative"),
    Specimen(ScaledRows, wide, "derivative"),
    Specimen(OtherSign, lambda: (symmetric(4),), "derivative"),
    Specimen(NotFiniteAtZero, wide, "values"),
    Specimen(TwiceAtZero, wide, "values"),
    Specimen(UnitColumn, lambda: (normal(5, 1),), "values"),
    Specimen(ConstantInverse, wide, "double"),
]
