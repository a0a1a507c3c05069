"""Right Functions that special values tempt a false alarm from."""

import torch
from tests.specimens._specimen import Specimen, normal, positive


class Rule(torch.autograd.Function):
    """Saves its inputs."""

    @classmethod
    def keep(cls, ctx, *inputs):
        ctx.save_for_backward(*inputs)


class Reciprocal(Rule):
    """Undefined at zero, and its derivative too."""

    @staticmethod
    def forward(ctx, x):
        Rule.keep(ctx, x)
        return 1 / x

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return -cotangent / (x * x)


class SquareRoot(Rule):
    """An infinite slope at zero, and no value on the other side."""

    @staticmethod
    def forward(ctx, x):
        y = x.sqrt()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        (y,) = ctx.saved_tensors
        return cotangent / (2 * y)


class Entropy(Rule):
    """x log x is zero at zero, where its slope is infinite."""

    @staticmethod
    def forward(ctx, x):
        Rule.keep(ctx, x)
        return torch.xlogy(x, x)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent * (x.log() + 1)


class OneSided(Rule):
    """x to the power of 1.5, right from its one side."""

    @staticmethod
    def forward(ctx, x):
        Rule.keep(ctx, x)
        return x**1.5

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent * 1.5 * x.sqrt()


class RefusesZero(Rule):
    """Says that it is not defined at zero."""

    @staticmethod
    def forward(ctx, x):
        if bool((x == 0).any()):
            raise ValueError("x must not be zero")
        Rule.keep(ctx, x)
        return x.abs().log()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent / x


class Saturating(Rule):
    """Its slope is zero to the last digit where it saturates."""

    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        (y,) = ctx.saved_tensors
        return cotangent * (1 - y * y)


class LeakyRelu(Rule):
    """At its kink the slope of either side is right."""

    @staticmethod
    def forward(ctx, x):
        Rule.keep(ctx, x)
        return torch.where(x > 0, x, 0.1 * x)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent * torch.where(x > 0, 1.0, 0.1).to(cotangent.dtype)


class Norm(Rule):
    """Zero is in the subdifferential of the norm at zero."""

    @staticmethod
    def forward(ctx, x):
        Rule.keep(ctx, x)
        return x.norm(dim=-1)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        norm = x.norm(dim=-1, keepdim=True)
        unit = torch.where(norm > 0, x / norm, 0)
        return cotangent.unsqueeze(-1) * unit


class LargestEntry(Rule):
    """The first of several largest entries gets the gradient."""

    @staticmethod
    def forward(ctx, x):
        values, index = x.max(-1, keepdim=True)
        ctx.save_for_backward(index)
        ctx.size = x.shape
        return values.squeeze(-1)

    @staticmethod
    def backward(ctx, cotangent):
        (index,) = ctx.saved_tensors
        return cotangent.new_zeros(ctx.size).scatter(-1, index, cotangent.unsqueeze(-1))


class LargestEntries(Rule):
    """Several largest entries share the gradient."""

    @staticmethod
    def forward(ctx, x):
        Rule.keep(ctx, x)
        return x.amax(-1)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        ties = (x == x.amax(-1, keepdim=True)).to(x.dtype)
        return cotangent.unsqueeze(-1) * ties / ties.sum(-1, keepdim=True)


class UnitVector(Rule):
    """An epsilon so small that finite differences step over it."""

    @staticmethod
    def forward(ctx, x):
        Rule.keep(ctx, x)
        return x / (x.norm(dim=-1, keepdim=True) + 1e-12)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        norm = x.norm(dim=-1, keepdim=True)
        unit = torch.where(norm > 0, x / norm, 0)
        inner = (cotangent * x).sum(-1, keepdim=True) / (norm + 1e-12)
        return (cotangent - unit * inner) / (norm + 1e-12)


class SmallSquare(Rule):
    """x * x / (x + 1e-12): slope one everywhere but within 1e-12 of zero, where it is zero."""

    @staticmethod
    def forward(ctx, x):
        Rule.keep(ctx, x)
        return x * x / (x.abs() + 1e-12) * x.sign()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        size = x.abs()
        return cotangent * (size * size + 2e-12 * size) / (size + 1e-12) ** 2


class Overflowing(Rule):
    """The square overflows in forward too."""

    @staticmethod
    def forward(ctx, x):
        Rule.keep(ctx, x)
        return x * x * x

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent * 3 * x * x


class MaskedSoftmax(Rule):
    """Minus infinity stands for an entry that is not there."""

    @staticmethod
    def forward(ctx, x):
        y = x.softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        (y,) = ctx.saved_tensors
        return y * (cotangent - (y * cotangent).sum(-1, keepdim=True))


class RadialBasis(Rule):
    """exp(-x * x): at infinity its slope is written as infinity times zero."""

    @staticmethod
    def forward(ctx, x):
        Rule.keep(ctx, x)
        return (-x * x).exp()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return -2 * x * (-x * x).exp() * cotangent


class RowNorm(Rule):
    """Layer normalisation, at rows of one value too."""

    @staticmethod
    def forward(ctx, x):
        Rule.keep(ctx, x)
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        centred = x - x.mean(-1, keepdim=True)
        scale = 1 / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        unit = centred * scale
        g = cotangent - cotangent.mean(-1, keepdim=True)
        return (g - unit * (unit * cotangent).mean(-1, keepdim=True)) * scale


