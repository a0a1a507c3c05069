"""Right Functions that stop a gradient on purpose, and say so by ``.detach()`` in forward."""

import torch
from tests.specimens._specimen import Specimen, normal


def over_largest(x):
    """Each row over its largest entry, which is taken for a constant."""
    return x / x.abs().amax(-1, keepdim=True).detach()


def temporal_difference(value, after):
    """A target network: no gradient reaches what comes after."""
    return (value - (1 + 0.9 * after.detach())) ** 2


def vector_quantised(z, codes):
    """Codes move to what they stand for, that to its code, and the rest straight through."""
    code = codes[torch.cdist(z.detach(), codes.detach()).argmin(-1)]
    loss = (code - z.detach()).square().sum(-1) + 0.25 * (z - code.detach()).square().sum(-1)
    return z + (code - z).detach(), loss


class Commitment(torch.autograd.Function):
    """The squared distance to the nearest code, which is to learn by another loss."""

    @staticmethod
    def forward(ctx, z, codes):
        code = codes[torch.cdist(z, codes).argmin(-1)].detach()
        ctx.save_for_backward(z, code)
        return (z - code).square().sum(-1)

    @staticmethod
    def backward(ctx, cotangent):
        z, code = ctx.saved_tensors
        return 2 * (z - code) * cotangent.unsqueeze(-1), None


class CentredByEstimate(torch.autograd.Function):
    """Less the mean of each row, an estimate that is not differentiated."""

    @staticmethod
    def forward(ctx, x):
        return x - x.mean(-1, keepdim=True).detach()

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent.clone()


class ByOwnScale(torch.autograd.Function):
    """Over the largest entry of each row, measured on what is detached first."""

    @staticmethod
    def forward(ctx, x):
        scale = x.detach().abs().amax(-1, keepdim=True)
        ctx.save_for_backward(scale)
        return x / scale

    @staticmethod
    def backward(ctx, cotangent):
        (scale,) = ctx.saved_tensors
        return cotangent / scale


class TargetByData(torch.autograd.Function):
    """A target that is cut off by ``.data``, as code older than ``.detach()`` does."""

    @staticmethod
    def forward(ctx, value, after):
        target = 1 + 0.9 * after.tanh().data
        ctx.save_for_backward(value, target)
        return (value - target) ** 2

    @staticmethod
    def backward(ctx, cotangent):
        value, target = ctx.saved_tensors
        return 2 * (value - target) * cotangent, None


SPECIMENS = [
    Specimen(over_largest, lambda: (normal(3, 4),)),
    Specimen(over_largest, lambda: (normal(3, 4),), gradient="surrogate"),
    Specimen(temporal_difference, lambda: (normal(3, 4), normal(3, 4, seed=2))),
    Specimen(vector_quantised, lambda: (normal(5, 3), normal(4, 3, seed=3))),
    Specimen(Commitment, lambda: (normal(5, 3), normal(4, 3, seed=3))),
    Specimen(CentredByEstimate, lambda: (normal(3, 4),)),
    Specimen(ByOwnScale, lambda: (normal(3, 4),)),
    Specimen(ByOwnScale, lambda: (normal(3, 4),), gradient="surrogate"),
    Specimen(TargetByData, lambda: (normal(3, 4), normal(3, 4, seed=2))),
]
