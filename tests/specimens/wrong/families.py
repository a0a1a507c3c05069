"""Faults that a plain gradcheck never meets, several of each family and each of another kind."""

from typing import ClassVar

import torch
from tests.specimens._specimen import Specimen, normal

from pullback import Function

__all__ = ["SPECIMENS"]


class Rule(torch.autograd.Function):
    """Saves its inputs."""

    @classmethod
    def keep(cls, ctx, *inputs):
        ctx.save_for_backward(*inputs)


class Sine(Rule):
    """What the faults below are put into."""

    @staticmethod
    def forward(ctx, x):
        Rule.keep(ctx, x)
        return x.sin()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return x.cos() * cotangent


# A buffer of the class is used again by calls of one shape ---------------------------------------


class SharedOutput(Sine):
    """The next call of the same shape writes into the output of this one."""

    buffers: ClassVar = {}

    @staticmethod
    def forward(ctx, x):
        Rule.keep(ctx, x)
        key = (x.shape, x.dtype)
        buffer = SharedOutput.buffers.setdefault(key, torch.empty_like(x.detach()))
        torch.sin(x.detach(), out=buffer)
        return buffer.view_as(buffer)


class SharedGradient(Sine):
    """The gradient is written where the one before still lies."""

    buffers: ClassVar = {}

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        key = (x.shape, x.dtype)
        buffer = SharedGradient.buffers.setdefault(key, torch.empty_like(x))
        with torch.no_grad():
            buffer.copy_(x.cos() * cotangent)
        return buffer


class SharedScratch(Sine):
    """What backward needs lies in a buffer that the next call of the same shape fills."""

    buffers: ClassVar = {}

    @staticmethod
    def forward(ctx, x):
        ctx.key = (x.shape, x.dtype)
        SharedScratch.buffers[ctx.key] = x.detach().cos()
        return x.sin()

    @staticmethod
    def backward(ctx, cotangent):
        return SharedScratch.buffers[ctx.key] * cotangent


# A cotangent whose strides are zero, as sum().backward() sends it --------------------------------


class OnesOfSum(Sine):
    """Takes every cotangent without strides for the ones of a sum."""

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        if not any(cotangent.stride()):
            return x.cos()
        return x.cos() * cotangent


class SumOfExpanded(Sine):
    """Adds up what was expanded over rows and columns."""

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        if cotangent.ndim > 1 and not any(cotangent.stride()):
            cotangent = cotangent.sum()
        return x.cos() * cotangent


class ExpandedSquare(Sine):
    """Reads rows that all lie in one place as a matrix of its own."""

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        if cotangent.ndim == 2 and cotangent.stride(0) == 0:
            cotangent = cotangent.mT
        return x.cos() * cotangent


# Lists of tensors as one argument ----------------------------------------------------------------


class SumOfList(Rule):
    """torch looks into no list: nothing in it gets a gradient."""

    @staticmethod
    def forward(ctx, tensors):
        return sum(t.sin() for t in tensors)

    @staticmethod
    def backward(ctx, cotangent):
        return (cotangent,)


class ScaledList(Rule):
    """A tensor beside the list hides that the list gets nothing."""

    @staticmethod
    def forward(ctx, x, tensors):
        Rule.keep(ctx, x, *tensors)
        return x * sum(tensors)

    @staticmethod
    def backward(ctx, cotangent):
        tensors = ctx.saved_tensors[1:]
        return cotangent * sum(tensors), None


class SwappedList(Function):
    """Gives the gradients of a list in the wrong order."""

    @staticmethod
    def forward(tensors):
        return tensors[0].sin() * tensors[1]

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[0])

    @staticmethod
    def backward(ctx, cotangent):
        first, second = ctx.saved_tensors
        return [cotangent * first.sin(), cotangent * second * first.cos()]


class TimesTwo(Rule):
    """Forgets its factor; it is handed one tensor of a list."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


def of_a_list(tensors):
    return tensors[0] * TimesTwo.apply(tensors[1])


# What torch keeps the last of, where it is told twice --------------------------------------------


class MarksTwice(Rule):
    """Only the second of two marks counts, so that the first output carries a history."""

    @staticmethod
    def forward(ctx, x):
        Rule.keep(ctx, x)
        lower, upper = x.detach().floor(), x.detach().ceil() + 0.5
        ctx.mark_non_differentiable(lower)
        ctx.mark_non_differentiable(upper)
        return x.sin(), lower, upper

    @staticmethod
    def backward(ctx, cotangent, lower, upper):
        (x,) = ctx.saved_tensors
        return x.cos() * cotangent


class DirtyTwice(Rule):
    """Only the second of two inputs is taken for changed."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.mark_dirty(x)
        ctx.mark_dirty(y)
        return x.mul_(2), y.mul_(3)

    @staticmethod
    def backward(ctx, first, second):
        return 2 * first, 3 * second


