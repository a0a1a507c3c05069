"""Losses: many compute their gradient in forward, or keep probabilities."""

import torch
import torch.nn.functional as nn
from tests.tensor.ordinary.row import function, t

F = torch.autograd.Function
SCORES = t([0.3, -0.7, 1.6], [0.2, 0.9, -0.4])
TIES = t([1.0, 1.0, 1.0], [0.0, 0.0, 2.0])
TARGET = torch.tensor([2, 0])
P, Q = t(0.3, -0.7, 1.6, 2.4), t(0.1, 0.4, 1.0, -0.5)
PIXELS = t(3.0, 5.0, 2.0, 7.0), t(3.0, 4.0, 4.0, 7.0)  # differences 0, 1, -2, 0
SPREAD = {"ordinary": (P, Q), "kinks": PIXELS, "ties": (P, P)}


@function(
    "cross entropy",
    nn.cross_entropy,
    {"ordinary": (SCORES, TARGET), "ties": (TIES, TARGET)},
    plain=False,
)
class CrossEntropy(F):
    @staticmethod
    def forward(ctx, scores, target):
        log = torch.log_softmax(scores, 1)
        ctx.save_for_backward(log.exp(), target)
        return -log.gather(1, target[:, None]).mean()

    @staticmethod
    def backward(ctx, g):
        p, target = ctx.saved_tensors
        return g * (p - nn.one_hot(target, p.shape[1])) / len(target), None


@function(
    "fused cross entropy",
    lambda h, w, y: nn.cross_entropy(h @ w.T, y),
    (SCORES, TIES[:, :3] + 0.3 * SCORES.cos(), torch.tensor([1, 0])),
    plain=False,
)
class FusedCrossEntropy(F):
    @staticmethod
    def forward(ctx, hidden, weight, target):
        scores = hidden @ weight.T
        slope = (scores.softmax(1) - nn.one_hot(target, len(weight))) / len(target)
        ctx.save_for_backward(slope @ weight, slope.T @ hidden)
        return nn.cross_entropy(scores, target)

    @staticmethod
    def backward(ctx, g):
        by_hidden, by_weight = ctx.saved_tensors
        return by_hidden * g, by_weight * g, None


@function(
    "cross entropy, smoothed, with an ignored label",
    lambda s, y: nn.cross_entropy(s, y, ignore_index=-1, label_smoothing=0.1),
    {
        "ordinary": (torch.cat([SCORES, SCORES.cos()]), torch.tensor([2, -1, 0, 1])),
        "ties": (torch.cat([TIES, TIES]), torch.tensor([2, -1, 0, 1])),
    },
)
class SmoothedCrossEntropy(F):
    @staticmethod
    def forward(ctx, scores, target):
        ctx.save_for_backward(scores, target)
        return nn.cross_entropy(scores, target, ignore_index=-1, label_smoothing=0.1)

    @staticmethod
    def backward(ctx, g):
        scores, target = ctx.saved_tensors
        valid = target != -1
        wanted = nn.one_hot(target.clamp(min=0), 3) * 0.9 + 0.1 / 3
        return g * (scores.softmax(1) - wanted) * valid[:, None] / valid.sum(), None


def _focal(scores, target, gamma=2.0):
    log = scores.log_softmax(1).gather(1, target[:, None])
    return -((1 - log.exp()) ** gamma * log).mean()


@function("focal loss", _focal, {"ordinary": (SCORES, TARGET), "ties": (TIES, TARGET)}, plain=False)
class Focal(F):
    @staticmethod
    def forward(ctx, scores, target, gamma=2.0):
        p = scores.softmax(1)
        true = p.gather(1, target[:, None])
        ctx.save_for_backward(p, true, target)
        ctx.gamma = gamma
        return -((1 - true) ** gamma * true.log()).mean()

    @staticmethod
    def backward(ctx, g):
        p, true, target = ctx.saved_tensors
        by_log = (
            ctx.gamma * true * (1 - true) ** (ctx.gamma - 1) * true.log() - (1 - true) ** ctx.gamma
        )
        return g * by_log * (nn.one_hot(target, p.shape[1]) - p) / len(target), None, None


@function("mean squared error", nn.mse_loss, SPREAD, plain=False)
class MSE(F):
    @staticmethod
    def forward(ctx, prediction, target):
        difference = prediction - target
        ctx.save_for_backward(difference)
        return difference.square().mean()

    @staticmethod
    def backward(ctx, g):
        (difference,) = ctx.saved_tensors
        by = 2 * g * difference / difference.numel()
        return by, -by


@function(
    "huber on pixels", lambda p, q: nn.huber_loss(p, q, reduction="none"), SPREAD, plain=False
)
class Huber(F):
    @staticmethod
    def forward(ctx, prediction, target, delta=1.0):
        d = prediction - target
        ctx.save_for_backward(d)
        ctx.delta = delta
        small = d.abs() <= delta
        return torch.where(small, d * d / 2, delta * (d.abs() - delta / 2))

    @staticmethod
    def backward(ctx, g):
        (d,) = ctx.saved_tensors
        by = g * d.clamp(-ctx.delta, ctx.delta)
        return by, -by, None


