"""Wrong where arguments are of a kind, and along what keeps them so: their kind excuses nothing."""

import torch
from tests.specimens._specimen import Specimen
from tests.specimens.right.domains import (
    AngleTo,
    InsistsOnRotations,
    LikelihoodOfLogits,
    LogDeterminant,
    MotionLog,
    NegativeEntropy,
    QuaternionLog,
    RotationLog,
    direction,
    logarithms,
    motion,
    one_hot,
    rotation,
    shares,
    spectrum,
    unit,
)

__all__ = ["SPECIMENS"]


class HalfRotation(RotationLog):
    """The gradient is half of what it is."""

    size = 0.5


class OtherHandRotation(RotationLog):
    """Takes the inverse of J where its transpose is asked for: the sign of one term."""

    @classmethod
    def pull(cls, v, cotangent):
        return RotationLog.pull(-v, cotangent)


class InsistsAndHalves(InsistsOnRotations):
    """The same of one that refuses what is no rotation."""

    size = 0.5


class UnshiftedMotion(MotionLog):
    """The gradient of the shift is forgotten."""

    @classmethod
    def backward(cls, ctx, cotangent):
        return MotionLog.backward(ctx, torch.cat([cotangent[..., :3], 0 * cotangent[..., 3:]], -1))


class TwiceQuaternion(QuaternionLog):
    """The gradient of the whole angle, where half of it is returned."""

    size = 2.0


class OppositeAngle(AngleTo):
    """The derivative of the cosine, without that of its inverse."""

    size = -1.0


class EntropyOfOthers(NegativeEntropy):
    """The first entry has none."""

    @staticmethod
    def backward(ctx, cotangent):
        found = NegativeEntropy.backward(ctx, cotangent).clone()
        found[..., 0] = 0
        return found


class HalfOfLogits(LikelihoodOfLogits):
    """Half a softmax is subtracted too little."""

    @staticmethod
    def backward(ctx, cotangent):
        log_p, target = ctx.saved_tensors
        return cotangent.unsqueeze(-1) * (log_p.exp() - 0.5 * target), None


class DiagonalOfInverse(LogDeterminant):
    """The gradient of the diagonal alone, in a matrix of very different eigenvalues."""

    @staticmethod
    def backward(ctx, cotangent):
        found = LogDeterminant.backward(ctx, cotangent)
        return found.diagonal(dim1=-2, dim2=-1).diag_embed()


SPECIMENS = [
    Specimen(HalfRotation, lambda: (rotation(3),), "derivative"),
    Specimen(OtherHandRotation, lambda: (rotation(3),), "derivative"),
    Specimen(InsistsAndHalves, lambda: (rotation(3),), "derivative"),
    Specimen(UnshiftedMotion, lambda: (motion(2),), "derivative"),
    Specimen(TwiceQuaternion, lambda: (unit(3, 4),), "derivative"),
    Specimen(OppositeAngle, lambda: (unit(3, 5), direction(5)), "derivative"),
    Specimen(EntropyOfOthers, lambda: (shares(3, 4),), "derivative"),
    Specimen(HalfOfLogits, lambda: (logarithms(3, 4), one_hot(3, 4)), "derivative"),
    Specimen(DiagonalOfInverse, lambda: (spectrum(1.0, 0.3, 0.01, 1e-4),), "derivative"),
]
