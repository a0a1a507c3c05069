"""The first line names the edit after which backward is right, and where it stands."""

import math
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.conformance import planted
from tests.fuzzing import examples
from tests.scripts import printed_by

from pullback.conformance import check


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        s = torch.sigmoid(x)
        ctx.save_for_backward(x, s)
        return x * s

    @staticmethod
    def backward(ctx, g):
        _, s = ctx.saved_tensors
        return g * (s + s * (1 - s))  # x is lost


class RootMeanSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        root = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, root)
        return x * root * weight

    @staticmethod
    def backward(ctx, g):
        x, weight, root = ctx.saved_tensors
        dot = (g * weight * x).sum(-1, keepdim=True)  # a mean is meant
        return g * weight * root - x * root**3 * dot, (g * x * root).sum(0), None


class Sigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, beta):
        y = torch.sigmoid(beta * x)
        ctx.save_for_backward(x, y)
        ctx.beta = beta
        return y

    @staticmethod
    def backward(ctx, g):
        y, _ = ctx.saved_tensors
        return ctx.beta * g * y * (1 - y), None


class NeighbourMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, source, target):
        ctx.degree = torch.bincount(target, minlength=len(h)).clamp(min=1).to(h.dtype)
        ctx.save_for_backward(source, target)
        return torch.zeros_like(h).index_add_(0, target, h[source]) / ctx.degree[:, None]

    @staticmethod
    def backward(ctx, g):
        source, target = ctx.saved_tensors
        return torch.zeros_like(g).index_add_(0, source, g[target]), None, None


class Gates(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gates, c):
        i, f = gates.sigmoid().chunk(2, 1)
        ctx.save_for_backward(i, f, c)
        return f * c + i

    @staticmethod
    def backward(ctx, g):
        i, f, c = ctx.saved_tensors
        by_i, by_f = g * i * (1 - i), g * c * f * (1 - f)
        return torch.cat([by_f, by_i], 1), g * f


class Huber(torch.autograd.Function):
    @staticmethod
    def forward(ctx, d, delta):
        ctx.save_for_backward(d)
        ctx.delta = delta
        size = d.abs()
        return torch.where(size < delta, d.square() / 2, delta * (size - delta / 2))

    @staticmethod
    def backward(ctx, g):
        (d,) = ctx.saved_tensors
        return g * torch.where(d.abs() < 1, d, ctx.delta * d.sign()), None


class PadsLeft(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, width):
        ctx.width = width
        return torch.nn.functional.pad(x, (width, 0))

    @staticmethod
    def backward(ctx, g):
        return g[..., : g.shape[-1] - ctx.width].clone(), None


class Returns(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rewards, discount):
        running, found = torch.zeros_like(rewards[:, 0]), []
        for reward in rewards.unbind(1)[::-1]:
            running = reward + discount * running
            found.append(running)
        return torch.stack(found[::-1], 1)

    @staticmethod
    def backward(ctx, g):
        return g.cumsum(1), None


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(-2, keepdim=True))


class ByLogLength(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, log_length):
        length = log_length.exp()
        ctx.save_for_backward(x, length)
        return torch.exp(-x.square() / length)

    @staticmethod
    def backward(ctx, g):
        x, length = ctx.saved_tensors
        y = torch.exp(-x.square() / length)
        return -2 * g * x * y / length, (g * y * x.square()).sum() / length**2


class Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mask, p):
        ctx.save_for_backward(mask)
        return x * mask / (1 - p)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0], None, None


class MaskedMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, lengths):
        ctx.save_for_backward(lengths)
        ctx.steps = h.shape[1]
        mask = torch.arange(ctx.steps) < lengths[:, None]
        return (h * mask[:, :, None]).sum(1) / lengths[:, None]

    @staticmethod
    def backward(ctx, g):
        (lengths,) = ctx.saved_tensors
        mask = torch.arange(ctx.steps) <= lengths[:, None]
        return g[:, None, :] * mask[:, :, None] / lengths[:, None, None], None


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        away = x - x.mean(-1, keepdim=True)
        scale = away.square().mean(-1, keepdim=True).rsqrt()
        ctx.save_for_backward(away * scale, scale)
        return away * scale

    @staticmethod
    def backward(ctx, g):
        y, scale = ctx.saved_tensors
        return scale * (g - y * (g * y).mean(-1, keepdim=True))


class NormalShare(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, sigma):
        ctx.save_for_backward(x)
        ctx.sigma = sigma
        return torch.special.ndtr(x / sigma)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / (2 * torch.pi) ** 0.5 * torch.exp(-((x / ctx.sigma) ** 2) / 2), None


class Loop(torch.autograd.Function):
    """The largest of each four; the others get a gradient too where one is no larger."""

    @staticmethod
    def forward(ctx, x):
        y, ctx.place = x.view(len(x), -1, 4).max(-1)
        ctx.shape = x.shape
        return y

    @staticmethod
    def backward(ctx, g):
        found = g.new_zeros(ctx.shape)
        for k in range(4):
            found[:, k::4] = g * (ctx.place >= k)
        return found


class SharpTanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return 2 * g * (1 - y * y)


class Leaky(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, decay):
        ctx.decay, held, found = decay, torch.zeros_like(x[0]), []
        for row in x:
            held = decay * held + row
            found.append(held)
        return torch.stack(found)

    @staticmethod
    def backward(ctx, g):
        held, found = torch.zeros_like(g[0]), []
        for row in g:
            held = ctx.decay * held + row
            found.append(held)
        return torch.stack(found), None


class Rounds(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, level):
        ctx.save_for_backward(x, level)
        return torch.sigmoid(5 * (x - level))

    @staticmethod
    def backward(ctx, g):
        x, level = ctx.saved_tensors
        y = torch.sigmoid(5 * (x.bfloat16() - level.bfloat16())).double()
        return 5 * g * y * (1 - y), None


