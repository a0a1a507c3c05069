"""Triton kernels, two of them wrong, as `verify` judges them: run with ``TRITON_INTERPRET=1``.

Triton reads that when its own functions are made, so that a process is interpreted as a whole.
"""

import sys

import torch
import triton
import triton.language as tl

from pullback import verify

BLOCK = 16


@triton.jit
def silu_forward(x, y, count, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    given = tl.load(x + place, mask=place < count, other=0.0)
    tl.store(y + place, given / (1 + tl.exp(-given)), mask=place < count)


@triton.jit
def softmax_forward(x, y, columns, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    start = tl.program_id(0) * columns
    given = tl.load(x + start + place, mask=place < columns, other=-float("inf"))
    raised = tl.exp(given - tl.max(given, 0))
    tl.store(y + start + place, raised / tl.sum(raised, 0), mask=place < columns)


class Silu(torch.autograd.Function):
    """Right: any layout, any size."""

    blocks = staticmethod(lambda count: triton.cdiv(count, BLOCK))
    lay = staticmethod(lambda tensor: tensor.contiguous())

    @classmethod
    def forward(cls, ctx, x):
        ctx.save_for_backward(x)
        x = cls.lay(x)
        y = torch.zeros(x.shape, dtype=x.dtype)
        silu_forward[(cls.blocks(x.numel()),)](x, y, x.numel(), BLOCK=BLOCK)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        part = x.sigmoid()
        return cotangent * part * (1 + x * (1 - part))


class WithoutTail(Silu):
    """Wrong: the last block that is not full is left out, in forward."""

    blocks = staticmethod(lambda count: count // BLOCK)


class AsThoughDense(Silu):
    """Wrong: memory is read from its start on, whatever the strides say."""

    lay = staticmethod(lambda tensor: tensor)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Right, and forward alone."""
    rows = x.detach().contiguous().view(-1, x.shape[-1])
    y = torch.empty_like(rows)
    block = triton.next_power_of_2(rows.shape[1])
    softmax_forward[(len(rows),)](rows, y, rows.shape[1], BLOCK=block)
    return y.view(x.shape)


def silu(x):
    return torch.nn.functional.silu(x)


CASES = {
    "tail": (WithoutTail, silu, False),
    "silu": (Silu, silu, True),
    "dense": (AsThoughDense, silu, False),
    "softmax": (softmax, lambda x: x.softmax(-1), True),
}


def judge(name: str) -> None:
    """Verify a kernel, and print ``as it should`` where the verdict is the one it deserves."""
    kernel, reference, right = CASES[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 6, generator=generator).requires_grad_(reference is silu)
    report = verify(kernel, reference, (x,), isolate=False)
    print("as it should" if report.ok is right else report)


if __name__ == "__main__":
    judge(sys.argv[1])
