"""Normalisations, which keep statistics of a forward."""

import torch
import torch.nn.functional as nn
from tests.tensor.ordinary.row import function, t

F = torch.autograd.Function
X = t([0.3, -0.7, 1.6], [0.2, 0.9, -0.4])
W, B = t(0.8, 1.2, 0.5), t(0.1, -0.2, 0.3)
TIES = t([1.0, 1.0, 1.0], [0.0, 0.0, 2.0])
AFFINE = {"ordinary": (X, W, B), "ties": (TIES, W, B)}
EPS = 1e-3


@function("layer norm", lambda x, w, b: nn.layer_norm(x, (3,), w, b, EPS), AFFINE, plain=False)
class LayerNorm(F):
    @staticmethod
    def forward(ctx, x, weight, bias):
        mu = x.mean(-1, keepdim=True)
        var = (x - mu).pow(2).mean(-1, keepdim=True)
        y = (x - mu) / (var + EPS).sqrt()
        ctx.save_for_backward(y, var, weight)
        return weight * y + bias

    @staticmethod
    def backward(ctx, grad_output):
        y, var, weight = ctx.saved_tensors
        g = grad_output * weight
        mean_g = g.mean(-1, keepdim=True)
        mean_gy = (g * y).mean(-1, keepdim=True)
        gx = 1.0 / torch.sqrt(var + EPS) * (g - y * mean_gy - mean_g)
        return gx, (grad_output * y).sum(0), grad_output.sum(0)


@function("layer norm of saved inputs", lambda x, w, b: nn.layer_norm(x, (3,), w, b, EPS), AFFINE)
class LayerNormInputs(F):
    @staticmethod
    def forward(x, weight, bias):
        return nn.layer_norm(x, (3,), weight, bias, EPS)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, _ = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        centred = x - x.mean(-1, keepdim=True)
        rstd = (centred.square().mean(-1, keepdim=True) + EPS).rsqrt()
        normal, scaled = centred * rstd, g * weight
        inner = (
            scaled
            - scaled.mean(-1, keepdim=True)
            - normal * (scaled * normal).mean(-1, keepdim=True)
        )
        by_x = rstd * inner if ctx.needs_input_grad[0] else None
        by_w = (g * normal).sum(0) if ctx.needs_input_grad[1] else None
        by_b = g.sum(0) if ctx.needs_input_grad[2] else None
        return by_x, by_w, by_b


def rms(x, w):
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * w


@function(
    "rms norm", rms, {"ordinary": (X, W), "zeros": (0 * X, W), "ties": (TIES, W)}, plain=False
)
class RMSNorm(F):
    @staticmethod
    def forward(ctx, x, weight, eps=EPS):
        rstd = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, rstd)
        return x * rstd * weight

    @staticmethod
    def backward(ctx, g):
        x, weight, rstd = ctx.saved_tensors
        normal = x * rstd
        scaled = g * weight
        by_x = rstd * (scaled - normal * (scaled * normal).mean(-1, keepdim=True))
        return by_x, (g * normal).sum(0), None


@function(
    "rms norm that keeps rstd on ctx", rms, {"ordinary": (X, W), "zeros": (0 * X, W)}, plain=False
)
class RMSNormAttribute(F):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.rstd = 1 / torch.sqrt(x.square().mean(-1, keepdim=True) + EPS)
        ctx.x, ctx.weight = x, weight
        return x * ctx.rstd * weight

    @staticmethod
    def backward(ctx, g):
        x, rstd, h = ctx.x, ctx.rstd, g * ctx.weight
        by_x = rstd * h - rstd**3 * x * (h * x).mean(-1, keepdim=True)
        return by_x, (g * x * rstd).sum(0)


@function(
    "batch norm",
    lambda x: nn.batch_norm(x, None, None, None, None, True, 0.1, EPS),
    {"ordinary": (torch.cat([X, X.cos()]),), "ties": (torch.cat([TIES, TIES]),)},
    plain=False,
)
class BatchNorm(F):
    @staticmethod
    def forward(ctx, x):
        mean, var = x.mean(0), x.var(0, unbiased=False)
        sigma = (var + EPS).sqrt()
        normal = (x - mean) / sigma
        ctx.save_for_backward(normal, sigma)
        return normal

    @staticmethod
    def backward(ctx, g):
        normal, sigma = ctx.saved_tensors
        return (g - g.mean(0) - normal * (g * normal).mean(0)) / sigma


