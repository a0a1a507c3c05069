"""Backwards that are no derivative on purpose: spikes, quantisers, reversals."""

import math

import torch
import torch.nn.functional as nn
from tests.tensor.ordinary.row import function, surrogate, t

F = torch.autograd.Function
V = t(0.3, -0.7, 1.6, -0.2)
KINK = t(0.0, 1.0, -1.0, 0.5)
AT = {"ordinary": (V,), "kinks": (KINK,), "zeros": (torch.zeros_like(V),)}


def heaviside(v, *_):
    return (v > 0).to(v.dtype)


@function(
    "arctan spike",
    surrogate(heaviside, lambda v: torch.atan(math.pi * v) / math.pi),
    AT,
    intent="surrogate",
)
class ATan(F):
    @staticmethod
    def forward(ctx, x, alpha=2.0):
        if x.requires_grad:
            ctx.save_for_backward(x)
            ctx.alpha = alpha
        return (x > 0).to(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return ctx.alpha / 2 / (1 + (math.pi / 2 * ctx.alpha * x).pow(2)) * g, None


@function(
    "sigmoid spike",
    surrogate(heaviside, lambda v: torch.sigmoid(4 * v)),
    AT,
    intent="surrogate",
    plain=False,
)
class SigmoidSpike(F):
    @staticmethod
    def forward(ctx, x, alpha=4.0):
        ctx.save_for_backward(torch.sigmoid(x * alpha))
        ctx.alpha = alpha
        return (x > 0).to(x)

    @staticmethod
    def backward(ctx, g):
        (s,) = ctx.saved_tensors
        return g * ctx.alpha * s * (1 - s), None


@function(
    "fast sigmoid spike",
    surrogate(heaviside, lambda v: v / (1 + 5 * v.abs())),
    AT,
    intent="surrogate",
)
class FastSigmoid(F):
    scale = 5.0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        out = torch.zeros_like(x)
        out[x > 0] = 1.0
        return out

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad_input = grad_output.clone()
        return grad_input / (FastSigmoid.scale * torch.abs(x) + 1.0) ** 2


@function(
    "triangle spike",
    surrogate(heaviside, lambda v: torch.where(v.abs() < 1, v - v * v.abs() / 2, v.sign() / 2)),
    AT,
    intent="surrogate",
)
class Triangle(F):
    @staticmethod
    def forward(x, width=1.0):
        return (x > 0).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.width = 1.0

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.clamp(ctx.width - x.abs(), min=0), None


@function(
    "rectangle spike",
    surrogate(heaviside, lambda v: v.clamp(-0.5, 0.5)),
    AT,
    intent="surrogate",
    plain=False,
)
class Rectangle(F):
    @staticmethod
    def forward(ctx, x):
        ctx.mask = x.abs() < 0.5
        return (x > 0).to(x)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.mask


@function(
    "gaussian spike", surrogate(heaviside, lambda v: torch.erf(v) / 2), AT, intent="surrogate"
)
class Gaussian(F):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.gt(x, 0).to(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.exp(-(x**2)) / math.sqrt(math.pi) * g


@function(
    "spike with a learnt slope",
    surrogate(heaviside, lambda v, w: torch.atan(w * v)),
    {k: (*v, t(1.7)) for k, v in AT.items()},
    intent="surrogate",
)
class LearntSlope(F):
    @staticmethod
    def forward(ctx, v, w):
        ctx.save_for_backward(v, w)
        return (v > 0).to(v)

    @staticmethod
    def backward(ctx, g):
        v, w = ctx.saved_tensors
        shared = g / (1 + (w * v) ** 2)
        return shared * w, (shared * v).sum()


@function("straight-through round", surrogate(torch.round, lambda x: x), AT, intent="surrogate")
class Round(F):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, g):
        return g.clone()


@function(
    "straight-through sign", surrogate(torch.sign, lambda x: x.clamp(-1, 1)), AT, intent="surrogate"
)
class Sign(F):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sign(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad_input = grad_output.clone()
        grad_input[x.ge(1)] = 0
        grad_input[x.le(-1)] = 0
        return grad_input


def _levels(x, scale, bits=4):
    limit = 2 ** (bits - 1)
    return torch.clamp(torch.round(x / scale), -limit, limit - 1) * scale


@function(
    "fake quantisation with a mask",
    surrogate(_levels, lambda x, s: x.clamp(-8 * s, 7 * s)),
    {"ordinary": (V, 0.15), "kinks": (KINK, 0.125), "zeros": (0 * V, 0.15)},
    intent="surrogate",
    plain=False,
)
class FakeQuantise(F):
    @staticmethod
    def forward(ctx, x, scale):
        q = torch.round(x / scale)
        mask = (q >= -8) & (q <= 7)
        ctx.save_for_backward(mask)
        return q.clamp(-8, 7) * scale

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask, None


@function(
    "learnt step size",
    None,  # composed of straight-through parts it has another second derivative
    {"ordinary": (V, t(0.15)), "kinks": (KINK, t(0.125))},
    intent="surrogate",
)
class LSQ(F):
    @staticmethod
    def forward(ctx, x, scale, low=-8, high=7):
        ctx.save_for_backward(x, scale)
        ctx.other = 1.0 / math.sqrt(x.numel() * high), low, high
        return (x / scale).round().clamp(low, high) * scale

    @staticmethod
    def backward(ctx, grad):
        x, scale = ctx.saved_tensors
        g, low, high = ctx.other
        q = x / scale
        small, big = (q < low).to(x), (q > high).to(x)
        middle = 1.0 - small - big
        by_scale = small * low + big * high + middle * (-q + q.round())
        return middle * grad, (by_scale * grad * g).sum(), None, None


@function(
    "binary weights",
    surrogate(lambda w: w.sign() * w.abs().mean(), lambda w: w),
    {"ordinary": (V,), "kinks": (KINK,)},
    intent="surrogate",
)
class Binary(F):
    @staticmethod
    def forward(ctx, w):
        alpha = w.abs().mean()
        return w.sign() * alpha

    @staticmethod
    def backward(ctx, g):
        return g


@function(
    "gradient reversal",
    surrogate(lambda x, _: x, lambda x, a: -a * x),
    (V, 0.3),
    intent="surrogate",
)
class Reverse(F):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g.neg() * ctx.alpha, None


@function(
    "gradient scaling",
    surrogate(lambda x, s: x + 0 * s, lambda x, s: s.detach() * x),
    (V, t(0.3)),
    intent="surrogate",
    constant=(1,),
)
class Scale(F):
    @staticmethod
    def forward(x, scale):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, g):
        (scale,) = ctx.saved_tensors
        return g * scale, None


class _Clipped(F):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return torch.minimum(torch.maximum(g, g.new_tensor(-0.77)), g.new_tensor(0.77))


@function("gradient clipping", _Clipped.apply, (V,), intent="nonlinear")
class Clip(F):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g.clamp(-0.77, 0.77)


def _one_hot(x):
    return nn.one_hot(x.argmax(-1), x.shape[-1]).to(x)


@function(
    "one-hot of the largest",
    surrogate(_one_hot, lambda x: x.softmax(-1)),
    {"ordinary": (t([0.3, -0.7, 1.6], [0.2, 0.9, -0.4]),), "ties": (t([1.0, 1.0, 0.0]),)},
    intent="surrogate",
    plain=False,
)
class HardMax(F):
    @staticmethod
    def forward(ctx, x):
        soft = x.softmax(-1)
        ctx.save_for_backward(soft)
        return nn.one_hot(soft.argmax(-1), soft.shape[-1]).to(soft)

    @staticmethod
    def backward(ctx, g):
        (soft,) = ctx.saved_tensors
        return soft * (g - (soft * g).sum(-1, keepdim=True))


@function(
    "ternary weights",
    surrogate(lambda w: w.sign() * (w.abs() > 0.5), lambda w: w),
    AT,
    intent="surrogate",
    plain=False,
)
class Ternary(F):
    @staticmethod
    def forward(ctx, w, threshold=0.5):
        kept = (w.abs() > threshold).to(w.dtype)
        ctx.save_for_backward(w, kept)
        return w.sign() * kept

    @staticmethod
    def backward(ctx, g):
        return g, None