@function("huber of saved inputs", lambda p, q: nn.huber_loss(p, q, reduction="sum"), SPREAD)
class HuberInputs(F):
    @staticmethod
    def forward(prediction, target):
        return nn.huber_loss(prediction, target, reduction="sum")

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        p, q = ctx.saved_tensors
        d = p - q
        by = g * torch.where(d.abs() < 1, d, d.sign())
        return by, (-by if ctx.needs_input_grad[1] else None)


@function("absolute error", nn.l1_loss, SPREAD, plain=False)
class L1(F):
    @staticmethod
    def forward(ctx, p, q):
        ctx.sign = torch.sign(p - q)
        return (p - q).abs().mean()

    @staticmethod
    def backward(ctx, g):
        by = g * ctx.sign / ctx.sign.numel()
        return by, -by


def _dice(p, q):
    return 1 - (2 * (p * q).sum() + 1) / (p.square().sum() + q.square().sum() + 1)


@function("dice", _dice, {"ordinary": (P, Q), "zeros": (0 * P, Q), "ties": (P, P)}, plain=False)
class Dice(F):
    @staticmethod
    def forward(ctx, p, q):
        ctx.save_for_backward(p, q)
        ctx.inter = torch.dot(p, q)
        ctx.union = p.square().sum() + q.square().sum() + 1
        return 1 - (2 * ctx.inter + 1) / ctx.union

    @staticmethod
    def backward(ctx, g):
        p, q = ctx.saved_tensors
        top = 2 * ctx.inter + 1
        by = lambda a, b: g * (2 * a * top / ctx.union**2 - 2 * b / ctx.union)  # noqa: E731
        return by(p, q), by(q, p)


@function(
    "binary cross entropy of scores",
    nn.binary_cross_entropy_with_logits,
    {"ordinary": (P, t(1.0, 0.0, 0.5, 1.0)), "zeros": (0 * P, t(1.0, 0.0, 0.5, 1.0))},
    constant=(1,),
)
class BCE(F):
    @staticmethod
    def forward(ctx, s, y):
        ctx.save_for_backward(s, y)
        return (s.clamp(min=0) - s * y + torch.log1p(torch.exp(-s.abs()))).mean()

    @staticmethod
    def backward(ctx, g):
        s, y = ctx.saved_tensors
        return g * (torch.sigmoid(s) - y) / s.numel(), None


LABEL = t(1.0, -1.0, 1.0, -1.0)


@function(
    "squared hinge",
    lambda s, y: (1 - y * s).clamp(min=0).square().sum(),
    {"ordinary": (P, LABEL), "kinks": (t(1.0, -1.0, 0.5, 1.0), LABEL)},
    constant=(1,),
    plain=False,
)
class SquaredHinge(F):
    @staticmethod
    def forward(ctx, s, y):
        margin = torch.relu(1 - y * s)
        ctx.save_for_backward(margin, y)
        return (margin**2).sum()

    @staticmethod
    def backward(ctx, g):
        margin, y = ctx.saved_tensors
        return -2 * g * margin * y, None


@function("quantile loss", lambda p, q: torch.maximum(0.8 * (q - p), -0.2 * (q - p)).sum(), SPREAD)
class Quantile(F):
    @staticmethod
    def forward(ctx, p, q, tau=0.8):
        ctx.save_for_backward(p, q)
        ctx.tau = tau
        return torch.where(q > p, tau * (q - p), (tau - 1) * (q - p)).sum()

    @staticmethod
    def backward(ctx, g):
        p, q = ctx.saved_tensors
        by = g * ((q > p).to(p) - (1 - ctx.tau))
        return -by, by, None


@function("log cosh", lambda p, q: (p - q).cosh().log(), SPREAD, plain=False)
class LogCosh(F):
    @staticmethod
    def forward(ctx, p, q):
        d = p - q
        ctx.save_for_backward(torch.tanh(d))
        return torch.log(torch.cosh(d))

    @staticmethod
    def backward(ctx, g):
        (slope,) = ctx.saved_tensors
        return g * slope, -g * slope


@function(
    "divergence of two softmaxes",
    lambda p, q: (p.softmax(-1) * (p.log_softmax(-1) - q.log_softmax(-1))).sum(),
    {"ordinary": (SCORES, SCORES.cos()), "ties": (TIES, TIES)},
)
class KL(F):
    @staticmethod
    def forward(ctx, p, q):
        ctx.save_for_backward(p, q)
        a, b = p.log_softmax(-1), q.log_softmax(-1)
        return (a.exp() * (a - b)).sum()

    @staticmethod
    def backward(ctx, g):
        p, q = ctx.saved_tensors
        a, b = p.log_softmax(-1), q.log_softmax(-1)
        inner = (a.exp() * (a - b)).sum(-1, keepdim=True)
        return g * a.exp() * (a - b - inner), g * (b.exp() - a.exp())
