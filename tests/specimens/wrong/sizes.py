"""Functions that are right at some sizes only: what a kernel over blocks forgets at its edges."""

import torch
from tests.specimens._specimen import Specimen, normal

__all__ = ["BLOCKS", "FAULTS", "PLACES", "SPECIMENS", "tail_fault"]

BLOCKS = (4, 8, 16, 32, 64, 128)
PLACES = ("flat", "rows", "columns")
FAULTS = ("zero", "doubled", "unwritten", "shifted", "cotangent")


def tail_fault(block: int, place: str, fault: str) -> type[torch.autograd.Function]:
    """sin(x), whose backward is wrong beyond the last whole block.

    Arguments:
        block: how many entries, rows or columns the kernel takes at a time.
        place: what it counts in blocks: ``"flat"`` entries, ``"rows"`` or ``"columns"``.
        fault: what happens beyond: the gradient is ``"zero"``, ``"doubled"``, never written, that
            of the neighbour, or the cotangent alone.
    """

    def damage(gradient: torch.Tensor, cotangent: torch.Tensor) -> None:
        whole = gradient.shape[0] // block * block
        tail = gradient[whole:]
        if fault == "zero":
            tail.zero_()
        elif fault == "doubled":
            tail.mul_(2)
        elif fault == "unwritten":
            tail.copy_(torch.empty_like(tail))
        elif fault == "shifted" and whole:
            tail.copy_(gradient[whole - 1].expand_as(tail))
        else:
            tail.copy_(cotangent[whole:])

    class Tail(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, cotangent):
            (x,) = ctx.saved_tensors
            gradient = (x.cos() * cotangent).contiguous()
            given = cotangent.contiguous()
            if place == "flat":
                damage(gradient.view(-1), given.view(-1))
            elif place == "rows" and x.ndim:
                damage(gradient, given)
            elif x.ndim:
                damage(gradient.movedim(-1, 0), given.movedim(-1, 0))
            return gradient

    Tail.__name__ = f"Tail{place.title()}{block}{fault.title()}"
    return Tail


class OddLength(torch.autograd.Function):
    """Pairs of entries: the last one of an odd number has no partner."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        gradient = 2 * x * cotangent
        odd = x.shape[-1] % 2
        return torch.cat([gradient[..., : x.shape[-1] - odd], 0 * gradient[..., :odd]], -1)


class FixedBuffer(torch.autograd.Function):
    """Sums at most 64 rows of cotangents, as many as its buffer holds."""

    @staticmethod
    def forward(ctx, x, bias):
        return x + bias

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent, cotangent[:64].sum(0)


class MeanOfFour(torch.autograd.Function):
    """Divides by the number of columns that it was tried with."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square().mean(-1)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 2 * x * cotangent.unsqueeze(-1) / 4


class SingleRow(torch.autograd.Function):
    """A variance whose correction is forgotten where there is one row."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x - x.mean(-1, keepdim=True)).square().sum(-1) + x.sum(-1)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        gradient = 2 * (x - x.mean(-1, keepdim=True)) + 1
        if x.shape[0] == 1:
            gradient = 2 * (x - x.mean(-1, keepdim=True))
        return gradient * cotangent.unsqueeze(-1)


class WholeBlock(torch.autograd.Function):
    """Drops the last block where it is full: a comparison that is off by one."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        gradient = x.exp() * cotangent
        count = x.shape[-1]
        if count >= 64 and count % 64 == 0:
            gradient = torch.cat([gradient[..., :-64], 0 * gradient[..., -64:]], -1)
        return gradient


class RoundTail(torch.autograd.Function):
    """A straight-through estimator that stops at the last whole block of four."""

    gradient = "surrogate"

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, cotangent):
        gradient = cotangent.clone()
        whole = cotangent.shape[-1] // 4 * 4
        gradient[..., whole:] = 0
        return gradient


class ForwardTail(torch.autograd.Function):
    """Forward leaves what lies beyond the last whole block of eight unwritten."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        whole = x.numel() // 8 * 8
        output = torch.empty_like(x, memory_format=torch.contiguous_format)
        output.view(-1)[:whole] = x.reshape(-1)[:whole].sin()
        return output

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return x.cos() * cotangent


class GradientTail(torch.autograd.Function):
    """Backward leaves what lies beyond the last whole block of eight unwritten."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        whole = x.numel() // 8 * 8
        gradient = x.new_empty(x.numel())
        gradient[:whole] = (x.cos() * cotangent).reshape(-1)[:whole]
        return gradient.view(x.shape)


SPECIMENS = [
    Specimen(ForwardTail, lambda: (normal(3, 5),), "deterministic"),
    Specimen(GradientTail, lambda: (normal(3, 5),), "deterministic"),
    Specimen(GradientTail, lambda: (normal(16),), "sizes"),
    Specimen(tail_fault(4, "flat", "zero"), lambda: (normal(2, 4),), "sizes"),
    Specimen(tail_fault(8, "columns", "doubled"), lambda: (normal(3, 8),), "sizes"),
    Specimen(tail_fault(16, "flat", "unwritten"), lambda: (normal(16),), "sizes"),
    Specimen(tail_fault(32, "rows", "shifted"), lambda: (normal(32, 2),), "sizes"),
    Specimen(tail_fault(64, "columns", "zero"), lambda: (normal(64),), "sizes"),
    Specimen(
        tail_fault(128, "flat", "cotangent"),
        lambda: (normal(128, dtype=torch.float32),),
        "sizes",
    ),
    Specimen(OddLength, lambda: (normal(3, 4),), "sizes"),
    Specimen(FixedBuffer, lambda: (normal(5, 3), normal(3)), "sizes"),
    Specimen(MeanOfFour, lambda: (normal(3, 4),), "sizes"),
    Specimen(SingleRow, lambda: (normal(2, 5),), "sizes"),
    Specimen(WholeBlock, lambda: (normal(5),), "sizes"),
    Specimen(RoundTail, lambda: (normal(8),), "sizes"),
    Specimen(ForwardTail, lambda: (normal(2, 8),), "sizes"),
]
