"""Wrong calls: form, needs-input-grad, undefined, non-differentiable, deterministic, state, retain,
structure."""

import random
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from tests.specimens._specimen import Specimen, normal


class BiasNotSummed(torch.autograd.Function):
    """The gradient of the bias has the shape of the output; autograd sums it silently."""

    @staticmethod
    def forward(ctx, x, bias):
        return x + bias

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent, cotangent


class GradientInFloat32(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, cotangent):
        return (2 * cotangent).float()


class TooFewGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.factor


class WrongNeeds(torch.autograd.Function):
    """Asks whether the first input needs a gradient before it computes the second's."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, cotangent):
        x, y = ctx.saved_tensors
        return y * cotangent, x * cotangent if ctx.needs_input_grad[0] else None


class NeedsOffByOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x @ y

    @staticmethod
    def backward(ctx, cotangent):
        x, y = ctx.saved_tensors
        first = cotangent @ y.mT if ctx.needs_input_grad[0] else None
        second = x.mT @ cotangent if ctx.needs_input_grad[2 - 1] and first is not None else None
        return first, second


class NoneNotHandled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        return first * 2 + second * 3


class NoneDropsTheOther(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        if first is None or second is None:
            return None
        return first * 2 + second * 3


class MarksAnotherTensor(torch.autograd.Function):
    """Marks the indices, then returns a copy of them as numbers."""

    @staticmethod
    def forward(ctx, x):
        values, indices = x.max(-1)
        ctx.save_for_backward(x, indices)
        ctx.mark_non_differentiable(indices)
        return values, indices.to(x.dtype)

    @staticmethod
    def backward(ctx, cotangent, unused):
        x, indices = ctx.saved_tensors
        return torch.zeros_like(x).scatter(-1, indices.unsqueeze(-1), cotangent.unsqueeze(-1))


class MarksADifferentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        mean, spread = x.mean(-1), x.square().mean(-1)
        ctx.save_for_backward(x)
        ctx.mark_non_differentiable(spread)
        return mean, spread

    @staticmethod
    def backward(ctx, mean_cotangent, spread_cotangent):
        (x,) = ctx.saved_tensors
        n = x.shape[-1]
        return (mean_cotangent.unsqueeze(-1) + 2 * x * spread_cotangent.unsqueeze(-1)) / n


class IgnoresOneOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, first, second):
        (x,) = ctx.saved_tensors
        return x.cos() * first


class NearestCode(torch.autograd.Function):
    """Straight through to the entries; how far each was from its code is returned as well."""

    @staticmethod
    def forward(ctx, x, codes):
        far, index = (x[:, None, :] - codes).square().sum(-1).min(1)
        ctx.save_for_backward(index)
        ctx.count = len(codes)
        return codes[index], far

    @staticmethod
    def backward(ctx, cotangent, unused):
        (index,) = ctx.saved_tensors
        by_codes = cotangent.new_zeros(ctx.count, cotangent.shape[1])
        return cotangent, by_codes.index_add(0, index, cotangent)


class CountsItsCalls(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):
        CountsItsCalls.calls += 1
        ctx.factor = 1.0 / CountsItsCalls.calls
        return x * ctx.factor

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.factor


class PrivateRandomness(torch.autograd.Function):
    """Draws from a generator that no seed reaches."""

    source = random.SystemRandom()

    @staticmethod
    def forward(ctx, x):
        ctx.factor = PrivateRandomness.source.random()
        return x * ctx.factor

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.factor


class SavedOnTheClass(torch.autograd.Function):
    kept = None

    @staticmethod
    def forward(ctx, x):
        SavedOnTheClass.kept = x.detach().clone()
        return x * x

    @staticmethod
    def backward(ctx, cotangent):
        return 2 * SavedOnTheClass.kept * cotangent


class CountsOnTheClass(torch.autograd.Function):
    """The mean of each segment; how many entries each has belongs to one call."""

    counts: ClassVar[Any] = None

    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        CountsOnTheClass.counts = torch.bincount(index, minlength=4).clamp(min=1)[:, None]
        return x.new_zeros(4, x.shape[1]).index_add(0, index, x) / CountsOnTheClass.counts

    @staticmethod
    def backward(ctx, cotangent):
        (index,) = ctx.saved_tensors
        return (cotangent / CountsOnTheClass.counts)[index], None


class MaskOnTheClass(torch.autograd.Function):
    """A masked square; the mask belongs to one call."""

    mask: ClassVar[Any] = None

    @staticmethod
    def forward(ctx, x, mask):
        ctx.save_for_backward(x)
        MaskOnTheClass.mask = mask
        return x * x * mask

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 2 * x * cotangent * MaskOnTheClass.mask, None


class SharedStack(torch.autograd.Function):
    """A global stack: right as long as backward runs in the reverse order of forward."""

    stack: ClassVar[list[torch.Tensor]] = []

    @staticmethod
    def forward(ctx, x):
        SharedStack.stack.append(x.detach().clone())
        del SharedStack.stack[:-8]
        return x * x

    @staticmethod
    def backward(ctx, cotangent):
        return 2 * SharedStack.stack[-1] * cotangent


class BackwardCounts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.factor = 2.0
        return 2 * x

    @staticmethod
    def backward(ctx, cotangent):
        gradient = ctx.factor * cotangent
        ctx.factor *= 2
        return gradient


class BackwardDeletes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.factors = [3.0]
        return 3 * x

    @staticmethod
    def backward(ctx, cotangent):
        return ctx.factors.pop() * cotangent


class WeightsInDict(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weights):
        ctx.save_for_backward(x, weights["w"])
        return x * weights["w"]

    @staticmethod
    def backward(ctx, cotangent):
        _, w = ctx.saved_tensors
        return w * cotangent, None


class WeightsInList(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weights):
        ctx.save_for_backward(x, *weights)
        return x * weights[0] + weights[1]

    @staticmethod
    def backward(ctx, cotangent):
        x, first, _ = ctx.saved_tensors
        return first * cotangent, [x * cotangent, cotangent]


class ShortWithoutFirst(torch.autograd.Function):
    """Returns one gradient too few where the first input needs none."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, cotangent):
        x, weight = ctx.saved_tensors
        if not ctx.needs_input_grad[0]:
            return cotangent * x
        return cotangent * weight, cotangent * x