@function(
    "batch statistics",
    lambda x: (x.mean(0), x.var(0, unbiased=False)),
    {"ordinary": (X,), "ties": (TIES,)},
)
class BatchStatistics(F):
    @staticmethod
    def forward(ctx, x):
        mean = x.mean(0)
        ctx.save_for_backward(x, mean)
        return mean, x.var(0, unbiased=False)

    @staticmethod
    def backward(ctx, by_mean, by_var):
        x, mean = ctx.saved_tensors
        return (by_mean + 2 * by_var * (x - mean)) / x.shape[0]


@function(
    "l2 normalise",
    lambda x: x / x.norm(dim=-1, keepdim=True),
    {"ordinary": (X,), "ties": (TIES,)},
    plain=False,
)
class Normalise(F):
    @staticmethod
    def forward(ctx, x):
        norm = x.norm(dim=-1, keepdim=True)
        y = x / norm
        ctx.save_for_backward(y, norm)
        return y

    @staticmethod
    def backward(ctx, g):
        y, norm = ctx.saved_tensors
        return (g - y * (g * y).sum(-1, keepdim=True)) / norm


@function(
    "l2 normalise, safe at zero",
    lambda x: nn.normalize(x, eps=0.1),
    {"ordinary": (X,), "ties": (t([0.06, 0.08, 0.0], [0.01, 0.0, 0.0]),)},
)
class NormaliseSafe(F):
    @staticmethod
    def forward(x, eps=0.1):
        return x / x.norm(dim=-1, keepdim=True).clamp(min=eps)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        norm = x.norm(dim=-1, keepdim=True)
        large = (g - x * (g * x).sum(-1, keepdim=True) / norm**2) / norm
        return torch.where(norm > 0.1, large, g / 0.1), None


@function(
    "group norm",
    lambda x: nn.group_norm(x.reshape(1, 6), 2, eps=EPS).reshape(2, 3),
    {"ordinary": (X,), "zeros": (0 * X,)},
    plain=False,
)
class GroupNorm(F):
    @staticmethod
    def forward(ctx, x):
        var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        ctx.mean, ctx.rstd = mean, (var + EPS) ** -0.5
        ctx.save_for_backward(x)
        return (x - mean) * ctx.rstd

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        normal = (x - ctx.mean) * ctx.rstd
        means = g.mean(-1, keepdim=True), (g * normal).mean(-1, keepdim=True)
        return ctx.rstd * (g - means[0] - normal * means[1])


@function("weight norm", lambda v, g: g * v / v.norm(dim=1, keepdim=True), (X, t([0.7], [1.3])))
class WeightNorm(F):
    @staticmethod
    def forward(ctx, v, g):
        ctx.save_for_backward(v, g)
        return g * v / v.norm(dim=1, keepdim=True)

    @staticmethod
    def backward(ctx, grad):
        v, g = ctx.saved_tensors
        norm = v.norm(dim=1, keepdim=True)
        by_g = (grad * v).sum(1, keepdim=True) / norm
        return g / norm * grad - g * by_g / norm**2 * v, by_g


@function("standardise", lambda x: (x - x.mean()) / x.std(), (X,), plain=False)
class Standardise(F):
    @staticmethod
    def forward(ctx, x):
        std, mean = torch.std_mean(x)
        y = (x - mean) / std
        ctx.save_for_backward(std, y)
        ctx.n = x.numel()
        return y

    @staticmethod
    def backward(ctx, g):
        std, y = ctx.saved_tensors
        return (g - g.mean() - y * (g * y).sum() / (ctx.n - 1)) / std


@function("cosine similarity", lambda a, b: nn.cosine_similarity(a, b, -1), (X, X.cos()))
class Cosine(F):
    @staticmethod
    def forward(ctx, a, b):
        y = (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))
        ctx.save_for_backward(a, b, y)
        return y

    @staticmethod
    def backward(ctx, g):
        a, b, y = ctx.saved_tensors
        na, nb = a.norm(dim=-1, keepdim=True), b.norm(dim=-1, keepdim=True)
        g, y = g.unsqueeze(-1), y.unsqueeze(-1)
        return g * (b / nb - y * a / na) / na, g * (a / na - y * b / nb) / nb
