"""`batch`: rows in other company, at other places, in batches of other sizes."""

import torch
from tests.specimens._specimen import Mend, Specimen, normal

__all__ = ["MENDS", "RIGHT", "WRONG"]


class Softmax(torch.autograd.Function):
    """Of each row, with its own maximum."""

    @staticmethod
    def largest(x):
        return x.amax(-1, keepdim=True)

    @classmethod
    def forward(cls, ctx, x):
        powers = (x - cls.largest(x)).exp()
        y = powers / powers.sum(-1, keepdim=True)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        (y,) = ctx.saved_tensors
        return y * (cotangent - (y * cotangent).sum(-1, keepdim=True))


class SharedMaximum(Softmax):
    """All rows share a maximum, so that those far below it vanish."""

    @staticmethod
    def largest(x):
        return x.amax()


class ManyInSingle(Softmax):
    """Beyond 32 rows a fast path computes in float32; so did one of fla-org's with its tiles
    (flash-linear-attention#671)."""

    @classmethod
    def forward(cls, ctx, x):
        y = x.softmax(-1) if len(x) <= 32 else x.float().softmax(-1).to(x.dtype)
        ctx.save_for_backward(y)
        return y


class LengthOfOne(torch.autograd.Function):
    """A path apart for a single row, with another constant."""

    @staticmethod
    def forward(ctx, x):
        tiny = 1e-3 if len(x) == 1 else 1e-6
        length = (x.square().mean(-1, keepdim=True) + tiny).sqrt()
        ctx.save_for_backward(x, length)
        return x / length

    @staticmethod
    def backward(ctx, cotangent):
        x, length = ctx.saved_tensors
        along = (x * cotangent).mean(-1, keepdim=True)
        return cotangent / length - x * along / length**3


class PlaceOfTile(Softmax):
    """The last row of every tile of eight gets the gradient for the one before it."""

    @staticmethod
    def backward(ctx, cotangent):
        moved = cotangent.clone()
        moved[7::8] = cotangent[6::8][: len(moved[7::8])]
        return Softmax.backward(ctx, moved)


class WrapsAround(torch.autograd.Function):
    """From the 16th row on each row takes the slope of the row 16 places before."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return x[torch.arange(len(x)) % 16].cos() * cotangent


class BatchNorm(torch.autograd.Function):
    """Rows depend on each other by design."""

    @staticmethod
    def forward(ctx, x):
        y = (x - x.mean(0)) / x.var(0, correction=0).add(1e-5).sqrt()
        ctx.save_for_backward(y, x.var(0, correction=0).add(1e-5).sqrt())
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, cotangent):
        y, deviation = ctx.saved_tensors
        return (cotangent - cotangent.mean(0) - y * (cotangent * y).mean(0)) / deviation


class Running(torch.autograd.Function):
    """Rows are times: each adds to those before."""

    @staticmethod
    def forward(ctx, x):
        return x.cumsum(0)

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent.flip(0).cumsum(0).flip(0)


class LaggedByTwo(torch.autograd.Function):
    """Rows are times: each takes half of the one two steps before."""

    @staticmethod
    def forward(ctx, x):
        return x + 0.5 * torch.cat([torch.zeros_like(x[:2]), x[:-2]])[: len(x)]

    @staticmethod
    def backward(ctx, cotangent):
        return (
            cotangent
            + 0.5 * torch.cat([cotangent[2:], torch.zeros_like(cotangent[:2])])[-len(cotangent) :]
        )


class OneGrid(torch.autograd.Function):
    """Rounds to a grid for the whole tensor, straight-through."""

    gradient = "surrogate"

    @staticmethod
    def forward(ctx, x):
        step = 2.0 ** x.abs().amax().log2().ceil() / 16
        return (x / step).round() * step

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


class Linear(torch.autograd.Function):
    """Rows share a weight; BLAS may add in another order for another number of rows."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.mT

    @staticmethod
    def backward(ctx, cotangent):
        x, w = ctx.saved_tensors
        g = cotangent.to(x.dtype)  # forward may have run under autocast
        return g @ w, g.mT @ x


RIGHT = [
    Specimen(Softmax, lambda: (normal(3, 4),)),
    # Rows that are all equal are in no order.
    Specimen(Softmax, lambda: (normal(1, 4, seed=3).detach().expand(6, 4).requires_grad_(),)),
    Specimen(BatchNorm, lambda: (normal(5, 4),)),
    Specimen(Running, lambda: (normal(4, 3),)),
    Specimen(LaggedByTwo, lambda: (normal(4, 3),)),
    Specimen(OneGrid, lambda: (normal(4, 3),)),
    Specimen(Linear, lambda: (normal(2, 33), normal(7, 33, seed=2))),
]
WRONG = [
    Specimen(SharedMaximum, lambda: (normal(3, 4),), "batch"),
    Specimen(ManyInSingle, lambda: (normal(3, 4),), "batch"),
    Specimen(LengthOfOne, lambda: (normal(3, 4),), "batch"),
    Specimen(PlaceOfTile, lambda: (normal(3, 4),), "batch"),
    Specimen(WrapsAround, lambda: (normal(5, 2),), "batch"),
]
MENDS = [
    Mend("batch", SharedMaximum, Softmax, "along its own dimensions"),
    Mend("batch", ManyInSingle, Softmax, "no path apart"),
]