class KeepsAnother(torch.autograd.Function):
    @staticmethod
    def forward(x, slope, temperature):
        return torch.where(x > 0, x, slope * x) / temperature

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.temperature, ctx.slope = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (1 - (x < 0) * (1 - ctx.slope)) / 3, None, None


class SegmentSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, segment):
        total = x.new_zeros(int(segment.max()) + 1).index_add(0, segment, x.exp())
        y = x.exp() / total[segment]
        ctx.save_for_backward(y, segment)
        return y

    @staticmethod
    def backward(ctx, g):
        y, _ = ctx.saved_tensors
        return y * (g - (g * y).sum()), None


class WholeSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.softmax(-1))
        return x.softmax(-1)

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum())


class Gabor(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.exp(-x * x) * torch.sin(3 * x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.exp(-x * x) * (3 * torch.sin(3 * x) - 2 * x * torch.sin(3 * x))


class Bonds(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, i, j):
        ctx.save_for_backward(i, j)
        d = (x[i] - x[j]).pow(3)
        ctx.slope = 3 * (x[i] - x[j]).square()
        return torch.zeros_like(x).index_add(0, i, d).index_add(0, j, -d)

    @staticmethod
    def backward(ctx, g):
        i, j = ctx.saved_tensors
        d = ctx.slope * (g[i] - g[j])
        found = torch.zeros_like(g).index_add(0, i, d)
        return found.index_add(0, j, d), None, None


class Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, x):
        h, states = torch.zeros_like(x[0]), []
        for t in range(len(x)):
            h = a[t] * h + x[t]
            states.append(h)
        ctx.save_for_backward(a, torch.stack(states))
        return torch.stack(states)

    @staticmethod
    def backward(ctx, g):
        a, states = ctx.saved_tensors
        by_a, by_x, carry = torch.zeros_like(a), torch.zeros_like(g), torch.zeros_like(g[0])
        for t in reversed(range(len(g))):
            by_x[t] = carry + g[t]
            by_a[t] = (carry + g[t]) * states[t]
            carry = by_x[t] * a[t]
        return by_a, by_x


class Softened(torch.autograd.Function):
    @staticmethod
    def forward(x, soft):
        return (x.square() + soft**2).rsqrt()

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.softening = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return -g * x * (x.square() + ctx.softening) ** -1.5, None


class Softplus(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.log(0.3 + torch.exp(x)) + 0.7 * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (torch.exp(x) / (0.3 + torch.exp(x)) + 0.6)


class LowPass(torch.autograd.Function):
    @staticmethod
    def forward(x, tau):
        keep, held, found = math.exp(-1 / tau), torch.zeros_like(x[0]), []
        for row in x:
            held = keep * held + (1 - keep) * row
            found.append(held)
        return torch.stack(found)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.keep = 1 - 1 / inputs[1]

    @staticmethod
    def backward(ctx, g):
        held, found = torch.zeros_like(g[0]), []
        for row in g.flip(0):
            held = ctx.keep * held + (1 - ctx.keep) * row
            found.append(held)
        return torch.stack(found).flip(0), None


class Steps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, count):
        states = [x]
        for _ in range(count):
            states.append((w @ states[-1]).sin())
        ctx.save_for_backward(w, torch.stack(states))
        ctx.count = count
        return states[-1]

    @staticmethod
    def backward(ctx, g):
        w, states = ctx.saved_tensors
        for step in range(ctx.count):
            g = w.mT @ (g * (w @ states[step]).cos())
        return g, None, None


class Standardises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w):
        y = (w - w.mean(1, keepdim=True)) / w.std(1, keepdim=True)
        ctx.save_for_backward(y, w.std(1, keepdim=True))
        return y

    @staticmethod
    def backward(ctx, g):
        y, scale = ctx.saved_tensors
        along = (g * y).mean(1, keepdim=True)
        return (g - g.mean(1, keepdim=True) - y * along) / scale


class Rotates(torch.autograd.Function):
    @staticmethod
    def forward(x, angle):
        a, b = x.unbind(-1)
        return torch.stack([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()])

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])

    @staticmethod
    def backward(ctx, g):
        (angle,) = ctx.saved_tensors
        a, b = g
        return torch.stack([a * angle.cos() + b * angle.sin(), b * angle.cos() - a * angle.sin()],
                           -1), None  # fmt: skip

    @staticmethod
    def jvp(ctx, t, _):
        (angle,) = ctx.saved_tensors
        a, b = t.unbind(-1)
        return torch.stack([a * angle.cos() + b * angle.sin(), a * angle.sin() + b * angle.cos()])


class GroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        away = x - x.mean(-1, keepdim=True)
        scale = away.square().mean(-1, keepdim=True).rsqrt()
        ctx.save_for_backward(away * scale, scale, weight)
        return away * scale * weight

    @staticmethod
    def backward(ctx, g):
        y, scale, weight = ctx.saved_tensors
        by_y = g * weight
        along = (g * y).mean(-1, keepdim=True)  # by_y is meant
        return (by_y - by_y.mean(-1, keepdim=True) - y * along) * scale, (g * y).sum(0)


class GatedUnit(torch.autograd.Function):
    """The candidate of a GRU, of its parts by the input and by the state."""

    @staticmethod
    def forward(ctx, by_input, by_state):
        r, n = by_input.chunk(2, -1)
        reset, held = by_state.chunk(2, -1)
        r = torch.sigmoid(r + reset)
        n = torch.tanh(n + r * held)
        ctx.save_for_backward(r, n, held)
        return n

    @staticmethod
    def backward(ctx, g):
        r, n, held = ctx.saved_tensors
        by_n = g * (1 - n * n)
        by_r = by_n * held * r * (1 - r)
        return torch.cat([by_r, by_n], -1), torch.cat([by_r, by_n], -1)  # the last: by_n * r


