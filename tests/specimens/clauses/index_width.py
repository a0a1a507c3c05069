"""`index-width`: kernels, written with numpy, that compute offsets in 32 bits."""

import ctypes

import numpy as np
import torch
from tests.specimens._specimen import Mend, Specimen, normal
from torch.autograd.function import once_differentiable

__all__ = ["MENDS", "RIGHT", "WRONG"]


def offsets(x, width):
    """The offset of each entry, in so many bits: what passes them is cut off."""
    found = np.zeros(x.shape, dtype=np.int64)
    for dim, (count, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
        steps = np.arange(count, dtype=np.int64) * stride
        found += steps.reshape([-1 if d == dim else 1 for d in range(x.ndim)])
    return found.astype(width).astype(np.int64)


def read(x, width):
    """A copy of a tensor, read from where its data begin; what lies before is read at the start."""
    found = offsets(x, width) + x.storage_offset()
    flat = x.detach().as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
    return flat[torch.from_numpy(found).clamp(min=0)]


class Sine(torch.autograd.Function):
    """Reads with offsets of 64 bits."""

    width = np.int64

    @classmethod
    def forward(cls, ctx, x):
        ctx.save_for_backward(x)
        return read(x, cls.width).sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return read(x, np.int64).cos() * read(cotangent, np.int64)


class NarrowForward(Sine):
    """Forward reads with offsets of 32 bits (linkedin/Liger-Kernel#803, #1248)."""

    width = np.int32


class NarrowBackward(Sine):
    """Backward does so with the cotangent (DeepLink-org/DLBlas#171)."""

    @staticmethod
    @once_differentiable
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return read(x, np.int64).cos() * read(cotangent, np.int32)


class NarrowStart(Sine):
    """The place where a tensor begins in its memory, in 32 bits."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        start = int(np.int64(x.storage_offset()).astype(np.int32))
        flat = x.detach().as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
        return flat[torch.from_numpy(offsets(x, np.int64) + max(start, 0))].sin()


class ReadsBefore(Sine):
    """Reads what lies before its memory: the process ends (flagos-ai/FlagGems#4156)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        size = x.element_size()
        at = x.data_ptr() + size * offsets(x, np.int32)
        raw = b"".join(ctypes.string_at(int(place), size) for place in at.reshape(-1))
        return torch.frombuffer(bytearray(raw), dtype=x.dtype).view(x.shape).sin()


class Contiguous(Sine):
    """Copies first, so that offsets are small."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        ctx.save_for_backward(x)
        return read(x, np.int32).sin()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return x.cos() * cotangent


class RefusesFar(NarrowForward):
    """The same in 32 bits, and refuses what does not fit."""

    @classmethod
    def forward(cls, ctx, x):
        if int(offsets(x, np.int64).max()) >= 2**31:
            raise ValueError("x reaches beyond 2^31 entries, which 32 bits do not count")
        return super().forward(ctx, x)


def one():
    return (normal(3, 4),)


RIGHT = [
    Specimen(Sine, one),
    Specimen(Contiguous, one),
    Specimen(RefusesFar, one),
]
WRONG = [
    Specimen(NarrowForward, one, "index-width"),
    Specimen(NarrowBackward, one, "index-width"),
    Specimen(NarrowStart, one, "index-width"),
    Specimen(ReadsBefore, one, "index-width"),
]
MENDS = [
    Mend("index-width", NarrowForward, Sine, "in 64 bits"),
    Mend("index-width", NarrowForward, RefusesFar, "refuse tensors"),
]
