"""Right Functions whose gradient is another on purpose: stopped, or moved as a rule says.

What is stopped they say by ``.detach()`` in forward.
"""

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


class RoundedSigmoid(torch.autograd.Function):
    """Its slope is that of the sigmoid at its output, which moves by jumps."""

    @staticmethod
    def forward(ctx, x):
        y = (4 * x.sigmoid()).round() / 4
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        (y,) = ctx.saved_tensors
        return cotangent * (y * (1 - y) + 0.1)


class Relevance(torch.autograd.Function):
    """Shares with the attribution of the scores in place of their gradient."""

    gradient = "surrogate"

    @staticmethod
    def forward(ctx, x):
        shares = x.softmax(-1)
        ctx.save_for_backward(x, shares)
        return shares

    @staticmethod
    def backward(ctx, cotangent):
        x, shares = ctx.saved_tensors
        return x * (cotangent - shares * cotangent.sum(-1, keepdim=True))


class OfBothOutputs(torch.autograd.Function):
    gradient = "surrogate"

    @staticmethod
    def forward(ctx, x):
        y, z = x.tanh(), x.sin()
        ctx.save_for_backward(y, z)
        return y, z

    @staticmethod
    def backward(ctx, one, other):
        y, z = ctx.saved_tensors
        return one * y + other * z * y


def of_a_code(x):
    """What is computed of an output that moves by jumps follows its rule too."""
    return RoundedSigmoid.apply(3 * x).sin() * x


of_a_code.gradient = "surrogate"


READS_ITS_OUTPUT = [
    Specimen(RoundedSigmoid, lambda: (normal(3, 4),)),
    Specimen(Relevance, lambda: (normal(3, 4),)),
    Specimen(OfBothOutputs, lambda: (normal(3, 4),)),
]
SPECIMENS = [
    *READS_ITS_OUTPUT,
    Specimen(of_a_code, lambda: (normal(3, 4),)),
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