class SavesTwice(Rule):
    """Only the second of two saves is there; backward makes do with what it finds."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x)
        ctx.save_for_backward(w)
        return x * w

    @staticmethod
    def backward(ctx, cotangent):
        x, w = ctx.saved_tensors[0], ctx.saved_tensors[-1]
        return cotangent * w, cotangent * x


# A default dtype that breaks other dtypes --------------------------------------------------------


class SingleConstant(Sine):
    """A table of coefficients in the default dtype, of which float64 keeps seven digits."""

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        third = torch.tensor([1 / 3], device=x.device).to(x.dtype)
        return 3 * third * x.cos() * cotangent


class SingleOutput(Rule):
    """An output in the default dtype, whatever comes in."""

    @staticmethod
    def forward(ctx, x):
        Rule.keep(ctx, x)
        y = torch.zeros(x.shape)
        y += x.sin()
        return y.to(x.dtype)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return x.cos() * cotangent


class SingleGradient(Rule):
    """A gradient that is put together in the default dtype, which takes no other."""

    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return x[index] * 1.0

    @staticmethod
    def backward(ctx, cotangent):
        (index,) = ctx.saved_tensors
        return torch.zeros(ctx.shape).index_add(0, index, cotangent), None


class OfTheDefault(Sine):
    """Takes the default dtype for that of its input."""

    @staticmethod
    def forward(ctx, x):
        Rule.keep(ctx, x)
        return x.to(torch.get_default_dtype()).sin().to(x.dtype)


# NaN with a batch of one -------------------------------------------------------------------------


class CorrectedVariance(Rule):
    """Corrects a variance and takes the correction back: 0 / 0 of one row."""

    @staticmethod
    def forward(ctx, x):
        Rule.keep(ctx, x)
        return (x - x.mean(0)).square().mean(0) + x.sum(0)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        count = torch.tensor(float(len(x)), dtype=x.dtype)
        corrected = 2 * (x - x.mean(0)) / (count - 1)
        return (corrected * (count - 1) / count + 1) * cotangent


class Others(Rule):
    """The mean of the other rows, which one row has none of; forward says zero."""

    @staticmethod
    def forward(ctx, x):
        Rule.keep(ctx, x)
        others = (x.sum(0) - x) / max(len(x) - 1, 1)
        return x * others + x

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        count = torch.tensor(len(x) - 1.0, dtype=x.dtype)
        direct = cotangent * ((x.sum(0) - x) / count + 1)
        return direct + ((cotangent * x).sum(0) - cotangent * x) / count


class RelativeEntropy(Rule):
    """Beside the logarithm of the count, which is zero for one."""

    @staticmethod
    def forward(ctx, x):
        Rule.keep(ctx, x)
        scale = torch.tensor(float(max(len(x), 2))).log()
        return x.square().sum(0) / scale

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        scale = torch.tensor(float(len(x)), dtype=x.dtype).log()
        return 2 * x * (cotangent / scale)


# A jvp with tangents for some inputs only --------------------------------------------------------


class TangentOfFirst(Rule):
    """Forgets the tangent of the weight."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        ctx.save_for_forward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, cotangent):
        x, w = ctx.saved_tensors
        return cotangent * w, cotangent * x

    @staticmethod
    def jvp(ctx, x_t, w_t):
        return x_t * ctx.saved_tensors[1]


class TangentTogether(TangentOfFirst):
    """Answers where both have a tangent; where one has none, which torch hands over as None, 0."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.set_materialize_grads(False)
        return TangentOfFirst.forward(ctx, x, w)

    @staticmethod
    def jvp(ctx, x_t, w_t):
        x, w = ctx.saved_tensors
        if x_t is None or w_t is None:
            return torch.zeros_like(x)
        return x_t * w + x * w_t


class TangentOfFirstOutput(Rule):
    """The second output has none."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, first, second):
        (x,) = ctx.saved_tensors
        return first * x.cos() - second * x.sin()

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return tangent * x.cos(), torch.zeros_like(tangent)


# Wrong where two sizes are ragged at once --------------------------------------------------------


