"""Wrong rules: derivative, linear, double, once, forward, forward-over-forward, transforms."""

import numpy as np
import torch
from tests.specimens._specimen import Specimen, normal, positive
from torch.autograd.function import once_differentiable


class MissingFactor(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return x * cotangent


class SwappedFactors(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y.exp()

    @staticmethod
    def backward(ctx, cotangent):
        x, y = ctx.saved_tensors
        return x * y.exp() * cotangent, y.exp() * cotangent


class SoftmaxWithoutMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        (y,) = ctx.saved_tensors
        return y * cotangent


class TanhOverScale(torch.autograd.Function):
    """Where the scale passes zero forward jumps, and is flat on both sides: no step of a code."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return torch.tanh(x / scale)

    @staticmethod
    def backward(ctx, cotangent):
        x, scale = ctx.saved_tensors
        slope = cotangent * (1 - torch.tanh(x / scale) ** 2)
        return slope / scale, (slope * x).sum() / scale**2


class WrongFarBelow(torch.autograd.Function):
    """Right in the first input; the second lacks one part in ten thousand."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x.sin() * y

    @staticmethod
    def backward(ctx, cotangent):
        x, y = ctx.saved_tensors
        return x.cos() * y * cotangent, x.sin() * cotangent * 1.0001


class ClipUndeclared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent.clamp(-0.1, 0.1)


class ClipFarOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent.clamp(-50, 50)


class ClipOutliers(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, cotangent):
        reach = 3 * cotangent.std()
        return cotangent.clamp(cotangent.mean() - reach, cotangent.mean() + reach)


class SignOfCotangent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 2 * x * cotangent.sign()


class WeightDecayInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent + 0.01 * x


class SavedIntermediate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        slope = 2 * x * scale.exp()
        ctx.save_for_backward(slope, x, scale)
        return x * x * scale.exp()

    @staticmethod
    def backward(ctx, cotangent):
        slope, x, scale = ctx.saved_tensors
        return slope * cotangent, x * x * scale.exp() * cotangent


class DetachedInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return x.detach().cos() * cotangent


class WithoutHistory(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, cotangent):
        return (ctx.saved_tensors[0].cos() * cotangent).detach()


class CotangentDetached(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 3 * x * x * cotangent.detach()


class OnceSplit(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 3 * x * x * cotangent


class OnceCombined(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    @once_differentiable
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return x.exp() * cotangent


class OnceNumpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sin(x.numpy(force=True)))

    @staticmethod
    @once_differentiable
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return torch.from_numpy(np.cos(x.numpy(force=True))) * cotangent


class _Cube(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 3 * x * x * cotangent


class JvpWithoutFactor(_Cube):
    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return x * x * tangent


class JvpOfTheWrongInput(torch.autograd.Function):
    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, cotangent):
        x, y = ctx.saved_tensors
        return y * cotangent, x * cotangent

    @staticmethod
    def jvp(ctx, x_tangent, y_tangent):
        x, y = ctx.saved_tensors
        return x * x_tangent + y * y_tangent


class TangentMissing(_Cube):
    @staticmethod
    def jvp(ctx, tangent):
        return None


class CubeNested(_Cube):
    """Right, but torch differentiates a jvp once only: nested forward mode is silently zero."""

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return 3 * x * x * tangent


class ProductNested(torch.autograd.Function):
    @staticmethod
    def forward(x, y):
        return x * x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, cotangent):
        x, y = ctx.saved_tensors
        return 2 * x * y * cotangent, x * x * cotangent

    @staticmethod
    def jvp(ctx, x_tangent, y_tangent):
        x, y = ctx.saved_tensors
        return 2 * x * y * x_tangent + x * x * y_tangent


class IntermediateInSetup(_Cube):
    """What setup_context computes from a detached input is a constant to hessian."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,) = inputs
        slope = 3 * x.detach() ** 2
        ctx.save_for_backward(slope)
        ctx.save_for_forward(slope)

    @staticmethod
    def backward(ctx, cotangent):
        (slope,) = ctx.saved_tensors
        return slope * cotangent

    jvp = backward


class OutputWithWrongTangent(torch.autograd.Function):
    """First order is right; hessian sends a wrong tangent through the saved output."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx, cotangent):
        (y,) = ctx.saved_tensors
        return y * cotangent

    @staticmethod
    def jvp(ctx, tangent):
        (y,) = ctx.saved_tensors
        return 2 * y * tangent


SPECIMENS = [
    Specimen(MissingFactor, lambda: (normal(3),), "derivative"),
    Specimen(SwappedFactors, lambda: (normal(3), normal(3, seed=2)), "derivative"),
    Specimen(SoftmaxWithoutMean, lambda: (normal(2, 5),), "derivative"),
    Specimen(WrongFarBelow, lambda: (normal(4), normal(4, seed=2)), "derivative"),
    Specimen(ClipUndeclared, lambda: (normal(3),), "linear"),
    Specimen(ClipFarOut, lambda: (normal(3),), "linear"),
    Specimen(ClipOutliers, lambda: (normal(20),), "linear"),
    Specimen(SignOfCotangent, lambda: (normal(3),), "linear"),
    Specimen(WeightDecayInBackward, lambda: (normal(3),), "linear"),
    Specimen(SavedIntermediate, lambda: (normal(3), normal(3, seed=2)), "double"),
    Specimen(DetachedInBackward, lambda: (normal(3),), "double"),
    Specimen(WithoutHistory, lambda: (normal(3),), "double"),
    Specimen(CotangentDetached, lambda: (positive(3),), "double"),
    Specimen(OnceSplit, lambda: (normal(3),), "once", verdict="lacking"),
    Specimen(OnceCombined, lambda: (normal(3),), "once", verdict="lacking"),
    Specimen(OnceNumpy, lambda: (normal(3),), "once", verdict="lacking"),
    Specimen(JvpWithoutFactor, lambda: (normal(3),), "forward"),
    Specimen(JvpOfTheWrongInput, lambda: (normal(3), normal(3, seed=2)), "forward"),
    Specimen(TangentMissing, lambda: (normal(3),), "forward"),
    Specimen(
        TanhOverScale,
        lambda: (normal(4, 3), torch.tensor(1.7, dtype=torch.float64, requires_grad=True)),
        "derivative",
    ),
    Specimen(CubeNested, lambda: (normal(3),), "forward-over-forward"),
    Specimen(ProductNested, lambda: (normal(3), normal(3, seed=2)), "forward-over-forward"),
    Specimen(IntermediateInSetup, lambda: (normal(3),), "transforms"),
    Specimen(OutputWithWrongTangent, lambda: (normal(3),), "transforms"),
]
