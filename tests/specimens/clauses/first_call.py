"""`first-call`: what code keeps from call to call."""

from functools import lru_cache
from typing import ClassVar

import torch
from tests.specimens._specimen import Mend, Specimen, normal
from tests.specimens.wrong.families import Sine

__all__ = ["MENDS", "RIGHT", "WRONG"]


STATE: dict = {}  # of all specimens, empty where a check begins


def one():
    STATE.clear()
    return (normal(3, 4),)


class LargestSeen(Sine):
    """Divides by the largest number that any call has had."""

    @staticmethod
    def forward(ctx, x):
        ctx.largest = max(STATE.get("largest", 0.0), float(x.detach().abs().max()))
        STATE["largest"] = ctx.largest
        return x / ctx.largest

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent / ctx.largest


class SmallestSeen(Sine):
    """Subtracts the smallest number so far, once it is negative enough."""

    @staticmethod
    def forward(ctx, x):
        ctx.smallest = min(STATE.get("smallest", 0.0), float(x.detach().min()))
        STATE["smallest"] = ctx.smallest
        ctx.save_for_backward(x)
        return (x - ctx.smallest).square()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 2 * (x - ctx.smallest) * cotangent


class WidestSeen(Sine):
    """A table that grows with the longest row, and with it the position of its end."""

    @staticmethod
    def forward(ctx, x):
        ctx.length = max(STATE.get("length", 0), x.shape[-1])
        STATE["length"] = ctx.length
        return x / ctx.length

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent / ctx.length


class TunedInPlace(Sine):
    """The first call tries two variants, and both add to the result
    (triton-lang/triton#6547, #9230)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = torch.zeros_like(x)
        for _ in range(1 if "tuned" in STATE else 2):
            y += x.sin()
        STATE["tuned"] = True
        return y


class TunedOnCopies(Sine):
    """The same, each variant with a result of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        for _ in range(1 if "tuned" in STATE else 2):
            y = torch.zeros_like(x)
            y += x.sin()
        STATE["tuned"] = True
        return y


class ScaleByShape(torch.autograd.Function):
    """A scale that is computed from the numbers of the first call of each shape."""

    @staticmethod
    def forward(ctx, x):
        ctx.scale = STATE.setdefault(x.shape, float(x.detach().abs().mean()))
        return x * ctx.scale

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.scale


class TableByLength(torch.autograd.Function):
    """A table of weights by its length alone, in the dtype of the first call."""

    @staticmethod
    def key(x):
        return x.shape[-1]

    @classmethod
    def forward(cls, ctx, x):
        made = (torch.arange(x.shape[-1], dtype=x.dtype, device=x.device) / 3).cos()
        table = STATE.setdefault(cls.key(x), made)
        ctx.save_for_backward(table)
        return (x * table).to(x.dtype)

    @staticmethod
    def backward(ctx, cotangent):
        (table,) = ctx.saved_tensors
        return (cotangent * table).to(cotangent.dtype)


class TableByAll(TableByLength):
    """The same, by all that it depends on."""

    @staticmethod
    def key(x):
        return x.shape[-1], x.dtype, x.device


class MaskOfFirst(torch.autograd.Function):
    """A mask is made once, at the length of the first call: longer rows do not fit."""

    @staticmethod
    def forward(ctx, x):
        mask = STATE.setdefault("mask", torch.arange(x.shape[-1]) % 2 == 0)
        return x * mask[: x.shape[-1]]

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * STATE["mask"][: cotangent.shape[-1]]


class PowerByShape(torch.autograd.Function):
    """What is made for a shape has the exponent of its first call."""

    @staticmethod
    def forward(ctx, x, power):
        ctx.power = STATE.setdefault(x.shape, power)
        ctx.save_for_backward(x)
        return x.abs() ** ctx.power

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return ctx.power * x.abs() ** (ctx.power - 1) * x.sign() * cotangent, None


@lru_cache
def coefficients(count):
    return tuple(1 / (k + 1) for k in range(count))


class OrderByShape(torch.autograd.Function):
    """Keeps the order of tokens by how many there are: other experts get those of the first."""

    plans: ClassVar[dict[object, torch.Tensor]] = {}

    @classmethod
    def plan(cls, expert):
        return cls.plans.setdefault(expert.shape, expert.argsort(stable=True))

    @classmethod
    def forward(cls, ctx, x, expert):
        plan = cls.plan(expert)
        ctx.save_for_backward(plan)
        return x[plan]

    @staticmethod
    def backward(ctx, cotangent):
        (plan,) = ctx.saved_tensors
        return torch.zeros_like(cotangent).index_copy(0, plan, cotangent), None


class OrderByNumbers(OrderByShape):
    """Keeps the order by the numbers of the experts."""

    plans: ClassVar[dict[object, torch.Tensor]] = {}

    @classmethod
    def plan(cls, expert):
        return cls.plans.setdefault(tuple(expert.tolist()), expert.argsort(stable=True))


class LazyPolynomial(torch.autograd.Function):
    """Coefficients are computed once for each length, which is all that they depend on."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return sum(c * x**k for k, c in enumerate(coefficients(x.shape[-1])))

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        terms = enumerate(coefficients(x.shape[-1]))
        return cotangent * sum(k * c * x ** max(k - 1, 0) for k, c in terms)


class Counts(Sine):
    """Counts its calls, and nothing depends on it."""

    @staticmethod
    def forward(ctx, x):
        STATE["calls"] = STATE.get("calls", 0) + 1
        return Sine.forward(ctx, x)


def routed():
    return normal(6, 3), torch.tensor([2, 0, 1, 0, 2, 1])


RIGHT = [
    Specimen(TunedOnCopies, one),
    Specimen(TableByAll, one),
    Specimen(LazyPolynomial, one),
    Specimen(Counts, one),
    Specimen(OrderByNumbers, routed),
]
WRONG = [
    Specimen(LargestSeen, one, "first-call"),
    Specimen(SmallestSeen, one, "first-call"),
    Specimen(WidestSeen, one, "first-call"),
    Specimen(TunedInPlace, one, "first-call"),
    Specimen(ScaleByShape, one, "first-call"),
    Specimen(TableByLength, one, "first-call"),
    Specimen(MaskOfFirst, one, "first-call"),
    Specimen(OrderByShape, routed, "first-call"),
    Specimen(PowerByShape, lambda: (*one(), 3.0), "first-call"),
]
MENDS = [
    Mend("first-call", LargestSeen, Sine, "Keep nothing between calls", one),
    Mend("first-call", TableByLength, TableByAll, "by all that it depends", one),
    Mend("first-call", TunedInPlace, TunedOnCopies, "work on copies", one),
]