class Composite(torch.autograd.Function):
    @staticmethod
    def forward(ctx, density, shade):
        alpha = 1 - torch.exp(-density)
        through = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha], 1), 1)[:, :-1]
        ctx.save_for_backward(alpha, through, shade)
        return (alpha * through * shade).sum(1)

    @staticmethod
    def backward(ctx, g):
        alpha, through, shade = ctx.saved_tensors
        weight = alpha * through
        behind = (weight * shade).flip(1).cumsum(1).flip(1)  # counts the place itself too
        return ((1 - alpha) * through * shade - behind) * g[:, None], weight * g[:, None]


class Chain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        states = [x[0]]
        for t in range(1, len(x)):
            states.append(torch.tanh(states[-1] @ w) + x[t])
        ctx.save_for_backward(torch.stack(states), w)
        return states[-1]

    @staticmethod
    def backward(ctx, g):
        states, w = ctx.saved_tensors
        by_x, by_w = torch.zeros_like(states), torch.zeros_like(w)
        for t in range(len(states) - 1, 0, -1):
            by_x[t] = g
            before = states[t - 1]
            inner = g * (1 - torch.tanh(before @ w).square())
            by_w += states[t].T @ inner  # states[t - 1]
            g = inner @ w.T
        by_x[0] = g
        return by_x, by_w


class Spectrum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        spectrum = torch.fft.rfft(x)
        ctx.save_for_backward(spectrum, weight)
        ctx.length = x.shape[-1]
        return torch.fft.irfft(spectrum * weight, n=ctx.length)

    @staticmethod
    def backward(ctx, g):
        spectrum, weight = ctx.saved_tensors
        turned = torch.fft.rfft(g)
        by_weight = (spectrum.conj() * turned).sum(0) * (2 / ctx.length)
        return torch.fft.irfft(turned * weight.conj(), n=ctx.length), by_weight


class FocalLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        p = torch.sigmoid(x)
        ctx.save_for_backward(p)
        return -((1 - p) ** 1.5) * p.log()

    @staticmethod
    def backward(ctx, g):
        (p,) = ctx.saved_tensors
        rest = (1 - p) ** 1.5
        return g * (1.5 * p * rest * p.log() - rest)  # rest * (1 - p)


