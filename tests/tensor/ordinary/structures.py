"""Several outputs, numbers drawn, parts run again: what is around the maths."""

import torch
import torch.nn.functional as nn
from tests.tensor.ordinary.row import function, t

F = torch.autograd.Function
X = t([0.3, -0.7, 1.6], [0.2, 0.9, -0.4])
V = t(0.3, -0.7, 1.6, -0.2)
W = t([0.5, -0.2, 0.1], [0.4, 0.3, -0.6], [0.2, 0.7, 0.1])


@function("sine and cosine", lambda x: (x.sin(), x.cos()), {"ordinary": (V,), "zeros": (0 * V,)})
class SinCos(F):
    @staticmethod
    def forward(ctx, x):
        sin, cos = x.sin(), x.cos()
        ctx.save_for_backward(sin, cos)
        return sin, cos

    @staticmethod
    def backward(ctx, by_sin, by_cos):
        sin, cos = ctx.saved_tensors
        return by_sin * cos - by_cos * sin


@function("two outputs, gradients not materialised", lambda x, y: (x * y, x + y), (V, V.cos()))
class Pair(F):
    @staticmethod
    def forward(ctx, x, y):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y)
        return x * y, x + y

    @staticmethod
    def backward(ctx, by_product, by_sum):
        x, y = ctx.saved_tensors
        by_x = by_y = None
        if by_product is not None:
            by_x, by_y = by_product * y, by_product * x
        if by_sum is not None:
            by_x = by_sum if by_x is None else by_x + by_sum
            by_y = by_sum if by_y is None else by_y + by_sum
        return by_x, by_y


@function(
    "positive part and its mask",
    lambda x: (x.relu() ** 2, (x > 0).to(x)),
    {"ordinary": (V,), "kinks": (t(0.0, 1.0, -1.0, 0.0),)},
    outputs=(0,),
    plain=False,
)
class PartAndMask(F):
    @staticmethod
    def forward(x):
        return x.relu() ** 2, (x > 0).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0], output[1])

    @staticmethod
    def backward(ctx, g, _):
        x, mask = ctx.saved_tensors
        return 2 * x * mask * g


def _block(x, w):
    return torch.tanh(x @ w) @ w.T


