"""Right operators of torch.library."""

import numpy as np
import torch
from tests.specimens._specimen import Specimen, normal, positive


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


@torch.library.custom_op("pullback_specimens::scaled_sine", mutates_args=())
def scaled_sine(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """A kernel in numpy with a backward in torch."""
    return torch.from_numpy(np.asarray(np.sin(x.numpy()) * scale.numpy())).to(x.dtype)


@scaled_sine.register_fake
def _(x, scale):
    return torch.empty_like(x)


def _scaled_sine(ctx, cotangent):
    x, scale = ctx.saved_tensors
    return x.cos() * scale * cotangent, (x.sin() * cotangent).sum_to_size(scale.shape)


scaled_sine.register_autograd(_scaled_sine, setup_context=_keep)


@torch.library.custom_op("pullback_specimens::power", mutates_args=())
def power(x: torch.Tensor, exponent: float = 2.0, *, factor: float = 1.0) -> torch.Tensor:
    """Numbers as arguments, one by keyword."""
    return factor * x**exponent


@power.register_fake
def _(x, exponent=2.0, *, factor=1.0):
    return torch.empty_like(x)


def _power_setup(ctx, inputs, keyword_only_inputs, output):
    x, ctx.exponent = inputs
    ctx.factor = keyword_only_inputs["factor"]
    ctx.save_for_backward(x)


def _power(ctx, cotangent):
    (x,) = ctx.saved_tensors
    return ctx.factor * ctx.exponent * x ** (ctx.exponent - 1) * cotangent, None


power.register_autograd(_power, setup_context=_power_setup)

SPECIMENS = [
    Specimen(scaled_sine, lambda: (normal(3, 4), positive(1))),
    Specimen(power, lambda: (positive(3, 4), 3.0)),
    Specimen("pullback_specimens::power", lambda: (positive(4),)),
]
