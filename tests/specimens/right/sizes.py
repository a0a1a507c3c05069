"""Right Functions that another size tempts a false alarm from."""

import torch
from tests.specimens._specimen import Specimen, normal, positive

from pullback import Function


class MultipleOfFour(torch.autograd.Function):
    """Refuses a last dimension that is no multiple of four."""

    @staticmethod
    def forward(ctx, x):
        if x.shape[-1] % 4:
            raise ValueError(f"the last dimension must be a multiple of 4, not {x.shape[-1]}")
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return x.cos() * cotangent


class CrossProduct(torch.autograd.Function):
    """Three coordinates and no others; nobody checks, and backward says so in its own way."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return CrossProduct.cross(a, b)

    @staticmethod
    def cross(a, b):
        (ax, ay, az), (bx, by, bz) = a.unbind(-1)[:3], b.unbind(-1)[:3]
        return torch.stack([ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx], -1)

    @staticmethod
    def backward(ctx, cotangent):
        a, b = ctx.saved_tensors
        return CrossProduct.cross(b, cotangent), CrossProduct.cross(cotangent, a)


class BlockScale(Function):
    """Rounds to a grid for each block of four; the last block may be short."""

    gradient = "surrogate"

    @staticmethod
    def forward(x):
        parts = [part / part.abs().amax(-1, keepdim=True) for part in x.split(4, -1)]
        return torch.cat([(part * 7).round() / 7 for part in parts], -1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


class SegmentSum(torch.autograd.Function):
    """Sums rows between offsets that end at the number of rows; rows beyond are nobody's."""

    @staticmethod
    def forward(ctx, x, offsets):
        ctx.save_for_backward(offsets)
        ctx.shape = x.shape
        pairs = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
        return torch.stack([x[a:b].sum(0) for a, b in pairs])

    @staticmethod
    def backward(ctx, cotangent):
        (offsets,) = ctx.saved_tensors
        return cotangent.repeat_interleave(offsets.diff(), 0), None


class PrefixAverage(torch.autograd.Function):
    """An entry depends on all before it, so that a part of an input gives a part of an output."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        count = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
        return x.square().cumsum(-1) / count

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        count = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
        return 2 * x * (cotangent / count).flip(-1).cumsum(-1).flip(-1)


class Determinant(torch.autograd.Function):
    """A larger matrix overflows long before it is wrong."""

    @staticmethod
    def forward(ctx, a):
        value = torch.linalg.det(a)
        ctx.save_for_backward(a, value)
        return value

    @staticmethod
    def backward(ctx, cotangent):
        a, value = ctx.saved_tensors
        return cotangent * value * torch.linalg.inv(a).mT


class Power(torch.autograd.Function):
    """An exponent that happens to be the number of columns."""

    @staticmethod
    def forward(ctx, x, exponent):
        ctx.save_for_backward(x)
        ctx.exponent = exponent
        return x**exponent

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return ctx.exponent * x ** (ctx.exponent - 1) * cotangent, None


class ClippedByNorm(torch.autograd.Function):
    """Declared nonlinear: a longer cotangent has a longer norm."""

    gradient = "nonlinear"

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent / cotangent.norm().clamp(min=1)


class Quaternion(torch.autograd.Function):
    """Normalises four numbers, unpacked by name: five are a ValueError from Python."""

    @staticmethod
    def forward(ctx, q):
        w, x, y, z = q.unbind(-1)
        norm = (w * w + x * x + y * y + z * z).sqrt()
        ctx.save_for_backward(q)
        return q / norm.unsqueeze(-1)

    @staticmethod
    def backward(ctx, cotangent):
        (q,) = ctx.saved_tensors
        norm = q.square().sum(-1, keepdim=True).sqrt()
        unit = q / norm
        return (cotangent - unit * (unit * cotangent).sum(-1, keepdim=True)) / norm


SPECIMENS = [
    Specimen(MultipleOfFour, lambda: (normal(3, 4),)),
    Specimen(CrossProduct, lambda: (normal(4, 3), normal(4, 3, seed=5))),
    Specimen(BlockScale, lambda: (normal(2, 8),)),
    Specimen(SegmentSum, lambda: (normal(6, 2), torch.tensor([0, 2, 3, 6]))),
    Specimen(PrefixAverage, lambda: (normal(2, 5),)),
    Specimen(Determinant, lambda: (normal(4, 4),)),
    Specimen(Power, lambda: (positive(2, 3), 3)),
    Specimen(ClippedByNorm, lambda: (normal(6),)),
    Specimen(Quaternion, lambda: (normal(5, 4),)),
]