@function("checkpoint", _block, (X, W))
class Checkpoint(F):
    """Runs its body again in backward, and asks autograd for its gradient."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return _block(x, w)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        with torch.enable_grad():
            copies = [a.detach().requires_grad_() for a in (x, w)]
            y = _block(*copies)
        return torch.autograd.grad(y, copies, g)


@function("checkpoint that keeps history", _block, {"ordinary": (X, W), "zeros": (0 * X, W)})
class CheckpointHistory(F):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return _block(x, w)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        _, pull = torch.func.vjp(_block, x, w)
        return pull(g)


@function("recomputed by hand", _block, {"ordinary": (X, W), "zeros": (0 * X, W)})
class Recomputed(F):
    @staticmethod
    def forward(x, w):
        return torch.tanh(x @ w) @ w.T

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        h = torch.tanh(x @ w)
        by_h = g @ w
        by_s = by_h * (1 - h * h)
        return by_s @ w.T, x.T @ by_s + g.T @ h


def _dropped(x, p):
    return x.square() * (torch.rand(x.shape, dtype=x.dtype) > p) / (1 - p)


@function(
    "dropout", _dropped, {"ordinary": (V, 0.4), "zeros": (0 * V, 0.4)}, random=True, plain=False
)
class Dropout(F):
    @staticmethod
    def forward(ctx, x, p):
        mask = torch.rand_like(x) > p
        ctx.save_for_backward(x, mask)
        ctx.p = p
        return x * x * mask / (1 - p)

    @staticmethod
    def backward(ctx, g):
        x, mask = ctx.saved_tensors
        return 2 * x * g * mask / (1 - ctx.p), None


@function(
    "reparametrised normal",
    lambda m, s: m + s.exp() * torch.randn(m.shape, dtype=m.dtype),
    (V, V.cos()),
    random=True,
    plain=False,
)
class Normal(F):
    @staticmethod
    def forward(ctx, mean, log):
        std, noise = log.exp(), torch.randn_like(mean)
        ctx.save_for_backward(std, noise)
        return mean + std * noise

    @staticmethod
    def backward(ctx, g):
        std, noise = ctx.saved_tensors
        return g, g * noise * std


@function(
    "stochastic rounding",
    lambda x: x + ((x + torch.rand(x.shape, dtype=x.dtype)).floor() - x).detach(),
    (V,),
    random=True,
    intent="surrogate",
)
class StochasticRound(F):
    @staticmethod
    def forward(ctx, x):
        return torch.floor(x + torch.rand_like(x))

    @staticmethod
    def backward(ctx, g):
        return g


@function(
    "gated linear unit",
    lambda a, b: a.sigmoid() * a * b,
    {"ordinary": (V, V.cos()), "zeros": (0 * V, V)},
    plain=False,
)
class SwiGLU(F):
    @staticmethod
    def forward(ctx, a, b):
        s = a.sigmoid()
        silu = a * s
        ctx.save_for_backward(a, b, s)
        return silu * b

    @staticmethod
    def backward(ctx, g):
        a, b, s = ctx.saved_tensors
        return g * b * s * (1 + a * (1 - s)), g * a * s


def _rotated(x, angle):
    cos, sin = angle.cos(), angle.sin()
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


@function("rotary embedding", _rotated, (V, t(0.3, 1.1)), constant=(1,), plain=False)
class Rotary(F):
    @staticmethod
    def forward(ctx, x, angle):
        ctx.cos, ctx.sin = angle.cos(), angle.sin()
        a, b = x.chunk(2, -1)
        return torch.cat([a * ctx.cos - b * ctx.sin, a * ctx.sin + b * ctx.cos], -1)

    @staticmethod
    def backward(ctx, g):
        a, b = g.chunk(2, -1)
        return torch.cat([a * ctx.cos + b * ctx.sin, b * ctx.cos - a * ctx.sin], -1), None


def _scan(a, x):
    h, out = torch.zeros_like(x[0]), []
    for step in range(len(x)):
        h = a[step] * h + x[step]
        out.append(h)
    return torch.stack(out)


@function("linear recurrence", _scan, {"ordinary": (X.T.sigmoid(), X.T), "zeros": (0 * X.T, X.T)})
class Scan(F):
    @staticmethod
    def forward(ctx, a, x):
        h = _scan(a, x)
        ctx.save_for_backward(a, h)
        return h

    @staticmethod
    def backward(ctx, g):
        a, h = ctx.saved_tensors
        carried, by_x = torch.zeros_like(g[0]), []
        for step in reversed(range(len(g))):
            carried = g[step] + carried
            by_x.append(carried)
            carried = a[step] * carried
        by_x = torch.stack(by_x[::-1])
        before = torch.cat([torch.zeros_like(h[:1]), h[:-1]])
        return by_x * before, by_x


def _lstm(gates, c):
    i, f, o, u = gates.chunk(4)
    new = f.sigmoid() * c + i.sigmoid() * u.tanh()
    return o.sigmoid() * new.tanh(), new


@function(
    "lstm cell",
    _lstm,
    (t(0.3, -0.7, 1.6, -0.2, 0.5, 0.1, -0.3, 0.8), t(0.4, -0.6)),
    plain=False,
)
class LSTMCell(F):
    @staticmethod
    def forward(ctx, gates, c):
        i, f, o, u = gates.chunk(4)
        i, f, o, u = i.sigmoid(), f.sigmoid(), o.sigmoid(), u.tanh()
        new = f * c + i * u
        ctx.save_for_backward(i, f, o, u, c, new)
        return o * new.tanh(), new

    @staticmethod
    def backward(ctx, by_h, by_new):
        i, f, o, u, c, new = ctx.saved_tensors
        th = new.tanh()
        by_c = by_new + by_h * o * (1 - th * th)
        parts = (
            by_c * u * i * (1 - i),
            by_c * c * f * (1 - f),
            by_h * th * o * (1 - o),
            by_c * i * (1 - u * u),
        )
        return torch.cat(parts), by_c * f


@function(
    "a power with a number kept as an attribute",
    lambda x, n: x**n,
    {"ordinary": (V, 3), "zeros": (0 * V, 3)},
)
class Power(F):
    @staticmethod
    def forward(ctx, x, n):
        ctx.save_for_backward(x)
        ctx.n = n
        return x**n

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return ctx.n * x ** (ctx.n - 1) * g, None


@function(
    "tensors kept as attributes",
    lambda x, y: x * y.exp(),
    {"ordinary": (V, V.cos()), "zeros": (0 * V, V)},
    plain=False,
)
class Attributes(F):
    @staticmethod
    def forward(ctx, x, y):
        e = torch.exp(y)
        ctx.x, ctx.parts = x, {"exp": e, "shape": x.shape}
        return x * e

    @staticmethod
    def backward(ctx, g):
        e = ctx.parts["exp"]
        return (g * e).reshape(ctx.parts["shape"]), g * ctx.x * e


@function(
    "detached before it is kept",
    lambda x: x.exp() * x,
    (V,),
    plain=False,
)
class Detached(F):
    @staticmethod
    def forward(ctx, x):
        e = x.exp()
        ctx.save_for_backward(x.detach(), e.detach())
        return e * x

    @staticmethod
    def backward(ctx, g):
        x, e = ctx.saved_tensors
        return g * e * (1 + x)


@function(
    "coupling layer",
    lambda a, b, w: (a, b * (a @ w).tanh().exp() + nn.relu(a)),
    (X, X.cos(), W),
    plain=False,
)
class Coupling(F):
    @staticmethod
    def forward(ctx, a, b, w):
        s = (a @ w).tanh()
        scale = s.exp()
        ctx.save_for_backward(a, b, w, s, scale)
        return a.clone(), b * scale + a.relu()

    @staticmethod
    def backward(ctx, by_a, by_b):
        a, b, w, s, scale = ctx.saved_tensors
        by_s = by_b * b * scale * (1 - s * s)
        return by_a + by_s @ w.T + by_b * (a > 0), by_b * scale, a.T @ by_s
