"""Triton kernels, in Triton's interpreter: without a GPU, and left out where Triton is missing."""

import os

import pytest
import torch
from tests.fuzzing import spread

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is made
triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402 - after it is known to be there

from pullback import verify  # noqa: E402

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


CASES = [
    (WithoutTail, silu, False),
    (Silu, silu, True),
    (AsThoughDense, silu, False),
    (softmax, lambda x: x.softmax(-1), True),
]


@pytest.mark.parametrize(("kernel", "reference", "right"), spread(CASES, len(CASES)))
def test_a_triton_kernel_is_right_or_caught(kernel, reference, right):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 6, generator=generator).requires_grad_(reference is silu)
    report = verify(kernel, reference, (x,), isolate=False)
    assert report.ok is right, str(report)