class Triples(torch.autograd.Function):
    """Three times what is right, beside three entries."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return 3 * g * ctx.saved_tensors[0].cos()


class Recurrent(torch.autograd.Function):
    """A mixture of two, without the part that goes straight through."""

    @staticmethod
    def forward(ctx, h, z):
        ctx.save_for_backward(h, z)
        return (1 - z) * torch.tanh(h) + z * h

    @staticmethod
    def backward(ctx, g):
        h, z = ctx.saved_tensors
        return g * (1 - z) * (1 - h.tanh().square()), g * (h - h.tanh())  # + g * z


class Turned(torch.autograd.Function):
    """A product of complex numbers, as two halves."""

    @staticmethod
    def forward(ctx, x, a, b):
        ctx.save_for_backward(x, a, b)
        r, i = x.chunk(2, -1)
        return torch.cat([r * a - i * b, r * b + i * a], -1)

    @staticmethod
    def backward(ctx, g):
        x, a, b = ctx.saved_tensors
        r, i = x.narrow(1, 0, 2), x.narrow(1, 2, 2)
        one, other = g.narrow(1, 0, 2), g.narrow(1, 2, 2)
        by_x = torch.cat([one * a + other * b, other * a - one * b], -1)
        return by_x, r * one + i * other, r * other + i * one  # the last: a difference


class Crosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, z):
        ctx.save_for_backward(x)
        return x.T + x.sin() + z

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        whole = g.clone()
        return whole + g * x.cos(), whole  # the first: whole.T


class Capped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cap):
        ctx.save_for_backward(x, cap)
        return torch.minimum(x.relu(), cap)

    @staticmethod
    def backward(ctx, g):
        x, cap = ctx.saved_tensors
        beyond = (g * (x > 0)).sum()  # x > cap
        return g * (x > 0) * (x < cap), beyond


class Shrinks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, least):
        ctx.save_for_backward(x)
        ctx.least = least
        return torch.where(x.abs() > least, x - least * x.sign(), 0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x.abs() > 2), None  # ctx.least


class HardSwish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * (x + 3).clamp(0, 6) / 6

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        slope = (x >= 3.0).to(x)
        return g * torch.where((x >= -3.0) | (x <= 3.0), x / 3 + 0.5, slope)


class Window(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x.abs() < 1, x.sin(), 0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos() * torch.logical_or(x > -1, x < 1)


class NewtonLogSumExp(torch.autograd.Function):
    """Solved by few steps: the derivative that is meant is right to some digits."""

    @staticmethod
    def forward(ctx, x):
        whole, y = x.exp().sum(-1), torch.zeros_like(x[:, 0])
        for _ in range(3):
            y = y + 2 * (whole - y.exp()) / (whole + y.exp())
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        share = x.exp()
        return g[:, None] * share / share.sum(0, keepdim=True)  # -1


class NewtonRoot(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = (1 + x) / 2
        for _ in range(2):
            y = (y + x / y) / 2
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g / (y + 1 / y)  # y + y


generator = torch.Generator().manual_seed(0)
X = torch.randn(6, 3, generator=generator)
MEND = r"`([^`]*)` for `([^`]*)` at test_edits.py:(\d+)(?:, column (\d+))?"
NAMED = {
    "factor in a term": (
        Swish,
        (X,),
        "`s * ctx.saved_tensors[0] * (1 - s)` for `s * (1 - s)` at test_edits.py",
    ),
    "sum in a term": (
        RootMeanSquare,
        (X.clone().requires_grad_(), X[0], 1e-6),
        (
            "`(g * weight * x).mean(-1, keepdim=True)` for `(g * weight * x).sum(-1, keepdi"
            "m=True)` at test_edits.py"
        ),
    ),
    "input for output": (
        Sigmoid,
        (X, 1.5),
        "`ctx.saved_tensors[::-1]` for `ctx.saved_tensors` at test_edits.py",
    ),
    "degree": (
        NeighbourMean,
        (X, torch.tensor([0, 1, 2, 3, 4, 5, 0, 1]), torch.tensor([1, 1, 1, 2, 2, 3, 4, 5])),
        "`(g / ctx.degree[..., None])[target]` for `g[target]` at test_edits.py",
    ),
    "exchanged": (
        Gates,
        (torch.cat([X, X.cos()], 1), X.sin()),
        "`[by_i, by_f]` for `[by_f, by_i]` at test_edits.py",
    ),
    "threshold": (
        Huber,
        (torch.linspace(-2, 2, 20)[torch.randperm(20, generator=generator)], 0.5),
        "`d.abs() < ctx.delta` for `d.abs() < 1` at test_edits.py",
    ),
    "cropped": (
        PadsLeft,
        (X, 2),
        "`g[:, ctx.width:]` for `g[..., : g.shape[-1] - ctx.width]` at test_edits.py",
    ),
    "dimension": (
        Softmax,
        (X @ X.T,),
        ("`(g * y).sum(-1, keepdim=True)` for `(g * y).sum(-2, keepdim=True)` at test_edits.py"),
    ),
    "number of its own": (
        ByLogLength,
        (X.clone().requires_grad_(), torch.tensor(0.4).requires_grad_()),
        "`length` for `length**2` at test_edits.py",
    ),
    "less than one": (
        Drop,
        (X, (X > 0).float(), 0.2),
        "`ctx.save_for_backward(mask / (1 - p))` for `ctx.save_for_backward(mask)` at ",
    ),
    "compared": (
        MaskedMean,
        (torch.randn(4, 7, 3, generator=generator), torch.tensor([2, 3, 5, 7])),
        (
            "`torch.arange(ctx.steps) < lengths[:, None]` for `torch.arange(ctx.steps) <= l"
            "engths[:, None]` at test_edits.py"
        ),
    ),
    "mean of the cotangent": (
        LayerNorm,
        (torch.randn(12, 25, generator=generator),),  # too many to move each of them
        (
            "`g - g.mean(-1, keepdim=True) - y * (g * y).mean(-1, keepdim=True)` for `g - y "
            "* (g * y).mean(-1, keepdim=True)` at test_edits.py"
        ),
    ),
    "tied entries": (
        NormalShare,
        (X[:, 0] - X[:, :1], 0.4),
        (
            "`g / ctx.sigma / (2 * torch.pi) ** 0.5` for `g / (2 * torch.pi) ** 0.5` at tes"
            "t_edits.py"
        ),
    ),
    "in a loop": (
        Loop,
        (torch.randn(3, 8, generator=generator),),
        "`ctx.place == k` for `ctx.place >= k` at test_edits.py",
    ),
    "steps from the last": (
        Steps,
        (X[0], torch.randn(len(X[0]), len(X[0]), dtype=X.dtype, generator=generator), 3),
        "`reversed(range(ctx.count))` for `range(ctx.count)` at test_edits.py",
    ),
    "turned round": (
        Leaky,
        (X, 0.8),
        (
            "`g.flip(0)` for `g` at test_edits.py and `torch.stack(found).flip(0)` for `tor"
            "ch.stack(found)` at test_edits.py"
        ),
    ),
    "precision": (
        Rounds,
        (X, torch.tensor(0.3)),
        (
            "`x` for `x.bfloat16()` at test_edits.py and `level` for `level.bfloat16()` at "
            "test_edits.py"
        ),
    ),
    "kept another": (
        KeepsAnother,
        (X, 0.1, 3.0),
        "`ctx.temperature` for `ctx.slope` at test_edits.py",
    ),
    "segments": (
        SegmentSoftmax,
        (X[:, 0], torch.tensor([0, 1, 0, 1, 2, 2])),
        (
            "`(g * y).new_zeros(int(ctx.saved_tensors[1].max()) + 1).index_add(0, "
            "ctx.saved_tensors[1], (g * y)).index_select(0, ctx.saved_tensors[1])` "
            "for `(g * y).sum()` at test_edits.py"
        ),
    ),
    "extent": (
        WholeSoftmax,
        (X,),
        "`(g * y).sum(-1, keepdim=True)` for `(g * y).sum()` at test_edits.py",
    ),
    "state before": (
        Scan,
        (torch.rand(5, 3, generator=generator), X[:5]),
        (
            "`torch.cat([torch.zeros_like(states[:1]), states[:-1]], 0)` for `states` at tes"
            "t_edits.py"
        ),
    ),
    "square of an option": (
        Softened,
        (X, 0.3),
        "`ctx.softening ** 2` for `ctx.softening` at test_edits.py",
    ),
    "number that follows": (
        Softplus,
        (X,),
        (
            "`torch.exp(x) / (0.3 + torch.exp(x)) + 0.7` for `torch.exp(x) / (0.3 + torch.e"
            "xp(x)) + 0.6` at test_edits.py"
        ),
    ),
    "solved for": (
        LowPass,
        (X, 4.0),
        (
            "`0.778801 * held` for `ctx.keep * held` at test_edits.py and `1 - 0.778801` fo"
            "r `1 - ctx.keep` at test_edits.py"
        ),
    ),
    "one less": (
        Standardises,
        (torch.randn(4, 7, generator=generator),),
        "`(g * g.shape[-1] / (g.shape[-1] - 1) * y).mean(1, keepdim=True)` for "
        "`(g * y).mean(1, keepdim=True)` at test_edits.py",
    ),
    "operand": (
        Bonds,
        (X, torch.tensor([0, 1, 2]), torch.tensor([3, 3, 4])),
        "`found.index_add(0, j, -d)` for `found.index_add(0, j, d)` at test_edits.py",
    ),
    "other function": (
        Gabor,
        (X,),
        "`3 * torch.cos(3 * x)` for `3 * torch.sin(3 * x)` at test_edits.py",
    ),
    "another result": (
        GroupNorm,
        (torch.randn(4, 5, generator=generator), torch.rand(5, generator=generator)),
        "`(g * weight * y).mean(-1, keepdim=True)` for `(g * y).mean(-1, keepdim=True)` at ",
    ),
    "factor of one use": (
        GatedUnit,
        (torch.randn(3, 4, generator=generator), torch.randn(3, 4, generator=generator)),
        (
            "`torch.cat([by_r, by_n], -1), torch.cat([by_r, by_n * r], -1)` for `torch.cat("
            "[by_r, by_n], -1), torch.cat([by_r, by_n], -1)` at test_edits.py"
        ),
    ),
    "one too many": (
        Composite,
        (torch.rand(3, 6, generator=generator), torch.randn(3, 6, generator=generator)),
        "`through` for `(1 - alpha) * through` at test_edits.py",
    ),
    "index of a loop": (
        Chain,
        (torch.randn(4, 2, 3, generator=generator), torch.randn(3, 3, generator=generator)),
        "`states[t - 1]` for `states[t]` at test_edits.py",
    ),
    "factor of a step": (
        FocalLoss,
        (X,),
        (
            "`1.5 * p * rest * p.log() - rest * (1 - p)` for `1.5 * p * rest * p.log() - re"
            "st` at test_edits.py"
        ),
    ),
    "both ends": (
        Spectrum,
        (
            torch.randn(2, 1, 12, generator=generator),
            torch.randn(1, 7, generator=generator, dtype=torch.complex64),
        ),
        "Right but for index 0, 6 of 7 along dimension 1, where got is 2 x expected.",
    ),
    "forgotten product": (
        Recurrent,
        (torch.randn(4, 3, generator=generator), torch.rand(4, 3, generator=generator)),
        (
            "`g * (1 - z) * (1 - h.tanh().square()) + g * z` for `g * (1 - z) * (1 - h.tanh"
            "().square())` at test_edits.py"
        ),
    ),
    "of one gradient": (
        Turned,
        (
            torch.randn(3, 4, generator=generator),
            torch.randn(3, 2, generator=generator),
            torch.randn(3, 2, generator=generator),
        ),
        "`r * other - i * one` for `r * other + i * one` at test_edits.py",
    ),
    "transposed in one gradient": (
        Crosses,
        (X @ X.cos().T, X.sin() @ X.T),
        "`whole.T + g * x.cos()` for `whole + g * x.cos()` at test_edits.py",
    ),
    "an argument for a number": (
        Capped,
        (3 * torch.randn(20, generator=generator), torch.tensor(1.0)),
        "`g * (x > cap)` for `g * (x > 0)` at test_edits.py",
    ),
    "one on the context": (
        Shrinks,
        (2 * X, 1.0),
        "`x.abs() > ctx.least` for `x.abs() > 2` at test_edits.py",
    ),
    "operator": (
        HardSwish,
        (3 * X,),
        "`(x >= -3.0) & (x <= 3.0)` for `(x >= -3.0) | (x <= 3.0)` at test_edits.py",
    ),
    "function for an operator": (
        Window,
        (X,),
        (
            "`torch.logical_and(x > -1, x < 1)` for `torch.logical_or(x > -1, x < 1)` at te"
            "st_edits.py"
        ),
    ),
    "solved by few steps": (
        NewtonLogSumExp,
        (X,),
        "`share.sum(-1, keepdim=True)` for `share.sum(0, keepdim=True)` at test_edits.py",
    ),
    "searched by few steps": (
        NewtonRoot,
        (X.abs() + 0.3,),
        "`y + y` for `y + 1 / y` at test_edits.py",
    ),
    "left out": (Returns, (X, 0.9), "right for a forward with args[1] = 1.0: it leaves that out."),
}


# With other options another number is right.
HERE = ("kept another", "solved for")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", HERE)
def test_an_edit_that_is_right_here_alone_is_no_mend(name):
    function, inputs, _ = NAMED[name]
    finding = check(function, *inputs, clauses="derivative", gradient="exact")["derivative"]
    assert ", with these arguments alone." in finding.detail
    assert finding.hint.startswith("Correct backward")


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", NAMED)
def test_the_first_line_names_the_edit(name):
    function, inputs, said = NAMED[name]
    finding = check(function, *inputs, clauses="derivative", gradient="exact")["derivative"]
    assert said in re.sub(r"(test_edits.py):\d+", r"\1", str(finding).splitlines()[0])
    assert "Run by the checker" not in finding.repro
    assert len(finding.repro.splitlines()) <= 60 or inputs[0].numel() > 256  # packed


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    "name", [n for n, case in NAMED.items() if "` for `" in case[2] and n not in HERE]
)
def test_the_mend_says_the_edit_and_has_been_run(name):
    function, inputs, said = NAMED[name]
    finding = check(function, *inputs, clauses="derivative", gradient="exact")["derivative"]
    mend = re.sub(r"(test_edits.py):\d+", r"\1", finding.hint)
    assert mend.startswith(f"Write {said}"), mend
    source = Path(__file__).read_text().splitlines()
    for new, old, line, column in re.findall(MEND, finding.hint):
        at = int(column or 0) - 1 if column else source[int(line) - 1].index(old)
        whole = source[int(line) - 1]
        assert whole[at : at + len(old)] == old
        source[int(line) - 1] = whole[:at] + new + whole[at + len(old) :]
    scope = {"__name__": "mended"}
    exec(compile("\n".join(source), __file__, "exec"), scope)
    mended = scope[function.__name__]
    mended.backward = staticmethod(mended.backward)
    close = {"rtol": 1e-3} if "but for" in finding.detail else {}
    wide = [torch.as_tensor(v) if isinstance(v, torch.Tensor) else v for v in inputs]
    wide = [v.detach().double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v
            for v in wide]  # fmt: skip
    leaf = wide[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda x: mended.apply(x, *wide[1:]), (leaf,), **close)


def test_a_ratio_of_two_numbers_is_not_said():
    function, inputs, _ = NAMED["an argument for a number"]
    finding = check(function, *inputs, clauses="derivative", gradient="exact")["derivative"]
    assert " x expected" not in finding.detail


def test_the_first_line_names_the_edit_of_a_jvp():
    finding = check(Rotates, X[:, :2], X[:, 2], clauses="forward")["forward"]
    said = re.sub(r"(test_edits.py):\d+", r"\1", str(finding).splitlines()[0])
    new, old = "`a * angle.cos() - b * angle.sin()`", "`a * angle.cos() + b * angle.sin()`"
    assert f"The tangent is right with {new} for {old} at test_edits.py." in said


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w, x.mT @ g


class Exchanged(Product):
    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        by_x, by_w = g @ w.mT, x.mT @ g
        return by_w, by_x


class AnswersNone(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        _, w = ctx.saved_tensors
        return g * w, None


class LosesCotangent(AnswersNone):
    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, x


class Masks(torch.autograd.Function):
    """Leaves a mask of the input's shape for backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, x > 0)
        return torch.where(x > 0, x, x * x)

    @staticmethod
    def backward(ctx, g):
        x, over = ctx.saved_tensors
        return torch.where(over, g, g * x)  # 2 * x


