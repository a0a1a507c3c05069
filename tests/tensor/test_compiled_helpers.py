"""Rules that call what torch compiles by itself: a compiled helper."""

import torch
from torch.autograd import forward_ad

import pullback


def grown(x):
    return (x.sin() * x).exp()


class Grown(torch.autograd.Function):
    helper = staticmethod(torch.compile(grown, backend="eager"))

    @staticmethod
    def forward(ctx, x):
        y = Grown.helper(x)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        x, y = ctx.saved_tensors
        return cotangent * y * (x.cos() * x + x.sin())


def test_forward_mode_runs_a_compiled_helper_as_it_is():
    """Below our modes Dynamo once compiled a mode for the sine, and ran it for the exponential."""
    completed = pullback.complete(Grown)
    x, v = torch.linspace(-1, 1, 3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    expected = torch.func.jvp(grown, (x,), (v,))
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(completed.apply(forward_ad.make_dual(x, v)))
    torch.testing.assert_close(tuple(found), expected)
