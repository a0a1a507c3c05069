"""Wrong Functions whose gradient is another on purpose, which is not why they are wrong."""

import torch
from tests.specimens._specimen import Specimen, normal
from tests.specimens.right.stopped import (
    ByOwnScale,
    CentredByEstimate,
    Commitment,
    OfBothOutputs,
    Relevance,
)


class TwiceByOwnScale(ByOwnScale):
    """What is detached is a constant on purpose; the factor is not."""

    @staticmethod
    def backward(ctx, cotangent):
        return 2 * ByOwnScale.backward(ctx, cotangent)


class OtherCommitment(Commitment):
    @staticmethod
    def backward(ctx, cotangent):
        found, _ = Commitment.backward(ctx, cotangent)
        return 0.5 * found, None


class HalfCentred(CentredByEstimate):
    """Neither with the mean held nor without."""

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent - 0.5 * cotangent.mean(-1, keepdim=True)


class ProductByArrays(torch.autograd.Function):
    """Detached for numpy alone; the gradient of the weight is forgotten."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return torch.from_numpy(x.detach().numpy() * weight.exp().detach().numpy())

    @staticmethod
    def backward(ctx, cotangent):
        (weight,) = ctx.saved_tensors
        return cotangent * weight.exp(), None


class ForgetsWeight(torch.autograd.Function):
    """As forwards do that hand their arguments to a kernel."""

    @staticmethod
    def forward(ctx, x, weight):
        x, weight = x.detach(), weight.detach()
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, cotangent):
        _, weight = ctx.saved_tensors
        return cotangent * weight, None


class RelevanceOfDetached(Relevance):
    """The second derivative does not follow the output."""

    @staticmethod
    def backward(ctx, cotangent):
        x, shares = ctx.saved_tensors
        return x * (cotangent - shares.detach() * cotangent.sum(-1, keepdim=True))


class RelevanceOfACopy(Relevance):
    """A copy is no output: it moves as forward has it, and has no history."""

    @staticmethod
    def forward(ctx, x):
        shares = x.softmax(-1)
        ctx.save_for_backward(x, shares.clone())
        return shares


class OfOneOutput(OfBothOutputs):
    @staticmethod
    def backward(ctx, one, other):
        y, z = ctx.saved_tensors
        return one * y + other * z * y.detach()


SPECIMENS = [
    Specimen(RelevanceOfDetached, lambda: (normal(3, 4),), "double"),
    Specimen(RelevanceOfACopy, lambda: (normal(3, 4),), "double"),
    Specimen(OfOneOutput, lambda: (normal(3, 4),), "double"),
    Specimen(TwiceByOwnScale, lambda: (normal(3, 4),), "derivative"),
    Specimen(OtherCommitment, lambda: (normal(5, 3), normal(4, 3, seed=3)), "derivative"),
    Specimen(HalfCentred, lambda: (normal(3, 4),), "derivative"),
    Specimen(ProductByArrays, lambda: (normal(3, 4), normal(3, 4, seed=2)), "derivative"),
    Specimen(ForgetsWeight, lambda: (normal(3, 4), normal(3, 4, seed=2)), "derivative"),
    Specimen(CentredByEstimate, lambda: (normal(3, 4),), "derivative", gradient="exact"),
]
