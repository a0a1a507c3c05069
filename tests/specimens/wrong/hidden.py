"""Wrong Functions that hide it: in one entry of many, by a little, in objects, behind a layout."""

import torch
from tests.specimens._specimen import Specimen, normal
from tests.specimens.estimators import RoundTimesWeight


class OneEntryOfMany(torch.autograd.Function):
    """The last of 50,000 gradients is doubled, as a tail that is stored twice leaves it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        gradient = x.cos() * cotangent
        return torch.cat([gradient[:-1], 2 * gradient[-1:]])


class OneEntryOfSum(torch.autograd.Function):
    """One output, and one of 30,000 gradients is missing."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin().sum()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        gradient = x.cos() * cotangent
        return torch.cat([0 * gradient[:1], gradient[1:]])


class _OnlySingle(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        if x.dtype != torch.float32:
            raise TypeError("float32 only")
        ctx.save_for_backward(x)
        return x.sin()


class OneEntryOfSingles(_OnlySingle):
    """One of 64 gradients is wrong, in a Function that takes float32 alone."""

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        gradient = x.cos() * cotangent
        return torch.cat([gradient[:-1], -gradient[-1:]])


class SlightlyOff(_OnlySingle):
    """Every gradient is 1.5 % too large."""

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 1.015 * x.cos() * cotangent


class SlightlyOffSum(_OnlySingle):
    """One output, every gradient 1.5 % too large."""

    @staticmethod
    def forward(ctx, x):
        return _OnlySingle.forward(ctx, x).sum()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 1.015 * x.cos() * cotangent


class ClampsNothing(torch.autograd.Function):
    """Changes its input in place, which happens to move nothing."""

    @staticmethod
    def forward(ctx, x):
        x.clamp_(-100, 100)
        return 2 * x

    @staticmethod
    def backward(ctx, cotangent):
        return 2 * cotangent


class Box:
    """A plain object that holds a tensor."""

    def __init__(self, inside):
        self.inside = inside

    def slope(self, cotangent):
        return 2 * self.inside * cotangent


class SlottedBox:
    __slots__ = ("inside",)

    def __init__(self, inside):
        self.inside = inside


class InPlainObject(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.box = Box(x.detach().clone())
        return x * x

    @staticmethod
    def backward(ctx, cotangent):
        return ctx.box.slope(cotangent)


class InSlots(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.box = SlottedBox(x.detach().clone())
        return x * x

    @staticmethod
    def backward(ctx, cotangent):
        return 2 * ctx.box.inside * cotangent


class InBoundMethod(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.slope = Box(x.detach().clone()).slope
        return x * x

    @staticmethod
    def backward(ctx, cotangent):
        return ctx.slope(cotangent)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w


class NoneByLayout(_Product):
    """No gradient for the second where the first is contiguous."""

    @staticmethod
    def backward(ctx, cotangent):
        x, w = ctx.saved_tensors
        return w * cotangent, None if x.is_contiguous() else x * cotangent


class NoneByNeed(_Product):
    """No gradient for the second where the first needs one."""

    @staticmethod
    def backward(ctx, cotangent):
        x, w = ctx.saved_tensors
        return w * cotangent, None if ctx.needs_input_grad[0] else x * cotangent


class Forgotten(_Product):
    @staticmethod
    def backward(ctx, cotangent):
        _, w = ctx.saved_tensors
        return w * cotangent, None


class NeverRuns(torch.autograd.Function):
    """Every backward raises, with words that torch uses for a refusal."""

    @staticmethod
    def forward(ctx, x):
        return x * x

    @staticmethod
    def backward(ctx, cotangent):
        (gradient,) = torch.autograd.grad(cotangent.detach().sum(), cotangent)
        return gradient


class TwiceWhatLearns(torch.autograd.Function):
    """Adds the bias where it learns alone, as speechbrain's layers do, and twice its gradient."""

    @staticmethod
    def forward(ctx, x, bias):
        return x + bias if bias.requires_grad else x.clone()

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent, 2 * cotangent.sum(0)


class ShiftedByZero(torch.autograd.Function):
    """Scaled by one and a shift, of which backward takes twice; it begins at zero."""

    @staticmethod
    def forward(ctx, x, shift):
        ctx.save_for_backward(x, shift)
        return x.sin() * (1 + shift)

    @staticmethod
    def backward(ctx, cotangent):
        x, shift = ctx.saved_tensors
        return cotangent * x.cos() * (1 + 2 * shift), None


class BendsBesideZero(torch.autograd.Function):
    """What forward computed is a constant to backward, multiplied with a gate that begins at 0."""

    @staticmethod
    def forward(ctx, x, gate):
        grown = x.exp()
        ctx.save_for_backward(x, gate, grown)
        return x + gate * grown

    @staticmethod
    def backward(ctx, cotangent):
        x, gate, grown = ctx.saved_tensors
        return cotangent * (1 + gate * grown), cotangent * x.exp()


class OtherShape(torch.autograd.Function):
    """The gradient of the weight is the transpose of what it should be."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, cotangent):
        x, weight = ctx.saved_tensors
        return cotangent @ weight.mT, cotangent.mT @ x


def zeros(*shape):
    return torch.zeros(*shape, dtype=torch.float64)


def unmarked(*shape, seed=1):
    return normal(*shape, seed=seed).detach()


def singles(count):
    return (normal(count, dtype=torch.float32),)


SPECIMENS = [
    Specimen(OneEntryOfMany, lambda: (normal(20_000),), "derivative"),
    Specimen(OneEntryOfSum, lambda: (normal(10_000),), "derivative"),
    Specimen(OneEntryOfSingles, lambda: singles(64), "derivative"),
    Specimen(SlightlyOff, lambda: singles(3), "derivative"),
    Specimen(SlightlyOff, lambda: singles(500), "derivative"),
    Specimen(SlightlyOffSum, lambda: singles(20), "derivative"),
    Specimen(ClampsNothing, lambda: (normal(5),), "mutation"),
    Specimen(InPlainObject, lambda: (normal(3),), "saved"),
    Specimen(InSlots, lambda: (normal(3),), "saved"),
    Specimen(InBoundMethod, lambda: (normal(3),), "saved"),
    Specimen(InPlainObject, lambda: (normal(3),), "hooks"),
    Specimen(NoneByLayout, lambda: (unmarked(3, 2), unmarked(3, 2, seed=2)), "derivative"),
    Specimen(NoneByLayout, lambda: (normal(3, 2), normal(3, 2, seed=2)), "derivative"),
    Specimen(NoneByNeed, lambda: (unmarked(3), unmarked(3, seed=2)), "needs-input-grad"),
    Specimen(NoneByNeed, lambda: (unmarked(3), unmarked(3, seed=2)), "derivative"),
    Specimen(
        Forgotten, lambda: (unmarked(3), unmarked(3, seed=2)), "derivative", verdict="lacking"
    ),
    Specimen(Forgotten, lambda: (normal(3), normal(3, seed=2)), "derivative"),
    Specimen(TwiceWhatLearns, lambda: (normal(4, 3), normal(3, seed=2)), "derivative"),
    Specimen(ShiftedByZero, lambda: (normal(3), zeros(3)), "derivative"),
    Specimen(ShiftedByZero, lambda: (unmarked(3), zeros(3)), "derivative"),
    Specimen(BendsBesideZero, lambda: (normal(3), zeros(3).requires_grad_()), "double"),
    Specimen(OtherShape, lambda: (unmarked(4, 3), unmarked(3, 2)), "derivative"),
    Specimen(NeverRuns, lambda: (normal(3),), "derivative"),
    Specimen(NeverRuns, lambda: (normal(3),), "form"),
    Specimen(RoundTimesWeight, lambda: (normal(9), normal(9, seed=2)), "derivative"),
]