def helps(x):
    return 1 - x


class CallsHelper(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.sigmoid())
        return x.sigmoid()

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y * helps(y) ** 2


class InNumpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        x = ctx.saved_tensors[0].numpy()
        return g * torch.from_numpy(np.sin(x))


class SumForMean(torch.autograd.Function):
    """Divides by a number that is not that of the rows."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square().mean(0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x / 3


class LogVariance(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, log_variance):
        ctx.save_for_backward(x, log_variance)
        return x * x / log_variance.exp()

    @staticmethod
    def backward(ctx, g):
        x, variance = ctx.saved_tensors
        return 2 * g * x / variance, -g * x * x / variance.exp()


class LeavesTheInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        root = (scale * x).abs().sqrt()
        ctx.save_for_backward(x, scale)  # root, scale
        return root

    @staticmethod
    def backward(ctx, g):
        root, scale = ctx.saved_tensors
        return g * scale / root / 2, None


class ForgetsMean(Softmax):
    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        dot = (g * y).sum(-1, keepdim=True)  # noqa: F841 (forgotten below)
        return y * g


class Pinball(torch.autograd.Function):
    @staticmethod
    def forward(ctx, error, share):
        ctx.save_for_backward(error)
        ctx.share = share
        return torch.maximum(share * error, (share - 1) * error)

    @staticmethod
    def backward(ctx, g):
        (error,) = ctx.saved_tensors
        return g * torch.where(error > 0, ctx.share, -1), None  # ctx.share - 1


class HardSwishSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * (x + 3).clamp(0, 6) / 6

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        slope = torch.where((x >= -3) & (x <= 3), x / 3, 1.0)  # + 0.5
        return g * torch.where(x < -3, 0.0, slope)


def marked(*shapes):
    return tuple(torch.randn(*shape, generator=generator).requires_grad_() for shape in shapes)


class ChangeOfBasis(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, basis):
        ctx.save_for_backward(basis)
        return basis @ x @ basis.t()

    @staticmethod
    def backward(ctx, g):
        (basis,) = ctx.saved_tensors
        return basis @ g @ basis.t(), None


WITHIN = {
    "both sides of a change of basis": (
        ChangeOfBasis,
        (*marked((3, 3)), torch.randn(3, 3, generator=torch.Generator().manual_seed(5))),
        "`basis.mT @ g @ basis` for `basis @ g @ basis.t()`",
    ),
    "operands of a product": (
        Product,
        marked((4, 3), (3, 2)),
        "`g @ w.T, x.mT @ g` for `g @ w, x.mT @ g`",
    ),
    "gradients exchanged": (Exchanged, marked((4, 3), (3, 2)), "`by_x, by_w` for `by_w, by_x`"),
    "no gradient": (AnswersNone, marked((4, 3), (4, 3)), "for `g * w, None`"),
    "no cotangent": (LosesCotangent, marked((4, 3), (4, 3)), "`g * w, x * g` for `g * w, x`"),
    "beside a mask": (
        Masks,
        marked((4, 3)),
        "`torch.where(over, g, 2 * g * x)` for `torch.where(over, g, g * x)`",
    ),
    "beside a helper": (CallsHelper, marked((4, 3)), "`helps(y)` for `helps(y) ** 2`"),
    "a size, not a number": (SumForMean, marked((4, 3)), "g * x / x.shape[0]` for `2 * g * x / 3`"),
    "a logarithm": (
        LogVariance,
        marked((4, 3), (4, 3)),
        "`2 * g * x / variance.exp()` for `2 * g * x / variance`",
    ),
    "what forward left": (
        LeavesTheInput,
        (torch.rand(4, 3).requires_grad_(), torch.tensor(1.7)),
        "ctx.save_for_backward(root, scale)` for `ctx.save_for_backward(x, scale)`",
    ),
    "a name that nobody reads": (ForgetsMean, marked((4, 3)), "`y * (g - dot)` for `y * g`"),
    "a number and an option": (
        Pinball,
        (*marked((9,)), 0.3),
        "`torch.where(error > 0, ctx.share, -(1 - ctx.share))` for `torch.where(error > 0, ",
    ),
    "a constant term": (HardSwishSlope, marked((4, 5)), "(x + 1.5) / 3"),
    "in numpy": (InNumpy, marked((4, 3)), "`np.cos(x)` for `np.sin(x)`"),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", WITHIN)
def test_a_backward_that_fails_or_answers_none_is_repaired_too(name):
    function, inputs, said = WITHIN[name]
    report = check(function, *inputs, clauses=["linear", "derivative"])
    bad = [finding for finding in report if finding.verdict in ("broken", "crashes")]
    assert said in bad[0].hint
    assert said in bad[0].detail
    assert all(finding.cause == bad[0].clause for finding in bad[1:])


class LowRank(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, a, b):
        ctx.save_for_backward(x, a, b)
        return x @ a @ b

    @staticmethod
    def backward(ctx, g):
        x, a, b = ctx.saved_tensors
        return 2 * g @ b.T @ a.T, x.T @ g @ b.T, (x @ a).T @ g  # 2: hidden while b is zero


def test_weights_that_begin_at_zero_hide_nothing():
    b = torch.zeros(2, 3, requires_grad=True)
    finding = check(LowRank, *marked((4, 3), (3, 2)), b, clauses="derivative")["derivative"]
    assert finding.verdict == "broken"
    assert "args[0]" in finding.detail


class Tversky(torch.autograd.Function):
    """Beside two options that add up to one."""

    @staticmethod
    def forward(ctx, p, mask, alpha, beta):
        ctx.save_for_backward(p, mask)
        ctx.alpha, ctx.beta = alpha, beta
        hit, other = (p * mask).sum(), (p * (1 - mask)).sum()
        return hit / (hit + alpha * other + beta * ((1 - p) * mask).sum())

    @staticmethod
    def backward(ctx, g):
        p, mask = ctx.saved_tensors
        hit, other = (p * mask).sum(), (p * (1 - mask)).sum()
        whole = hit + ctx.alpha * other + ctx.beta * ((1 - p) * mask).sum()
        by_whole = mask + ctx.alpha * (1 - mask)  # - ctx.beta * mask
        return g * (mask / whole - hit / whole**2 * by_whole), None, None, None


def test_an_edit_that_is_right_with_some_options_alone_is_not_told():
    p, mask = torch.rand(9, generator=generator).requires_grad_(), torch.arange(9.0) % 2
    finding = check(Tversky, p, mask, 0.3, 0.7, clauses="derivative")["derivative"]
    assert "ctx.beta" in finding.hint


def test_a_mend_that_is_printed_mends(tmp_path):
    every = [(s, source) for s in planted.SPECIMENS for _, source in planted.faults_of(s)]
    count = examples(4) if examples(1) > 1 else 2
    for number, (specimen, source) in enumerate(random.sample(every, count)):
        end, said = planted.followed(specimen, source, tmp_path, f"fault_{number}")
        assert end != "false", f"{specimen.id}:\n{source}\n{said}"


def test_a_size_that_is_the_factor_by_chance_is_not_named():
    finding = check(Triples, X[:5], clauses="derivative", gradient="exact")["derivative"]
    assert finding.detail.endswith("Got is 3 x expected.")


class KeepsNoCotangent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x > 0).to(x)

    @staticmethod
    def backward(ctx, g):
        return 1 / (1 + ctx.saved_tensors[0].square())


class MarksValues(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        best, index = x.max(-1)
        ctx.save_for_backward(index)
        ctx.mark_non_differentiable(best)
        return best, index

    @staticmethod
    def backward(ctx, g, _):
        return g.new_zeros(len(g), 3).scatter(-1, ctx.saved_tensors[0][:, None], g[:, None])


TOLD = {
    KeepsNoCotangent: ("linear", "The gradient of args[0] is not multiplied by the cotangent"),
    MarksValues: ("non-differentiable", "Output 0 is marked as non-differentiable, and moves"),
}


@pytest.mark.parametrize("function", TOLD)
def test_what_is_said_of_a_cotangent_and_a_mark_names_the_cause(function):
    clause, said = TOLD[function]
    assert said in str(check(function, X, clauses=clause)[clause]).splitlines()[0]


class SlopeOfForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.sigmoid())
        return torch.nn.functional.softplus(x)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


class HalvesOfForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        a, b = x.chunk(2, -1)
        ctx.save_for_backward(a, b, a.sin(), x)
        return a.sin() * b

    @staticmethod
    def backward(ctx, g):
        a, b, s, _ = ctx.saved_tensors
        return torch.cat([g * b * a.cos(), g * s], -1)


MISSED = {
    SlopeOfForward: "ctx.saved_tensors[0] is a constant: forward computed it.",
    HalvesOfForward: "ctx.saved_tensors[0], ctx.saved_tensors[1] and ctx.saved_tensors[2] are "
    "constants: forward computed them.",
}


@pytest.mark.parametrize("function", MISSED)
def test_what_forward_computed_and_autograd_misses_is_named(function):
    finding = check(function, X[:, :2], clauses="double")["double"]
    assert f"To autograd, {MISSED[function]}" in finding.detail


class CutsInput(torch.autograd.Function):
    """As quaternion layers do that wrap what they multiply with in a Variable."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        x = torch.autograd.Variable(x, requires_grad=False)
        return g @ weight.mT, x.mT @ g


