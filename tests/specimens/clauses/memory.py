"""`memory`: what is saved for backward."""

import torch
from tests.specimens._specimen import Mend, Specimen, normal

from pullback import Function

__all__ = ["MENDS", "RIGHT", "WRONG"]


class Exponential(torch.autograd.Function):
    """Keeps the output alone."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        (y,) = ctx.saved_tensors
        return y * cotangent


class ExponentialBoth(Exponential):
    """Keeps the input too, for nothing."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y, x)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        y, _ = ctx.saved_tensors
        return y * cotangent


class ShapeOfInput(torch.autograd.Function):
    """Keeps the input for its shape."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sum(-1)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent.unsqueeze(-1).expand_as(x)


class ShapeAlone(ShapeOfInput):
    """Keeps the shape."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.sum(-1)

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent.unsqueeze(-1).expand(ctx.shape)


class Cube(torch.autograd.Function):
    """Keeps the input."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 3 * x * x * cotangent


class CubeOfClone(Cube):
    """Keeps a copy of the input, so that a change in place is not noticed."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.clone())
        return x**3


class Correlation(torch.autograd.Function):
    """Keeps all products of a row's entries, where the rows would do."""

    @staticmethod
    def forward(ctx, x):
        products = x.unsqueeze(-1) * x.unsqueeze(-2)
        ctx.save_for_backward(x, products)
        return products.square().sum((-1, -2))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, cotangent):
        x, products = ctx.saved_tensors
        return 4 * cotangent.unsqueeze(-1) * (products @ x.unsqueeze(-1)).squeeze(-1)


class CorrelationAgain(Correlation):
    """Computes them again."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x.unsqueeze(-1) * x.unsqueeze(-2)).square().sum((-1, -2))

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 4 * cotangent.unsqueeze(-1) * x * x.square().sum(-1, keepdim=True)


class Dequantised(torch.autograd.Function):
    """Keeps the weight that it was given and a scaled copy (bitsandbytes#1935); reads the copy."""

    @staticmethod
    def forward(ctx, x, weight):
        wide = weight * 0.5
        ctx.save_for_backward(weight, wide)
        return x @ wide

    @staticmethod
    def backward(ctx, cotangent):
        _, wide = ctx.saved_tensors
        return cotangent.to(wide.dtype) @ wide.mT, None


class ViewOfLarge(torch.autograd.Function):
    """Keeps one column of a scratch matrix, and with it the whole matrix."""

    @staticmethod
    def forward(ctx, x):
        scratch = x.unsqueeze(-1) * torch.ones(16, dtype=x.dtype)
        ctx.save_for_backward(scratch[..., 0])
        return x.square()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 2 * x * cotangent


class Hinge(torch.autograd.Function):
    """Keeps a mask, of which most entries are masked."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x > 0)
        return x.relu()

    @staticmethod
    def backward(ctx, cotangent):
        (mask,) = ctx.saved_tensors
        return cotangent.masked_fill(~mask, 0)


class ForSecondOrder(Function):
    """The first gradient does not depend on the second tensor that it saves; the second does."""

    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, cotangent):
        x, y = ctx.saved_tensors
        return y * cotangent, x * cotangent


class Gather(torch.autograd.Function):
    """Keeps an index."""

    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.count = len(x)
        return x[index]

    @staticmethod
    def backward(ctx, cotangent):
        (index,) = ctx.saved_tensors
        zeros = cotangent.new_zeros(ctx.count, *cotangent.shape[1:])
        return zeros.index_add(0, index, cotangent), None


class DrawnAgain(torch.autograd.Function):
    """Keeps the state of the generator, which is as large at every size, in place of a mask."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(torch.get_rng_state())
        return x * (torch.rand(x.shape) > 0.5)

    @staticmethod
    def backward(ctx, cotangent):
        (state,) = ctx.saved_tensors
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(state)
            return cotangent * (torch.rand(cotangent.shape) > 0.5)


def one():
    return (normal(3, 4),)


class Weighted(torch.autograd.Function):
    """Keeps both, of which one gradient reads one and the other the other."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, cotangent):
        x, w = ctx.saved_tensors
        by_x = cotangent * w if ctx.needs_input_grad[0] else None
        return by_x, cotangent * x if ctx.needs_input_grad[1] else None


RIGHT = [
    Specimen(Weighted, lambda: (normal(3, 4).detach(), normal(3, 4, seed=2))),
    Specimen(Exponential, one),
    Specimen(ShapeAlone, one),
    Specimen(Cube, one),
    Specimen(CorrelationAgain, one),
    Specimen(Hinge, one),
    Specimen(ForSecondOrder, lambda: (normal(3, 4), normal(3, 4, seed=2))),
    Specimen(Gather, lambda: (normal(3, 4), torch.tensor([0, 2, 2, 1]))),
    Specimen(DrawnAgain, one),
]
WRONG = [
    Specimen(ExponentialBoth, one, "memory", verdict="untidy"),
    Specimen(ShapeOfInput, one, "memory", verdict="untidy"),
    Specimen(CubeOfClone, one, "memory", verdict="untidy"),
    Specimen(Correlation, one, "memory", verdict="untidy"),
    Specimen(
        Dequantised, lambda: (normal(3, 4), normal(4, 5, seed=2).detach()), "memory",
        verdict="untidy",
    ),
    Specimen(ViewOfLarge, one, "memory", verdict="untidy"),
]  # fmt: skip
MENDS = [
    Mend("memory", ExponentialBoth, Exponential, "what backward reads alone"),
    Mend("memory", ShapeOfInput, ShapeAlone, "a shape"),
    Mend("memory", CubeOfClone, Cube, "the tensor itself"),
    Mend("memory", Correlation, CorrelationAgain, "compute it again"),
]