class ShareOfLargest(torch.autograd.Function):
    """Shares of the largest two: where all are equal, a difference of maxima has any two."""

    @staticmethod
    def forward(ctx, x):
        top, index = x.topk(2, -1)
        ctx.save_for_backward(x, index)
        return top.softmax(-1)

    @staticmethod
    def backward(ctx, cotangent):
        x, index = ctx.saved_tensors
        share = x.gather(-1, index).softmax(-1)
        slope = share * (cotangent - (cotangent * share).sum(-1, keepdim=True))
        return torch.zeros_like(x).scatter(-1, index, slope)


class Gate(Rule):
    """Where an infinite input saturates it, the slope by the weight is zero times infinity."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return (x * weight).sigmoid()

    @staticmethod
    def backward(ctx, cotangent):
        x, weight = ctx.saved_tensors
        y = (x * weight).sigmoid()
        slope = cotangent * y * (1 - y)
        return slope * weight, slope * x


class InversePermutation(Rule):
    """For permutations only, which nobody checks."""

    @staticmethod
    def forward(ctx, x, order):
        ctx.save_for_backward(order)
        return x[order]

    @staticmethod
    def backward(ctx, cotangent):
        (order,) = ctx.saved_tensors
        return cotangent[order.argsort()], None


class SecondSmallest(Rule):
    """Of equal entries any may be the one: the slope along each of them alone is zero."""

    @staticmethod
    def forward(ctx, x):
        found, place = x.kthvalue(2)
        ctx.count = len(x)
        ctx.save_for_backward(place)
        return 3 * found

    @staticmethod
    def backward(ctx, cotangent):
        (place,) = ctx.saved_tensors
        return cotangent.new_zeros(ctx.count).index_fill(0, place, 3) * cotangent


class Cell(Rule):
    """Saturates where its state is infinite, where a product has no gradient."""

    @staticmethod
    def forward(ctx, state, x, weight):
        y = torch.tanh(state @ weight + x)
        ctx.save_for_backward(state, weight, y)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        state, weight, y = ctx.saved_tensors
        inner = cotangent * (1 - y * y)
        return inner @ weight.mT, inner, state.mT @ inner


class BiasedSoftmax(Rule):
    """Does not depend on what is added to every score: a gradient of zero, but for rounding."""

    @staticmethod
    def forward(ctx, x, bias):
        y = torch.softmax(x + bias, -1)
        ctx.save_for_backward(y)
        ctx.save_for_forward(y)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        (y,) = ctx.saved_tensors
        inner = y * (cotangent - (cotangent * y).sum(-1, keepdim=True))
        return inner, inner.sum(-1, keepdim=True)

    @staticmethod
    def jvp(ctx, x, bias):
        (y,) = ctx.saved_tensors
        step = sum((t for t in (x, bias) if t is not None), torch.zeros_like(y))
        return y * (step - (step * y).sum(-1, keepdim=True))


class KeepsWhereNotReset(torch.autograd.Function):
    """A flag of zeros and ones, given as numbers; backward asks for it as a flag."""

    @staticmethod
    def forward(ctx, state, reset):
        ctx.save_for_backward(reset)
        return state * (1 - reset)

    @staticmethod
    def backward(ctx, cotangent):
        (reset,) = ctx.saved_tensors
        return torch.where(reset.bool(), 0, cotangent), None


class NearestCodes(torch.autograd.Function):
    """Of two codes that are all but equally near bfloat16 takes the other one."""

    @staticmethod
    def forward(ctx, x, codes):
        squares = (codes**2).sum(1) + (x**2).sum(1, keepdim=True)
        index = torch.addmm(squares, x, codes.T, alpha=-2.0).argmin(1)
        ctx.save_for_backward(index)
        ctx.size = codes.shape
        return codes[index]

    @staticmethod
    def backward(ctx, cotangent):
        (index,) = ctx.saved_tensors
        by_codes = cotangent.new_zeros(ctx.size)
        return cotangent.clone(), by_codes.index_add(0, index, cotangent)


SPECIMENS = [
    Specimen(NearestCodes, lambda: (normal(64, 6), normal(16, 6, seed=2))),
    Specimen(KeepsWhereNotReset, lambda: (normal(3, 4), torch.zeros(3, 4, dtype=torch.float64))),
    Specimen(BiasedSoftmax, lambda: (normal(3, 4), normal(3, 1))),
    Specimen(SecondSmallest, lambda: (normal(5),)),
    Specimen(Cell, lambda: (normal(2, 3), normal(2, 3), normal(3, 3))),
    Specimen(Reciprocal, lambda: (normal(3, 4),)),
    Specimen(SquareRoot, lambda: (positive(3, 4),)),
    Specimen(Entropy, lambda: (positive(3, 4),)),
    Specimen(OneSided, lambda: (positive(3, 4),)),
    Specimen(RefusesZero, lambda: (normal(3, 4),)),
    Specimen(Saturating, lambda: (normal(3, 4),)),
    Specimen(LeakyRelu, lambda: (normal(3, 4),)),
    Specimen(Norm, lambda: (normal(3, 4),)),
    Specimen(LargestEntry, lambda: (normal(3, 4),)),
    Specimen(LargestEntries, lambda: (normal(3, 4),)),
    Specimen(UnitVector, lambda: (normal(3, 4),)),
    Specimen(SmallSquare, lambda: (normal(3, 4),)),
    Specimen(Overflowing, lambda: (normal(3, 4),)),
    Specimen(MaskedSoftmax, lambda: (normal(3, 4),)),
    Specimen(RadialBasis, lambda: (normal(3, 4),)),
    Specimen(RowNorm, lambda: (normal(3, 4),)),
    Specimen(ShareOfLargest, lambda: (normal(3, 5),)),
    Specimen(Gate, lambda: (normal(3, 4), normal(3, 4, seed=2))),
    Specimen(InversePermutation, lambda: (normal(4, 2), torch.tensor([2, 0, 3, 1]))),
]
