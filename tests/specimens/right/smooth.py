"""Right Functions of smooth formulas, each in another way of writing one."""

import torch
from tests.specimens._specimen import Specimen, normal, positive

from pullback import Function


class Cube(torch.autograd.Function):
    """Combined form."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 3 * x * x * cotangent


class Exponential(torch.autograd.Function):
    """Saves its output."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        (y,) = ctx.saved_tensors
        return y * cotangent


class SplitSine(torch.autograd.Function):
    """Split form with torch's generated vmap rule."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return x.cos() * cotangent


class Product(torch.autograd.Function):
    """Two inputs, needs_input_grad honoured."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, cotangent):
        x, y = ctx.saved_tensors
        needs = ctx.needs_input_grad
        return y * cotangent if needs[0] else None, x * cotangent if needs[1] else None


class Linear(torch.autograd.Function):
    """A bias that is summed over the batch; a cotangent in another precision is cast."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight.mT + bias

    @staticmethod
    def backward(ctx, cotangent):
        x, weight = ctx.saved_tensors
        cotangent = cotangent.to(x.dtype)
        return cotangent @ weight, cotangent.mT @ x, cotangent.sum(0)


class SineAndCosine(torch.autograd.Function):
    """Two outputs, undefined cotangents handled."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, first, second):
        (x,) = ctx.saved_tensors
        if first is None and second is None:
            return None
        gradient = torch.zeros_like(x)
        if first is not None:
            gradient = gradient + x.cos() * first
        return gradient if second is None else gradient - x.sin() * second


class ScaleByNumber(torch.autograd.Function):
    """A number and a constant tensor, answered with None."""

    @staticmethod
    def forward(ctx, x, factor, constant):
        ctx.factor = factor
        ctx.save_for_backward(constant)
        return x * factor * constant

    @staticmethod
    def backward(ctx, cotangent):
        (constant,) = ctx.saved_tensors
        return cotangent * ctx.factor * constant, None, None


class LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim = dim
        ctx.save_for_backward(x)
        return x.logsumexp(dim)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return x.softmax(ctx.dim) * cotangent.unsqueeze(ctx.dim), None


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        (y,) = ctx.saved_tensors
        return y * (cotangent - (y * cotangent).sum(-1, keepdim=True))


class Inverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.linalg.inv(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        (y,) = ctx.saved_tensors
        return -y.mH @ cotangent @ y.mH


class ComplexSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z * z

    @staticmethod
    def backward(ctx, cotangent):
        (z,) = ctx.saved_tensors
        return 2 * z.conj() * cotangent


class Magnitude(torch.autograd.Function):
    """Complex in, real out."""

    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return (z * z.conj()).real.clone()

    @staticmethod
    def backward(ctx, cotangent):
        (z,) = ctx.saved_tensors
        return 2 * z * cotangent


class SineTwice(Function):
    """pullback.Function in the split form: everything else is derived."""

    @staticmethod
    def forward(x):
        return x.sin() * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 2 * x.cos() * cotangent


class CombinedTanh(Function):
    """pullback.Function in the combined form."""

    @staticmethod
    def forward(ctx, x):
        y = x.tanh()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        (y,) = ctx.saved_tensors
        return (1 - y * y) * cotangent


class WeightsInside(Function):
    """Nested inputs are differentiated."""

    @staticmethod
    def forward(x, weights):
        return x * weights["w"] + weights["b"][0]

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weights = inputs
        ctx.save_for_backward(x, weights["w"])

    @staticmethod
    def backward(ctx, cotangent):
        x, w = ctx.saved_tensors
        return w * cotangent, {"w": x * cotangent, "b": [cotangent]}


def composed(x, y):
    """Any callable: two Functions one after the other."""
    return Product.apply(Exponential.apply(x), y).sum(-1)


SPECIMENS = [
    Specimen(Cube, lambda: (normal(3, 2),)),
    Specimen(Cube, lambda: (normal(3, dtype=torch.float32),)),
    Specimen(Exponential, lambda: (normal(4),)),
    Specimen(SplitSine, lambda: (normal(3),)),
    Specimen(Product, lambda: (normal(3), normal(3, seed=2))),
    Specimen(Linear, lambda: (normal(4, 3), normal(2, 3, seed=2), normal(2, seed=3))),
    Specimen(SineAndCosine, lambda: (normal(3),)),
    Specimen(ScaleByNumber, lambda: (normal(3), 0.5, torch.ones(3, dtype=torch.float64) * 2)),
    Specimen(LogSumExp, lambda: (normal(3, 4), -1)),
    Specimen(Softmax, lambda: (normal(2, 5),)),
    Specimen(Inverse, lambda: (normal(3, 3),)),
    Specimen(ComplexSquare, lambda: (normal(3, dtype=torch.complex128),)),
    Specimen(Magnitude, lambda: (normal(3, dtype=torch.complex128),)),
    Specimen(SineTwice, lambda: (normal(3),)),
    Specimen(CombinedTanh, lambda: (positive(4),)),
    Specimen(
        WeightsInside, lambda: (normal(3), {"w": normal(3, seed=2), "b": [normal(3, seed=3)]})
    ),
    Specimen(composed, lambda: (normal(2, 3), normal(2, 3, seed=2))),
]
