"""Right Functions where numbers are hard: singular points, scales, low precision, ties."""

import torch
from tests.specimens._specimen import Specimen, normal


def function_of(formula, name):
    """The Function of a formula, with autograd's own rule for backward."""

    class Formula(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            ctx.save_for_backward(*inputs)
            return formula(*inputs)

        @staticmethod
        def backward(ctx, cotangent):
            return torch.func.vjp(formula, *ctx.saved_tensors)[1](cotangent)

    Formula.__name__ = name
    return Formula


def at(*numbers):
    return torch.tensor(numbers, dtype=torch.float64, requires_grad=True)


def only_single(x):
    if x.dtype != torch.float32:
        raise RuntimeError("This kernel only supports float32.")
    return x.sin()


def symmetric():
    x = normal(4, 4).detach()
    return (x + x.mT).requires_grad_()


class ToFloat8(torch.autograd.Function):
    """Its output has a dtype in which torch computes nothing."""

    @staticmethod
    def forward(ctx, x):
        return x.to(torch.float8_e4m3fn)

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent.to(torch.float64)


class WithScales(torch.autograd.Function):
    """Beside numbers it returns scales, which have no zero, and so no gradient."""

    @staticmethod
    def forward(ctx, x):
        scale = torch.full((1,), 2.0).to(torch.float8_e8m0fnu)
        ctx.mark_non_differentiable(scale)
        return x / 2, scale

    @staticmethod
    def backward(ctx, cotangent, of_scale):
        return cotangent / 2


class FromFloat8(torch.autograd.Function):
    """The numbers of a quantised tensor, in other units."""

    @staticmethod
    def forward(ctx, quantised, scale):
        ctx.save_for_backward(quantised)
        return quantised.to(scale.dtype) * scale

    @staticmethod
    def backward(ctx, cotangent):
        (quantised,) = ctx.saved_tensors
        return None, (cotangent * quantised.to(cotangent.dtype)).sum()


def eighths(*shape):
    return normal(*shape).detach().to(torch.float8_e4m3fn)


ROWS = {
    "SingleInside": (lambda x: x.float().sin().double(), lambda: (normal(4),)),
    "OnlySingle": (only_single, lambda: (normal(4, dtype=torch.float32),)),
    "LargeScale": (lambda x: (x / 1e6).sin() * 1e9, lambda: (at(1e6, -2e5),)),
    "SmallScale": (lambda x: (x * 1e8).sin(), lambda: (at(1e-8, -3e-9),)),
    "Fast": (lambda x: (300 * x).sin(), lambda: (normal(4),)),
    "SquareRootAtZero": (torch.sqrt, lambda: (at(0.0, 1.0, 4.0),)),
    "NormAtZero": (torch.linalg.vector_norm, lambda: (at(0.0, 0.0, 0.0),)),
    "ArcCosineAtOne": (torch.acos, lambda: (at(1.0, -1.0, 0.2),)),
    "LogarithmNearZero": (torch.log, lambda: (at(1e-12, 1e-3, 5.0),)),
    "PoolingOfTies": (
        lambda x: torch.nn.functional.max_pool1d(x, 2),
        lambda: (torch.ones(1, 2, 6, dtype=torch.float64, requires_grad=True),),
    ),
    "CumulativeProductOfZero": (lambda x: x.cumprod(-1), lambda: (at(1.0, 0.0, 2.0, 3.0),)),
    "Eigenvectors": (lambda a: torch.linalg.eigh(a)[1], lambda: (symmetric(),)),
    "Solve": (torch.linalg.solve, lambda: (normal(3, 3), normal(3, 2, seed=2))),
    "Steps": (lambda x: x.relu() + x.floor().detach(), lambda: (normal(6),)),
    "Empty": (torch.sin, lambda: (torch.zeros(0, 3, dtype=torch.float64, requires_grad=True),)),
    "ZeroDimensional": (torch.sin, lambda: (torch.tensor(0.3, requires_grad=True),)),
    "OneElement": (torch.exp, lambda: (at(0.7),)),
    "ConstantInOne": (lambda x, y: x * 1 + 0 * y, lambda: (normal(3), normal(3, seed=2))),
}


class MatrixExponential(torch.autograd.Function):
    """Its derivative is a block of a larger one; torch has neither in bfloat16."""

    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return torch.matrix_exp(a)

    @staticmethod
    def backward(ctx, cotangent):
        (a,) = ctx.saved_tensors
        above = torch.cat([a.mT, cotangent], -1)
        below = torch.cat([torch.zeros_like(a), a.mT], -1)
        size = a.shape[-1]
        return torch.matrix_exp(torch.cat([above, below], -2))[..., :size, size:]


class PixelShuffle(torch.autograd.Function):
    """Channels as pixels; of an empty batch torch's own inverse is of another shape."""

    @staticmethod
    def forward(ctx, x):
        return torch.nn.functional.pixel_shuffle(x, 2)

    @staticmethod
    def backward(ctx, cotangent):
        return torch.nn.functional.pixel_unshuffle(cotangent, 2)


class LogOfPrefixSums(torch.autograd.Function):
    """Each entry depends on those before it: no function of a number."""

    @staticmethod
    def forward(ctx, x):
        found = torch.logcumsumexp(x, -1)
        ctx.save_for_backward(x, found)
        return found

    @staticmethod
    def backward(ctx, cotangent):
        x, found = ctx.saved_tensors
        shares = (x[..., :, None] - found[..., None, :]).exp().triu()
        return (shares * cotangent[..., None, :]).sum(-1)


class Unit(torch.autograd.Function):
    """Of rows of one number it is their sign, and its gradient what rounding leaves of zero."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x / x.norm(dim=-1, keepdim=True)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        norm = x.norm(dim=-1, keepdim=True)
        unit = x / norm
        return (cotangent - unit * (cotangent * unit).sum(-1, keepdim=True)) / norm


class OneVariance(torch.autograd.Function):
    """Of a batch of two it is nearly the sign of the difference: terms of its gradient cancel."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x - x.mean(0)) * torch.rsqrt(x.var(0, unbiased=False) + 1e-5)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        scale = torch.rsqrt(x.var(0, unbiased=False) + 1e-5)
        normal = (x - x.mean(0)) * scale
        along = (cotangent * normal).mean(0)
        return (cotangent - cotangent.mean(0) - normal * along) * scale


class Cosine(torch.autograd.Function):
    """The cosine of an angle; of rows of one number 1 or -1."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1))

    @staticmethod
    def backward(ctx, cotangent):
        x, y = ctx.saved_tensors
        sizes = [t.norm(dim=-1, keepdim=True) for t in (x, y)]
        one, other = x / sizes[0], y / sizes[1]
        angle = (one * other).sum(-1, keepdim=True)
        g = cotangent.unsqueeze(-1)
        return g * (other - angle * one) / sizes[0], g * (one - angle * other) / sizes[1]


SPECIMENS = [
    Specimen(function_of(formula, name), inputs) for name, (formula, inputs) in ROWS.items()
] + [
    Specimen(LogOfPrefixSums, lambda: (normal(4, 5),)),
    Specimen(MatrixExponential, lambda: (normal(3, 3),)),
    Specimen(PixelShuffle, lambda: (normal(2, 8, 3, 3),)),
    Specimen(ToFloat8, lambda: (normal(3, 4),)),
    Specimen(WithScales, lambda: (normal(3, 4),)),
    Specimen(FromFloat8, lambda: (eighths(3, 4), at(2.0)[0].detach().requires_grad_())),
    Specimen(Unit, lambda: (normal(3, 1),)),
    Specimen(Unit, lambda: (normal(3, 4),)),
    Specimen(Cosine, lambda: (normal(3, 1), normal(3, 1, seed=2))),
    Specimen(Cosine, lambda: (normal(3, 4), normal(3, 4, seed=2))),
    Specimen(OneVariance, lambda: (normal(2, 5),)),
]
