"""Wrong in a transform of the machine: vmap, dtype, autocast, fake, compile, cuda-graph."""

import torch
from tests.specimens._specimen import Specimen, normal


class VmapOverTheWholeBatch(torch.autograd.Function):
    """Normalises over every entry; its vmap rule forgets that the batch is one of them."""

    @staticmethod
    def forward(x):
        return x - x.mean()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent - cotangent.mean()

    @staticmethod
    def vmap(info, in_dims, x):
        return VmapOverTheWholeBatch.apply(x), in_dims[0]


class VmapAssumesFirst(torch.autograd.Function):
    """Takes the batch dimension to be the first, whatever in_dims says."""

    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, cotangent):
        x, y = ctx.saved_tensors
        return y * cotangent, x * cotangent

    @staticmethod
    def vmap(info, in_dims, x, y):
        return VmapAssumesFirst.apply(x, y), 0


class CompressedWhenSingle(torch.autograd.Function):
    """Keeps float32 activations in bfloat16."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.bfloat16() if x.dtype == torch.float32 else x)
        return x * x

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 2 * x.to(cotangent.dtype) * cotangent


class DoubleForSingle(torch.autograd.Function):
    """Goes through float64 and returns it, which autograd casts without a word."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.double().sin().to(x.dtype)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return x.double().cos() * cotangent


class LinearMixed(torch.autograd.Function):
    """Under autocast the cotangent is bfloat16 and the saved weight float32."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, cotangent):
        x, weight = ctx.saved_tensors
        return cotangent @ weight.mT, x.mT @ cotangent


class ScaledUnderAutocast(torch.autograd.Function):
    """Scales the loss where autocast is on: forward knows, backward is outside."""

    @staticmethod
    def forward(ctx, x):
        factor = 8.0 if torch.is_autocast_enabled(x.device.type) else 1.0
        return x * factor

    @staticmethod
    def backward(ctx, cotangent):
        on = torch.is_autocast_enabled(cotangent.device.type)
        return cotangent / (8.0 if on else 1.0)


@torch.library.custom_op("specimens::repeat_twice", mutates_args=())
def repeat_twice(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x])


@repeat_twice.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("specimens::halve", mutates_args=())
def halve(x: torch.Tensor) -> torch.Tensor:
    return x / 2


@halve.register_fake
def _(x):
    return torch.empty_like(x, dtype=torch.float32)


class FakeShapeWrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return repeat_twice(x)

    @staticmethod
    def backward(ctx, cotangent):
        half = cotangent.shape[0] // 2
        return cotangent[:half] + cotangent[half:]


class FakeDtypeWrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return halve(x)

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent / 2


class RoundThrough(torch.autograd.Function):
    """Right alone: torch.compile of torch.func.grad differentiates forward instead."""

    gradient = "surrogate"

    @staticmethod
    def forward(x):
        return x.round()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent.clone()


class ReverseSplit(torch.autograd.Function):
    gradient = "surrogate"

    @staticmethod
    def forward(x, factor):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx, cotangent):
        return -ctx.factor * cotangent, None


class HostValue(torch.autograd.Function):
    """Reads a number on the host, which stays what it was when the graph was captured."""

    largest = None

    @staticmethod
    def forward(ctx, x):
        if not x.is_cuda or not torch.cuda.is_current_stream_capturing():
            HostValue.largest = float(x.detach().abs().max())
        ctx.save_for_backward(x)
        return x * HostValue.largest

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * HostValue.largest


class Synchronises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.factor = 2.0 if bool(x.isfinite().all()) else 0.0
        return x * ctx.factor

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.factor


SPECIMENS = [
    Specimen(VmapOverTheWholeBatch, lambda: (normal(4),), "vmap"),
    Specimen(VmapAssumesFirst, lambda: (normal(3), normal(3, seed=2)), "vmap"),
    Specimen(CompressedWhenSingle, lambda: (normal(3),), "dtype"),
    Specimen(DoubleForSingle, lambda: (normal(3),), "dtype", verdict="untidy"),
    Specimen(LinearMixed, lambda: (normal(2, 3), normal(3, 4, seed=2)), "autocast"),
    Specimen(ScaledUnderAutocast, lambda: (normal(3),), "autocast"),
    Specimen(FakeShapeWrong, lambda: (normal(3),), "fake"),
    Specimen(FakeDtypeWrong, lambda: (normal(3),), "fake"),
    Specimen(RoundThrough, lambda: (normal(3),), "compile", mended="2.15"),
    Specimen(ReverseSplit, lambda: (normal(3), 0.5), "compile", mended="2.15"),
]
ON_A_GPU = [
    Specimen(HostValue, lambda: (normal(5),), "cuda-graph"),
    Specimen(Synchronises, lambda: (normal(5),), "cuda-graph"),
]