class Corner(Sine):
    """A kernel over tiles of four by four, whose corner is masked twice."""

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        gradient = x.cos() * cotangent
        if gradient.ndim > 1:
            gradient[..., gradient.shape[-2] // 4 * 4 :, gradient.shape[-1] // 4 * 4 :] = 0
        return gradient


class BothRagged(Rule):
    """A product by tiles that forgets the rest of the sum where the rows have one too."""

    @staticmethod
    def forward(ctx, a, b):
        Rule.keep(ctx, a, b)
        return a @ b

    @staticmethod
    def backward(ctx, cotangent):
        a, b = ctx.saved_tensors
        rows, columns = a.shape[-2], b.shape[-1]
        whole = columns // 2 * 2 if rows % 2 else columns
        return cotangent[..., :whole] @ b[..., :whole].mT, a.mT @ cotangent


class OddCount(Sine):
    """Pairs of entries, whatever the shape: only a count of odd sizes alone is odd."""

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        gradient = (x.cos() * cotangent).contiguous()
        if gradient.numel() % 2:
            gradient.view(-1)[-1] = 0
        return gradient


# Right for even sizes only -----------------------------------------------------------------------


class Halves(Rule):
    """Rotates one half of the columns into the other; the middle one turns by itself."""

    @staticmethod
    def forward(ctx, x):
        half = x.shape[-1] // 2
        return torch.cat([-x[..., half:], x[..., :half]], -1) + x

    @staticmethod
    def backward(ctx, cotangent):
        half = cotangent.shape[-1] // 2
        return torch.cat([cotangent[..., half:], -cotangent[..., :half]], -1) + cotangent


class RealSpectrum(Rule):
    """The power of half a spectrum; an odd length has no last frequency of its own."""

    @staticmethod
    def forward(ctx, x):
        Rule.keep(ctx, x)
        return torch.fft.rfft(x).abs().square().sum(-1)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        spectrum, count = torch.fft.rfft(x), x.shape[-1]
        weights = torch.ones(spectrum.shape[-1], dtype=x.dtype)
        weights[0] = weights[-1] = 2
        return count * torch.fft.irfft(spectrum * weights, n=count) * cotangent.unsqueeze(-1)


class Alternating(Rule):
    """A sum with signs that is its own transpose at even lengths: flipped, the last sign is +."""

    @staticmethod
    def signs(count, like):
        return torch.tensor([(-1.0) ** k for k in range(count)], dtype=like.dtype)

    @staticmethod
    def forward(ctx, x):
        Rule.keep(ctx, x)
        return (x.square() * Alternating.signs(x.shape[-1], x)).sum(-1)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return -2 * x * Alternating.signs(x.shape[-1], x).flip(-1) * cotangent.unsqueeze(-1)


_ROWS = torch.tensor([2, 0, 1])

SPECIMENS = [
    Specimen(SharedOutput, lambda: (normal(3, 4),), "state"),
    Specimen(SharedGradient, lambda: (normal(3, 4),), "state"),
    Specimen(SharedScratch, lambda: (normal(3, 4),), "state"),
    Specimen(OnesOfSum, lambda: (normal(3, 4),), "layout"),
    Specimen(OnesOfSum, lambda: (normal(3),), "layout"),
    Specimen(SumOfExpanded, lambda: (normal(3, 4),), "layout"),
    Specimen(ExpandedSquare, lambda: (normal(3, 3),), "layout"),
    Specimen(SumOfList, lambda: ([normal(3), normal(3, seed=2)],), "structure"),
    Specimen(ScaledList, lambda: (normal(3), [normal(3), normal(3, seed=2)]), "structure"),
    Specimen(SwappedList, lambda: ([normal(3), normal(3, seed=2)],), "derivative"),
    Specimen(of_a_list, lambda: ([normal(3), normal(3, seed=2)],), "derivative"),
    Specimen(of_a_list, lambda: ([torch.randn(3), torch.randn(3)],), "derivative"),
    Specimen(MarksTwice, lambda: (normal(3, 4),), "non-differentiable"),
    Specimen(DirtyTwice, lambda: (normal(3), normal(4, seed=2)), "mutation"),
    Specimen(SavesTwice, lambda: (normal(3), normal(3, seed=2)), "derivative"),
    Specimen(SingleConstant, lambda: (normal(3, 4),), "dtype", verdict="untidy"),
    Specimen(SingleOutput, lambda: (normal(3, 4),), "dtype"),
    Specimen(SingleGradient, lambda: (normal(4, 2, dtype=torch.float32), _ROWS), "dtype"),
    Specimen(OfTheDefault, lambda: (normal(3, 4),), "dtype"),
    Specimen(CorrectedVariance, lambda: (normal(3, 4),), "sizes"),
    Specimen(Others, lambda: (normal(3, 4),), "sizes"),
    Specimen(RelativeEntropy, lambda: (normal(3, 4),), "sizes"),
    Specimen(TangentOfFirst, lambda: (normal(3), normal(3, seed=2)), "forward"),
    Specimen(TangentTogether, lambda: (normal(3), normal(3, seed=2)), "forward"),
    Specimen(TangentOfFirstOutput, lambda: (normal(3),), "forward"),
    Specimen(Corner, lambda: (normal(4, 8),), "sizes"),
    Specimen(BothRagged, lambda: (normal(2, 3), normal(3, 4)), "sizes"),
    Specimen(OddCount, lambda: (normal(2, 4),), "sizes"),
    Specimen(Halves, lambda: (normal(3, 4),), "sizes"),
    Specimen(RealSpectrum, lambda: (normal(3, 4),), "sizes"),
    Specimen(Alternating, lambda: (normal(2, 4),), "sizes"),
]