class SlotOfFour(torch.autograd.Function):
    """Has a place for each of four live calls."""

    slots: ClassVar[list[Any]] = [None] * 4
    count: ClassVar[list[int]] = [0]

    @classmethod
    def forward(cls, ctx, x):
        cls.count[0] += 1
        ctx.slot = cls.count[0] % 4
        cls.slots[ctx.slot] = x.detach().exp()
        return x.exp()

    @classmethod
    @torch.autograd.function.once_differentiable
    def backward(cls, ctx, cotangent):
        return cotangent * cls.slots[ctx.slot]


@dataclass(frozen=True)
class Camera:
    focal: torch.Tensor
    centre: float


class FocalInDataclass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, camera):
        ctx.save_for_backward(camera.focal)
        return x * camera.focal + camera.centre

    @staticmethod
    def backward(ctx, cotangent):
        (focal,) = ctx.saved_tensors
        return cotangent * focal, None


class OnePlaceTooFar(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        return torch.round(x * scale) / scale

    @staticmethod
    def backward(ctx, cotangent):
        return None, cotangent


SPECIMENS = [
    Specimen(
        OnePlaceTooFar, lambda: (normal(4, 3), torch.tensor([16.0])), "form", gradient="surrogate"
    ),
    Specimen(BiasNotSummed, lambda: (normal(4, 3), normal(3, seed=2)), "form", verdict="untidy"),
    Specimen(GradientInFloat32, lambda: (normal(3),), "form", verdict="untidy"),
    Specimen(TooFewGradients, lambda: (normal(3), 0.5), "form"),
    Specimen(WrongNeeds, lambda: (normal(3), normal(3, seed=2)), "needs-input-grad"),
    Specimen(ShortWithoutFirst, lambda: (normal(3), normal(3, seed=2)), "needs-input-grad"),
    Specimen(SlotOfFour, lambda: (normal(3),), "state"),
    Specimen(FocalInDataclass, lambda: (normal(3), Camera(normal(3, seed=2), 0.5)), "structure"),
    Specimen(NeedsOffByOne, lambda: (normal(2, 3), normal(3, 4, seed=2)), "needs-input-grad"),
    Specimen(NoneNotHandled, lambda: (normal(3),), "undefined"),
    Specimen(NoneDropsTheOther, lambda: (normal(3),), "undefined"),
    Specimen(MarksAnotherTensor, lambda: (normal(3, 4),), "non-differentiable"),
    Specimen(MarksADifferentiable, lambda: (normal(3, 4),), "non-differentiable"),
    Specimen(IgnoresOneOutput, lambda: (normal(3),), "non-differentiable"),
    Specimen(NearestCode, lambda: (normal(6, 3), normal(4, 3, seed=2)), "non-differentiable"),
    Specimen(CountsItsCalls, lambda: (normal(3),), "deterministic"),
    Specimen(PrivateRandomness, lambda: (normal(3),), "deterministic"),
    Specimen(SavedOnTheClass, lambda: (normal(3),), "state"),
    Specimen(CountsOnTheClass, lambda: (normal(5, 3), torch.tensor([0, 3, 1, 3, 2])), "state"),
    Specimen(MaskOnTheClass, lambda: (normal(3), torch.tensor([True, False, True])), "state"),
    Specimen(SharedStack, lambda: (normal(3),), "state"),
    Specimen(BackwardCounts, lambda: (normal(3),), "retain"),
    Specimen(BackwardDeletes, lambda: (normal(3),), "retain"),
    Specimen(WeightsInDict, lambda: (normal(3), {"w": normal(3, seed=2)}), "structure"),
    Specimen(
        WeightsInList, lambda: (normal(3), [normal(3, seed=2), normal(3, seed=3)]), "structure"
    ),
]