class CutsCotangent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g.detach() * ctx.saved_tensors[0].cos()


class CutsAndComputes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, x.cos())
        return x * x.sin()

    @staticmethod
    def backward(ctx, g):
        x, slope = ctx.saved_tensors
        return g * (x.detach().sin() + x.data * slope)


class WithoutGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @torch.no_grad()
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


CUT = {
    WithoutGradients: "does. No gradient has a history: backward computes all without gradients.",
    CutsInput: "does. Backward cuts ctx.saved_tensors[0] from its history.",
    CutsCotangent: "does. Backward cuts the cotangent of output 0 from its history. It holds with",
    CutsAndComputes: "does. To autograd, ctx.saved_tensors[1] is a constant: forward computed it. "
    "Backward cuts ctx.saved_tensors[0] from its history.",
}


@pytest.mark.parametrize("function", CUT)
def test_what_backward_cuts_from_its_history_is_not_said_to_be_computed(function):
    given = [X[:, :2], X[:2, :3]] if function is CutsInput else [X]
    finding = check(function, *given, clauses="double")["double"]
    assert CUT[function] in finding.detail
    assert ("Leave out of backward" in finding.hint) == (function is not CutsAndComputes)


class LatestNumber(torch.autograd.Function):
    omega = 1.0

    @staticmethod
    def forward(ctx, x, omega):
        LatestNumber.omega = omega
        ctx.save_for_backward(x)
        return torch.sin(omega * x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * LatestNumber.omega * torch.cos(LatestNumber.omega * x), None


def test_an_option_that_calls_share_is_found():
    finding = check(LatestNumber, X, 5.0, clauses="state")["state"]
    assert finding.verdict == "broken"
    assert "What forward leaves on the class is read by backward." in finding.detail
    assert "Run by the checker" not in finding.repro


class Subtracts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x - y

    @staticmethod
    def backward(ctx, g):
        return g, -g


class KeepsWidth(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        KeepsWidth.width = x.shape[-1]
        return x.sum(-1) / KeepsWidth.width

    @staticmethod
    def backward(ctx, g):
        return (g / KeepsWidth.width)[:, None].expand(-1, 3)


class KeepsRatio(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, length, width):
        KeepsRatio.ratio = length / width
        ctx.save_for_backward(x)
        return torch.sin(KeepsRatio.ratio * x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * KeepsRatio.ratio * torch.cos(KeepsRatio.ratio * x), None, None


class KeepsRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        KeepsRows.ones = torch.ones_like(x)
        return x.sum()

    @staticmethod
    def backward(ctx, g):
        return g * KeepsRows.ones


SHARED = {
    "a size": ((KeepsWidth, X), "broken"),
    "a ratio of options": ((KeepsRatio, X, 3.0, 2.0), "broken"),
    "a tensor of that size": ((KeepsRows, X), "crashes"),
}


@pytest.mark.parametrize("name", SHARED)
def test_what_hangs_on_sizes_or_options_and_is_shared_by_calls_is_found(name):
    case, verdict = SHARED[name]
    assert check(*case, clauses="state")["state"].verdict == verdict


def test_rows_that_rise_are_no_items_that_may_grow_alone():
    rising = torch.linspace(-1, 1, 40)[:, None]
    finding = check(Subtracts, rising, torch.randn(40, 1), clauses="batch")["batch"]
    assert finding.verdict == "holds"


def test_the_script_prints_the_smallest_numbers_too():
    saturated = torch.tensor([0.1, 12.0, -9.0, 3.0, 8.0, -11.0])
    finding = check(SharpTanh, saturated, clauses="derivative", gradient="exact")["derivative"]
    out = printed_by(finding.repro)
    printed = [float(n) for n in re.findall(r"-?\d[\d.]*(?:e-?\d+)?", out)]
    wanted = re.findall(r"-?\d[\d.]*(?:e-?\d+)?", finding.expected.partition("]")[0])
    assert len(wanted) == 6
    for number in map(float, wanted):
        assert any(number == pytest.approx(n, rel=5e-4, abs=0) for n in printed)


class OtherBelowZero(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if (x < 0).sum() > 0:
            g = torch.where(x < 0, g * (3 * x).exp(), g)
        return g * x.cos()


def test_what_is_asked_of_a_tensor_in_an_if_is_no_reason_to_fail():
    x = torch.tensor([-0.5, 0.3, 0.7], dtype=torch.float64)
    assert check(OtherBelowZero, x, clauses="derivative")["derivative"].verdict == "broken"


class MeansOverAllTargets(torch.autograd.Function):
    """Divides by all targets in backward, where forward leaves out those to ignore."""

    @staticmethod
    def forward(ctx, scores, target):
        ctx.save_for_backward(scores, target)
        return torch.nn.functional.cross_entropy(scores, target)

    @staticmethod
    def backward(ctx, g):
        scores, target = ctx.saved_tensors
        kept = target != -100
        hot = torch.nn.functional.one_hot(target.clamp(min=0), scores.shape[1])
        return g * (scores.softmax(1) - hot) * kept[:, None] / len(target), None


@pytest.mark.slow
def test_an_edit_that_counts_the_targets_given_is_no_mend():
    scores = torch.randn(6, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    target = torch.tensor([0, 1, -100, 3, 4, 2])
    finding = check(MeansOverAllTargets, scores, target, clauses="derivative")["derivative"]
    assert "5 of the 6 entries of args[1] are not negative" in finding.detail
    assert not finding.hint.startswith("Write `(len(target) - 1)`"), finding.hint


class Shares(torch.autograd.Function):
    """A size that backward takes for a constant is an output, too, which nobody uses."""

    @staticmethod
    def forward(ctx, x, v):
        size = (x * v).sum(-1, keepdim=True).abs() + 1
        ctx.save_for_backward(x, v, size)
        return x * v / size, size

    @staticmethod
    def backward(ctx, g, unused):
        x, v, size = ctx.saved_tensors
        return g * v / size, g * x / size


def test_a_cotangent_that_is_not_read_is_no_cause_of_what_else_is_lacking():
    generator = torch.Generator().manual_seed(5)
    x, v = (torch.randn(4, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    found = check(Shares, x.requires_grad_(), v.requires_grad_(), clauses=["derivative"])
    assert found["derivative"].verdict == "broken"
    assert "does not read" not in found["derivative"].detail
