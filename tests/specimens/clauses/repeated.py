"""`repeated`: one tensor for two arguments."""

import torch
from tests.specimens._specimen import Mend, Specimen, normal

__all__ = ["MENDS", "RIGHT", "WRONG"]


class Gated(torch.autograd.Function):
    """A product with a sigmoid, each gradient in memory of its own."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b.sigmoid()

    @staticmethod
    def backward(ctx, cotangent):
        a, b = ctx.saved_tensors
        gate = b.sigmoid()
        return cotangent * gate, cotangent * a * gate * (1 - gate)


class InPlaceOfInputs(Gated):
    """Writes the gradients where the inputs lie, as kernels do to save memory
    (linkedin/Liger-Kernel#254)."""

    @staticmethod
    def backward(ctx, cotangent):
        a, b = ctx.saved_tensors
        of_a, of_b = Gated.backward(ctx, cotangent)
        a.data.copy_(of_a)
        b.data.copy_(of_b)
        return a, b


class ByAddress(Gated):
    """A table of gradients by the address of the input."""

    @staticmethod
    def backward(ctx, cotangent):
        gradients = Gated.backward(ctx, cotangent.clone())
        table = {t.data_ptr(): g for t, g in zip(ctx.saved_tensors, gradients, strict=True)}
        return tuple(table[t.data_ptr()] for t in ctx.saved_tensors)


class SquareShortcut(torch.autograd.Function):
    """A shortcut for the product with itself, whose other gradient is forgotten."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        ctx.same = a.data_ptr() == b.data_ptr()
        return a.square() if ctx.same else a * b

    @staticmethod
    def backward(ctx, cotangent):
        a, b = ctx.saved_tensors
        return cotangent * b, None if ctx.same else cotangent * a


class SquareTwice(SquareShortcut):
    """The same shortcut, with the whole gradient for the one that is left."""

    @staticmethod
    def backward(ctx, cotangent):
        a, b = ctx.saved_tensors
        return (2 * cotangent * a, None) if ctx.same else (cotangent * b, cotangent * a)


class ScratchInInput(torch.autograd.Function):
    """Scales the first input where it lies, and puts it back after the product."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        raw = a.detach().numpy()
        raw *= 4.0
        product = 0.25 * (a * b)
        raw /= 4.0
        return product

    @staticmethod
    def backward(ctx, cotangent):
        a, b = ctx.saved_tensors
        return cotangent * b, cotangent * a


class TiedProjection(torch.autograd.Function):
    """Two projections; a weight that is a view of the other is taken for the other."""

    @staticmethod
    def forward(ctx, w, v):
        ctx.save_for_backward(w, v)
        return w @ v

    @staticmethod
    def backward(ctx, cotangent):
        w, v = ctx.saved_tensors
        tied = w.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()
        return cotangent @ v.mT, None if tied else w.mT @ cotangent


class Distinct(Gated):
    """Says that it takes no tensor twice."""

    @staticmethod
    def forward(ctx, a, b):
        if a.data_ptr() == b.data_ptr():
            raise ValueError("a and b must not share memory")
        return Gated.forward(ctx, a, b)


def two():
    return normal(3, 4), normal(3, 4, seed=2)


RIGHT = [
    Specimen(Gated, two),
    Specimen(SquareTwice, two),
    Specimen(Distinct, two),
]
WRONG = [
    Specimen(InPlaceOfInputs, two, "repeated"),
    Specimen(ByAddress, two, "repeated"),
    Specimen(SquareShortcut, two, "repeated"),
    Specimen(ScratchInInput, two, "repeated"),
    Specimen(TiedProjection, lambda: (normal(3, 4), normal(4, 3, seed=2)), "repeated"),
]
MENDS = [
    Mend("repeated", InPlaceOfInputs, Gated, "memory of the call's own", two),
    Mend("repeated", ByAddress, Gated, "by their position", two),
]
