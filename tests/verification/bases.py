"""Computations with a reference in plain torch, and a kernel that computes them in another way."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F


@dataclass(frozen=True)
class Base:
    """A computation.

    Arguments:
        reference: plain torch.
        forward: the same, otherwise: takes tensors without history.
        backward: takes the cotangent and the inputs, gives the gradient of each.
        make: fresh inputs of a dtype.
    """

    reference: Callable[..., Any]
    forward: Callable[..., Any]
    backward: Callable[..., Any]
    make: Callable[[torch.dtype], tuple[Any, ...]]


def normal(*shape: int) -> Callable[[torch.dtype], tuple[Any, ...]]:
    return lambda dtype: (torch.randn(shape).to(dtype),)


def softmax(x: Any) -> Any:
    return F.softmax(x, -1)


def softmax_forward(x: Any) -> Any:
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def softmax_backward(g: Any, x: Any) -> Any:
    y = softmax_forward(x)
    return (y * (g - (g * y).sum(-1, keepdim=True)),)


def rms(x: Any, w: Any) -> Any:
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w


def rms_forward(x: Any, w: Any) -> Any:
    wide = x.float() if x.dtype != torch.float64 else x
    size = torch.sqrt((wide * wide).sum(-1, keepdim=True) / x.shape[-1] + 1e-5)
    return (wide / size * w).to(x.dtype)


def rms_backward(g: Any, x: Any, w: Any) -> Any:
    n = x.shape[-1]
    r = ((x * x).sum(-1, keepdim=True) / n + 1e-5).rsqrt()
    t = g * w
    gx = r * t - x * r**3 * (t * x).sum(-1, keepdim=True) / n
    gw = (g * x * r).reshape(-1, n).sum(0)
    return gx, gw


def linear(x: Any, w: Any, b: Any) -> Any:
    return F.linear(x, w, b)


def linear_forward(x: Any, w: Any, b: Any) -> Any:
    half = x.shape[-1] // 2  # two partial sums, in another order
    return x[..., half:] @ w[:, half:].mT + x[..., :half] @ w[:, :half].mT + b


def linear_backward(g: Any, x: Any, w: Any, b: Any) -> Any:
    rows, flat = g.reshape(-1, g.shape[-1]), x.reshape(-1, x.shape[-1])
    return g @ w, rows.mT @ flat, rows.sum(0)


def gelu(x: Any) -> Any:
    return F.gelu(x)


def gelu_forward(x: Any) -> Any:
    return 0.5 * x * torch.special.erfc(-x * 2**-0.5)


def gelu_backward(g: Any, x: Any) -> Any:
    density = torch.exp(-0.5 * x * x) * (2 * torch.pi) ** -0.5
    return (g * (0.5 * torch.special.erfc(-x * 2**-0.5) + x * density),)


def swiglu(x: Any, y: Any) -> Any:
    return F.silu(x) * y


def swiglu_forward(x: Any, y: Any) -> Any:
    return y * (x * torch.sigmoid(x))


def swiglu_backward(g: Any, x: Any, y: Any) -> Any:
    s = 1 / (1 + torch.exp(-x))
    return g * y * (s + x * s * (1 - s)), g * x * s


def row_sum(x: Any) -> Any:
    return x.sum(-1)


def row_sum_forward(x: Any) -> Any:
    return x.flip(-1).cumsum(-1)[..., -1] if x.shape[-1] else x.sum(-1)


def row_sum_backward(g: Any, x: Any) -> Any:
    return (g[..., None].expand_as(x),)


def row_max(x: Any) -> Any:
    return x.amax(-1)


def row_max_forward(x: Any) -> Any:
    return x.sort(-1).values[..., -1]


def row_max_backward(g: Any, x: Any) -> Any:
    largest = x == x.amax(-1, keepdim=True)
    return (g[..., None] * largest / largest.sum(-1, keepdim=True),)


def attention(q: Any, k: Any, v: Any) -> Any:
    return F.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


def attention_forward(q: Any, k: Any, v: Any) -> Any:
    half = (q.shape[-2] + 1) // 2
    blocks = [softmax_forward(block @ k.mT * q.shape[-1] ** -0.5) @ v
              for block in (q[..., :half, :], q[..., half:, :])]  # fmt: skip
    return torch.cat(blocks, -2)


def attention_backward(g: Any, q: Any, k: Any, v: Any) -> Any:
    scale = q.shape[-1] ** -0.5
    p = softmax_forward(q @ k.mT * scale)
    gp = g @ v.mT
    gs = p * (gp - (gp * p).sum(-1, keepdim=True)) * scale
    return gs @ k, gs.mT @ q, p.mT @ g


def three(*shape: int) -> Callable[[torch.dtype], tuple[Any, ...]]:
    return lambda dtype: tuple(torch.randn(shape).to(dtype) for _ in range(3))


BASES = {
    "softmax": Base(softmax, softmax_forward, softmax_backward, normal(6, 16)),
    "rms": Base(rms, rms_forward, rms_backward,
                lambda dtype: (torch.randn(6, 16).to(dtype), torch.randn(16).to(dtype))),
    "linear": Base(linear, linear_forward, linear_backward,
                   lambda dtype: (torch.randn(6, 16).to(dtype), torch.randn(8, 16).to(dtype),
                                  torch.randn(8).to(dtype))),
    "gelu": Base(gelu, gelu_forward, gelu_backward, normal(6, 16)),
    "swiglu": Base(swiglu, swiglu_forward, swiglu_backward,
                   lambda dtype: (torch.randn(6, 16).to(dtype), torch.randn(6, 16).to(dtype))),
    "row_sum": Base(row_sum, row_sum_forward, row_sum_backward, normal(6, 16)),
    "row_max": Base(row_max, row_max_forward, row_max_backward, normal(6, 16)),
    "attention": Base(attention, attention_forward, attention_backward, three(2, 8, 4)),
}  # fmt: skip


def function(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel with its own backward, and second derivatives where the backward is torch's."""

    class Kernel(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            ctx.save_for_backward(*inputs)
            return forward(*inputs)

        @staticmethod
        def backward(ctx: Any, cotangent: Any) -> Any:
            found = backward(cotangent, *ctx.saved_tensors)
            return found if len(found) > 1 else found[0]

    return Kernel.apply
