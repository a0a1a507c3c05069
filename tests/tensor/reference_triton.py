"""A Triton kernel and its reference; run by itself, in Triton's interpreter."""

from typing import Any

import torch
import triton
import triton.language as tl
from tests.tensor.references import (
    Case,
    Tensor,
    caller,
    same_compiled,
    same_compiled_derivative,
    same_copies,
    same_first_order,
    same_second_order,
    same_transforms,
)

import pullback


@triton.jit
def _silu(x, gate, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    value, g = tl.load(x + at, mask=inside), tl.load(gate + at, mask=inside)
    tl.store(y + at, value * g / (1 + tl.exp(-g)), mask=inside)


@triton.jit
def _silu_adjoint(x, gate, u, of_x, of_gate, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    value, g = tl.load(x + at, mask=inside), tl.load(gate + at, mask=inside)
    cotangent = tl.load(u + at, mask=inside)
    s = 1 / (1 + tl.exp(-g))
    tl.store(of_x + at, cotangent * g * s, mask=inside)
    tl.store(of_gate + at, cotangent * value * s * (1 + g * (1 - s)), mask=inside)


class GatedSilu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor) -> Tensor:
        ctx.save_for_backward(x, gate)
        y = torch.empty_like(x)
        _silu[(triton.cdiv(x.numel(), 4),)](x, gate, y, x.numel(), BLOCK=4)
        return y

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, Tensor]:
        x, gate = ctx.saved_tensors
        of_x, of_gate = torch.empty_like(x), torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), 4),)
        u = cotangent.contiguous()
        _silu_adjoint[grid](x, gate, u, of_x, of_gate, x.numel(), BLOCK=4)
        return of_x, of_gate


def plain(x: Tensor, gate: Tensor) -> Tensor:
    return x * gate * torch.sigmoid(gate)


CASE = Case("triton", GatedSilu, plain, ((2, 3), (2, 3)), GatedSilu.apply)

if __name__ == "__main__":
    completed = pullback.complete(GatedSilu, reference=plain)
    f = caller(completed)
    same_first_order(CASE, f)
    same_transforms(CASE, f)
    same_second_order(CASE, f)
    same_copies(CASE, completed)
    same_compiled(CASE, f)
    same_compiled_derivative(CASE, f)
    print("same")
