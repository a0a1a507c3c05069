"""Activations, most with a kink, which save what they were given, a mask or a shape of it."""

import math

import torch
import torch.nn.functional as nn
from tests.tensor.ordinary.row import function, t

F = torch.autograd.Function
where = torch.where
ORDINARY = t(0.3, -0.7, 1.6, -2.4)
ZERO = t(0.0, 0.0, 1.0, -1.0)
AT = {"ordinary": (ORDINARY,), "kinks": (ZERO,), "zeros": (torch.zeros_like(ZERO),)}


@function("relu", torch.relu, AT)
class Relu(F):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad_input = grad_output.clone()
        grad_input[x < 0] = 0
        return grad_input


@function("relu of its output", torch.relu, AT)
class ReluOfOutput(F):
    @staticmethod
    def forward(x):
        return torch.relu(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * (y > 0)


@function("relu with a mask", torch.relu, AT, plain=False)
class ReluMask(F):
    @staticmethod
    def forward(ctx, x):
        mask = x > 0
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, g):
        return g.masked_fill(~ctx.saved_tensors[0], 0)


@function("leaky relu", nn.leaky_relu, {k: (*v, 0.2) for k, v in AT.items()})
class LeakyRelu(F):
    @staticmethod
    def forward(ctx, x, slope):
        ctx.save_for_backward(x)
        ctx.slope = slope
        return where(x > 0, x, slope * x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return where(x > 0, g, ctx.slope * g), None


@function(
    "prelu",
    lambda x, w: where(x > 0, x, w * x),
    {k: (*v, t(0.3, 0.1, 0.2, 0.5)) for k, v in AT.items()},
)
class Prelu(F):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return where(x > 0, x, weight * x)

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        grad_x = grad_w = None
        if ctx.needs_input_grad[0]:
            grad_x = where(x > 0, g, weight * g)
        if ctx.needs_input_grad[1]:
            grad_w = where(x > 0, torch.zeros_like(g), x * g)
        return grad_x, grad_w


@function("squared relu", lambda x: torch.relu(x) ** 2, AT)
class SquaredRelu(F):
    @staticmethod
    def forward(x):
        return torch.relu(x).square()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * torch.relu(x) * g


@function("squared relu that keeps the relu", lambda x: torch.relu(x) ** 2, AT, plain=False)
class SquaredReluKept(F):
    @staticmethod
    def forward(ctx, x):
        r = torch.relu(x)
        ctx.save_for_backward(r)
        return r * r

    @staticmethod
    def backward(ctx, g):
        (r,) = ctx.saved_tensors
        return g * 2 * r


@function("squared leaky relu", lambda x: nn.leaky_relu(x, 0.1) ** 2, AT)
class SquaredLeakyRelu(F):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return where(x >= 0, x, 0.1 * x) ** 2

    @staticmethod
    def backward(ctx, g):
        return g * 2 * where(ctx.x >= 0, ctx.x, 0.01 * ctx.x)


@function("elu", nn.elu, AT)
class Elu(F):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return where(x > 0, x, torch.expm1(x))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * where(x > 0, torch.ones_like(x), x.exp())


@function("elu of its output", lambda x: nn.elu(x, 1.5), AT)
class EluOfOutput(F):
    @staticmethod
    def forward(ctx, x, alpha=1.5):
        y = where(x > 0, x, alpha * torch.expm1(x))
        ctx.save_for_backward(y)
        ctx.alpha = alpha
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return where(y > 0, g, g * (y + ctx.alpha)), None


@function("hardtanh", nn.hardtanh, AT, plain=False)
class Hardtanh(F):
    @staticmethod
    def forward(ctx, x):
        ctx.inside = (x > -1) & (x < 1)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.inside.to(g.dtype)


@function(
    "hardtanh with limits",
    lambda x, lo, hi: x.clamp(lo, hi),
    {k: (*v, -1.0, 1.0) for k, v in AT.items()},
)
class HardtanhLimits(F):
    @staticmethod
    def forward(x, low, high):
        return torch.clamp(x, low, high)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.low, ctx.high = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ((x >= ctx.low) & (x <= ctx.high)), None, None


@function("softshrink", lambda x: nn.softshrink(x, 0.5), AT | {"kinks": (t(0.5, -0.5, 0.0, 2.0),)})
class Softshrink(F):
    @staticmethod
    def forward(ctx, x, threshold=0.5):
        ctx.save_for_backward(x)
        ctx.threshold = threshold
        return torch.sign(x) * torch.relu(x.abs() - threshold)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x.abs() > ctx.threshold), None


@function("hardswish", nn.hardswish, AT | {"kinks": (t(3.0, -3.0, 0.0, 4.0),)})
class Hardswish(F):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * (x + 3).clamp(0, 6) / 6

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        inner = (2 * x + 3) / 6
        return g * where(x <= -3, torch.zeros_like(x), where(x < 3, inner, torch.ones_like(x)))


@function("swish", nn.silu, AT)
class Swish(F):
    @staticmethod
    def forward(ctx, i):
        result = i * torch.sigmoid(i)
        ctx.save_for_backward(i)
        return result

    @staticmethod
    def backward(ctx, grad_output):
        i = ctx.saved_tensors[0]
        sigmoid_i = torch.sigmoid(i)
        return grad_output * (sigmoid_i * (1 + i * (1 - sigmoid_i)))


@function("swish that keeps the sigmoid", nn.silu, AT, plain=False)
class SwishKept(F):
    @staticmethod
    def forward(ctx, x):
        s = torch.sigmoid(x)
        ctx.save_for_backward(x, s)
        return x * s

    @staticmethod
    def backward(ctx, g):
        x, s = ctx.saved_tensors
        return g * s * (1 + x * (1 - s))


@function("mish", nn.mish, AT)
class Mish(F):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.tanh(nn.softplus(x))

    @staticmethod
    def backward(ctx, g):
        x = ctx.saved_tensors[0]
        tanh = torch.tanh(nn.softplus(x))
        return g * (tanh + x * torch.sigmoid(x) * (1 - tanh * tanh))


@function("gelu", lambda x: nn.gelu(x, approximate="tanh"), AT, plain=False)
class Gelu(F):
    @staticmethod
    def forward(ctx, x):
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        tanh = inner.tanh()
        ctx.save_for_backward(x, tanh)
        return 0.5 * x * (1 + tanh)

    @staticmethod
    def backward(ctx, g):
        x, tanh = ctx.saved_tensors
        slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
        return g * 0.5 * ((1 + tanh) + x * (1 - tanh * tanh) * slope)


@function(
    "softplus with a threshold",
    lambda x: nn.softplus(x, 2.0, 3.0),
    AT | {"kinks": (t(1.5, 0.0, 2.0, -1.0),)},
)
class Softplus(F):
    @staticmethod
    def forward(x, beta=2.0, threshold=3.0):
        return nn.softplus(x, beta, threshold)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.beta, ctx.threshold = 2.0, 3.0

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        z = x * ctx.beta
        return where(z > ctx.threshold, g, g * torch.sigmoid(z)), None, None


@function("absolute value", torch.abs, AT, plain=False)
class Abs(F):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.sign())
        return x.abs()

    @staticmethod
    def backward(ctx, g):
        (sign,) = ctx.saved_tensors
        return g * sign
