"""`reference`: a kernel with the plain reference that it was completed with."""

import functools
import math

import torch
from tests.specimens._specimen import Mend, Specimen, normal

import pullback

__all__ = ["MENDS", "RIGHT", "WRONG"]


class Damped(torch.autograd.Function):
    """exp(-x^2 / 2) sin(w), in numpy."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        a, b = x.detach().numpy(), w.detach().numpy()
        return torch.from_numpy(_exp(-a * a / 2) * _sin(b))

    @staticmethod
    def backward(ctx, cotangent):
        a, b = (t.detach().numpy() for t in ctx.saved_tensors)
        u = cotangent.numpy()
        damping = _exp(-a * a / 2)
        return torch.from_numpy(-a * damping * _sin(b) * u), torch.from_numpy(damping * _cos(b) * u)


def _exp(a):
    return torch.from_numpy(a).exp().numpy()


def _sin(a):
    return torch.from_numpy(a).sin().numpy()


def _cos(a):
    return torch.from_numpy(a).cos().numpy()


def damped(x, w):
    return torch.exp(-x * x / 2) * w.sin()


def without_half(x, w):
    """Forgets a constant of the kernel."""
    return torch.exp(-x * x) * w.sin()


def cut(x, w):
    """The same values, and no gradient of one input."""
    return torch.exp(-x * x / 2) * w.detach().sin()


def in_single(x, w):
    """Computes in float32, and says so by its dtype."""
    return damped(x.float(), w.float())


def as_pair(x, w):
    """Returns something beside."""
    return damped(x, w), x.detach()


def attention(query, key, value):
    return torch.nn.functional.scaled_dot_product_attention(query, key, value)


def plain_attention(query, key, value):
    return torch.softmax(query @ key.mT / math.sqrt(query.shape[-1]), -1) @ value


@functools.partial(pullback.complete, reference=plain_attention)
def causal(query, key, value):
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def forward_alone(x):
    """A kernel without a gradient: that is the reference's."""
    return torch.from_numpy(x.detach().numpy() ** 3)


def cube(x):
    return x**3


def one():
    return (normal(3, 4),)


def two():
    return normal(3, 4), normal(3, 4, seed=2)


def three():
    return normal(2, 3, 4), normal(2, 3, 4, seed=2), normal(2, 3, 4, seed=3)


def in_half():
    return tuple(normal(2, 3, 4, seed=k, dtype=torch.bfloat16) for k in (1, 2, 3))


def completed(kernel, reference):
    return pullback.complete(kernel, reference=reference)


RIGHT = [
    Specimen(completed(Damped, damped), two),
    Specimen(completed(attention, plain_attention), three),
    Specimen(completed(forward_alone, cube), one),
]
WRONG = [
    Specimen(completed(Damped, without_half), two, "reference"),
    Specimen(completed(Damped, cut), two, "reference"),
    Specimen(completed(Damped, in_single), two, "reference"),
    Specimen(completed(Damped, as_pair), two, "reference"),
    Specimen(causal, three, "reference"),
]
MENDS = [
    Mend(
        "reference",
        completed(Damped, without_half),
        completed(Damped, damped),
        "Make the reference compute what the kernel does",
        two,
    ),
]
