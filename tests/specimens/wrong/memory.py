"""Wrong memory: saved, leak, stale, mutation, cotangent, layout, alias, hooks, checkpoint."""

from typing import ClassVar

import numpy as np
import torch
from tests.specimens._specimen import Specimen, normal


class InputOnContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x * x

    @staticmethod
    def backward(ctx, cotangent):
        return 2 * ctx.x * cotangent


class UnderOurName(torch.autograd.Function):
    """The name under which pullback.Function sets inputs aside is no place to hide."""

    @staticmethod
    def forward(ctx, x):
        ctx.__pullback__ = x * 1
        return x.sin()

    @staticmethod
    def backward(ctx, cotangent):
        return ctx.__pullback__.cos() * cotangent


class IntermediateInDict(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.cache = {"mask": x > 0}
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.cache["mask"]


class NumpyViewOfInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.array = x.detach().numpy()
        return x * x

    @staticmethod
    def backward(ctx, cotangent):
        return 2 * torch.from_numpy(ctx.array) * cotangent


class OutputOnContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.y = x.exp()
        return ctx.y

    @staticmethod
    def backward(ctx, cotangent):
        return ctx.y * cotangent


class KeepsEveryInput(torch.autograd.Function):
    seen: ClassVar[list[torch.Tensor]] = []

    @staticmethod
    def forward(ctx, x):
        KeepsEveryInput.seen.append(x)
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return x.cos() * cotangent


class SavesData(torch.autograd.Function):
    """``.data`` has a version counter of its own, so that no change is noticed."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x.data, y.data)
        return x * y

    @staticmethod
    def backward(ctx, cotangent):
        x, y = ctx.saved_tensors
        return y * cotangent, x * cotangent


class OutputByAttribute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.tanh()
        ctx.kept = [y]
        return y

    @staticmethod
    def backward(ctx, cotangent):
        return (1 - ctx.kept[0] ** 2) * cotangent


class ClampsInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x > 0)
        return x.clamp_(min=0).clone()

    @staticmethod
    def backward(ctx, cotangent):
        (mask,) = ctx.saved_tensors
        return cotangent * mask


class FreesItsInput(torch.autograd.Function):
    """As reversible blocks do, which compute it again from the output."""

    @staticmethod
    def forward(ctx, x):
        y = x * 2
        ctx.save_for_backward(y)
        x.untyped_storage().resize_(0)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * 2


class NumpyWritesInput(torch.autograd.Function):
    """Writes through numpy do not touch the version counter."""

    @staticmethod
    def forward(ctx, x):
        array = x.detach().numpy()
        np.multiply(array, 2.0, out=array)
        return torch.from_numpy(array.copy())

    @staticmethod
    def backward(ctx, cotangent):
        return 2 * cotangent


class BackwardScalesSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return x.detach().mul_(2) * cotangent


class ScalesCotangent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent.mul_(2)


class NumpyWritesCotangent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.abs()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        array = cotangent.numpy(force=True)
        array *= np.sign(x.numpy(force=True))
        return torch.from_numpy(array.copy())


class ReadsInputMemory(torch.autograd.Function):
    """Takes the memory for contiguous, as a kernel does that is handed a pointer."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        raw = x.as_strided(x.shape, torch.empty(x.shape).stride(), x.storage_offset())
        return raw.sin()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return x.cos() * cotangent


class ReadsCotangentMemory(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    def backward(ctx, cotangent):
        size, steps = cotangent.shape, torch.empty(cotangent.shape).stride()
        return 3 * cotangent.as_strided(size, steps, cotangent.storage_offset())


class OneCotangentInRows(torch.autograd.Function):
    """Takes a cotangent whose last stride is zero for one number everywhere."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, cotangent):
        x, weight = ctx.saved_tensors
        if cotangent.numel() and cotangent.stride()[-1:] == (0,):
            cotangent = cotangent.flatten()[0]
        scaled = (cotangent * x).reshape(-1, x.shape[-1])
        return (cotangent * weight).expand_as(x), scaled.sum(0)


class SharesNumpyMemory(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(x.detach().numpy())

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


class SetsStorage(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.empty(0, dtype=x.dtype).set_(x.untyped_storage(), 0, x.shape, x.stride())

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


class OneBufferTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        buffer = x.detach().numpy() * 2
        return torch.from_numpy(buffer), torch.from_numpy(buffer)

    @staticmethod
    def backward(ctx, first, second):
        return 2 * (first + second)


class MaskInClosure(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        slope = 2 * x
        ctx.rule = lambda cotangent: slope * cotangent
        return x * x

    @staticmethod
    def backward(ctx, cotangent):
        return ctx.rule(cotangent)


class UnpacksTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, cotangent):
        return ctx.saved_tensors[1] * cotangent, ctx.saved_tensors[0] * cotangent


class ForwardCounts(torch.autograd.Function):
    """Every second forward scales by three: checkpointing runs forward again."""

    calls = 0

    @staticmethod
    def forward(ctx, x):
        ForwardCounts.calls += 1
        factor = 1.0 + 2.0 * (ForwardCounts.calls % 2)
        ctx.save_for_backward(torch.full_like(x, factor))
        return x * factor

    @staticmethod
    def backward(ctx, cotangent):
        (factor,) = ctx.saved_tensors
        return factor * cotangent


class NumpyDropout(torch.autograd.Function):
    """Checkpointing puts torch's generator back for the second forward, not numpy's."""

    @staticmethod
    def forward(ctx, x):
        mask = torch.from_numpy(np.random.rand(*x.shape) < 0.5)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, cotangent):
        (mask,) = ctx.saved_tensors
        return cotangent * mask


SPECIMENS = [
    Specimen(InputOnContext, lambda: (normal(3),), "saved"),
    Specimen(UnderOurName, lambda: (normal(3),), "saved"),
    Specimen(UnderOurName, lambda: (normal(3),), "hooks"),
    Specimen(IntermediateInDict, lambda: (normal(3),), "saved"),
    Specimen(NumpyViewOfInput, lambda: (normal(3),), "saved"),
    Specimen(OutputOnContext, lambda: (normal(3),), "leak"),
    Specimen(KeepsEveryInput, lambda: (normal(3),), "leak"),
    Specimen(SavesData, lambda: (normal(3), normal(3, seed=2)), "stale"),
    Specimen(OutputByAttribute, lambda: (normal(3),), "stale"),
    Specimen(ClampsInPlace, lambda: (normal(5),), "mutation"),
    Specimen(FreesItsInput, lambda: (normal(5),), "mutation"),
    Specimen(NumpyWritesInput, lambda: (normal(3),), "mutation"),
    Specimen(BackwardScalesSaved, lambda: (normal(3),), "mutation"),
    Specimen(ScalesCotangent, lambda: (normal(3),), "cotangent"),
    Specimen(NumpyWritesCotangent, lambda: (normal(5),), "cotangent"),
    Specimen(ReadsInputMemory, lambda: (normal(3, 4),), "layout"),
    Specimen(ReadsCotangentMemory, lambda: (normal(3, 4),), "layout"),
    Specimen(OneCotangentInRows, lambda: (normal(4, 5), normal(5, seed=2)), "layout"),
    Specimen(SharesNumpyMemory, lambda: (normal(3),), "alias"),
    Specimen(SetsStorage, lambda: (normal(3, 2),), "alias"),
    Specimen(OneBufferTwice, lambda: (normal(3),), "alias"),
    Specimen(IntermediateInDict, lambda: (normal(4),), "hooks"),
    Specimen(MaskInClosure, lambda: (normal(3),), "hooks"),
    Specimen(UnpacksTwice, lambda: (normal(3), normal(3, seed=2)), "checkpoint", verdict="lacking"),
    Specimen(ForwardCounts, lambda: (normal(3),), "checkpoint"),
    Specimen(NumpyDropout, lambda: (normal(40),), "checkpoint"),
]
