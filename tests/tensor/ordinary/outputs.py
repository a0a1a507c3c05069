"""Functions that keep their output, as most that torch has itself."""

import torch
from tests.tensor.ordinary.row import function, t
from torch.autograd.function import once_differentiable

F = torch.autograd.Function
X = t(0.3, -0.7, 1.6, -2.4)
POSITIVE = t(0.3, 0.7, 1.6, 2.4)
ROWS = t([0.3, -0.7, 1.6], [0.2, 0.9, -0.4])
TIES = t([1.0, 1.0, 1.0], [0.0, 0.0, 2.0])


@function("sigmoid", torch.sigmoid, {"ordinary": (X,), "zeros": (torch.zeros_like(X),)})
class Sigmoid(F):
    @staticmethod
    def forward(ctx, x):
        y = 1 / (1 + torch.exp(-x))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y * (1 - y)


@function("tanh", torch.tanh, {"ordinary": (X,), "zeros": (torch.zeros_like(X),)})
class Tanh(F):
    @staticmethod
    def forward(x):
        return torch.tanh(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * (1 - y.pow(2))


@function("exp", torch.exp, {"ordinary": (X,), "zeros": (torch.zeros_like(X),)})
class Exp(F):
    @staticmethod
    def forward(ctx, i):
        result = i.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, grad_output):
        (result,) = ctx.saved_tensors
        return grad_output * result


@function("clamped exp", lambda x: x.clamp(max=1.5).exp(), (t(0.3, -0.7, 1.2),))
class TruncatedExp(F):
    """As of radiance fields: the exponential, its backward clamped."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.exp(x)

    @staticmethod
    def backward(ctx, g):
        x = ctx.saved_tensors[0]
        return g * torch.exp(x.clamp(-15, 15))


@function("exp that is once differentiable", torch.exp, (X,), plain=False)
class ExpOnce(F):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


@function("square root", torch.sqrt, (POSITIVE,))
class Sqrt(F):
    @staticmethod
    def forward(ctx, x):
        y = torch.sqrt(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g / (2 * y)


@function("reciprocal", torch.reciprocal, (POSITIVE,))
class Reciprocal(F):
    @staticmethod
    def forward(ctx, x):
        ctx.y = 1 / x
        return ctx.y

    @staticmethod
    def backward(ctx, g):
        return -g * ctx.y**2


@function("softmax", lambda x: x.softmax(-1), {"ordinary": (ROWS,), "ties": (TIES,)})
class Softmax(F):
    @staticmethod
    def forward(ctx, x, dim=-1):
        y = torch.softmax(x, dim)
        ctx.save_for_backward(y)
        ctx.dim = dim
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(ctx.dim, keepdim=True)), None


@function("log softmax", lambda x: x.log_softmax(-1), {"ordinary": (ROWS,), "ties": (TIES,)})
class LogSoftmax(F):
    @staticmethod
    def forward(x):
        return x - torch.logsumexp(x, -1, keepdim=True)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g - y.exp() * g.sum(-1, keepdim=True)


@function("logsumexp", lambda x: x.logsumexp(-1), {"ordinary": (ROWS,), "ties": (TIES,)})
class LogSumExp(F):
    @staticmethod
    def forward(ctx, x):
        m = x.max(-1, keepdim=True).values
        y = (x - m).exp().sum(-1).log() + m.squeeze(-1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g.unsqueeze(-1) * (x - y.unsqueeze(-1)).exp()


@function(
    "logsumexp that keeps the weights",
    lambda x: x.logsumexp(-1),
    {"ordinary": (ROWS,), "ties": (TIES,)},
    plain=False,
)
class LogSumExpKept(F):
    @staticmethod
    def forward(ctx, x):
        m = x.max(-1, keepdim=True).values
        e = (x - m).exp()
        s = e.sum(-1, keepdim=True)
        ctx.weights = e / s
        return (s.log() + m).squeeze(-1)

    @staticmethod
    def backward(ctx, g):
        return g.unsqueeze(-1) * ctx.weights


@function("cumulative sum", lambda x: x.cumsum(-1), {"ordinary": (ROWS,), "zeros": (0 * ROWS,)})
class CumSum(F):
    @staticmethod
    def forward(ctx, x):
        return torch.cumsum(x, -1)

    @staticmethod
    def backward(ctx, g):
        return g.flip(-1).cumsum(-1).flip(-1)


@function("cumulative product", lambda x: x.cumprod(-1), (ROWS,))
class CumProd(F):
    @staticmethod
    def forward(ctx, x):
        y = torch.cumprod(x, -1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return (g * y).flip(-1).cumsum(-1).flip(-1) / x


def _fixed(x):
    y = torch.zeros_like(x)
    for _ in range(80):
        y = torch.tanh(y / 2 + x)
    return y


@function("fixed point", _fixed, (t(0.3, 0.7, -0.5),))
class FixedPoint(F):
    """y = tanh(y / 2 + x), by iteration and the implicit function theorem."""

    @staticmethod
    def forward(ctx, x):
        with torch.no_grad():
            y = torch.zeros_like(x)
            for _ in range(80):
                y = torch.tanh(y / 2 + x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        slope = 1 - y * y
        return g * slope / (1 - slope / 2)
