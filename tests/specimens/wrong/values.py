"""Functions that are right almost everywhere: wrong at zeros, ties, large and small numbers."""

import torch
from tests.specimens._specimen import Specimen, normal, positive

__all__ = ["PLACES", "SPECIMENS", "fault_at"]

# Where a fault lies, as a test on the input.
PLACES = {
    "zero": lambda x: x == 0,
    "negative zero": lambda x: (x == 0) & x.signbit(),
    "tie": lambda x: (x.unsqueeze(-1) == x.unsqueeze(-2)).sum(-1) > 1,
    "constant": lambda x: (x == x[..., :1]).all(-1, keepdim=True).expand(x.shape),
    "large": lambda x: x.abs() > 1e3,
    "small": lambda x: (x.abs() < 1e-5) & (x != 0),
}


def fault_at(place: str, fault: str) -> type[torch.autograd.Function]:
    """A smooth function whose backward is wrong at special values of its input.

    Arguments:
        place: a key of `PLACES`.
        fault: the gradient there is ``"zero"``, ``"nan"``, ``"doubled"`` or ``"inf"``.
    """

    class Fault(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x + torch.atan(x)

        @staticmethod
        def backward(ctx, cotangent):
            (x,) = ctx.saved_tensors
            gradient = cotangent * (1 + 1 / (1 + x * x))
            other = {"zero": 0.0, "nan": torch.nan, "doubled": 2.0, "inf": torch.inf}[fault]
            wrong = gradient * 2 if fault == "doubled" else torch.full_like(gradient, other)
            return torch.where(PLACES[place](x), wrong, gradient)

    Fault.__name__ = f"{fault.title()}At{place.title().replace(' ', '')}"
    return Fault


class Function(torch.autograd.Function):
    """Saves its inputs."""

    @classmethod
    def keep(cls, ctx, *inputs):
        ctx.save_for_backward(*inputs)


class NormAtZero(Function):
    """0 / 0 where every entry is zero."""

    @staticmethod
    def forward(ctx, x):
        Function.keep(ctx, x)
        return x.norm(dim=-1)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent.unsqueeze(-1) * x / x.norm(dim=-1, keepdim=True)


class ProductByDivision(Function):
    """The product of the others, as the product of all divided by each."""

    @staticmethod
    def forward(ctx, x):
        Function.keep(ctx, x)
        return x.prod(-1)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return (cotangent * x.prod(-1)).unsqueeze(-1) / x


class MaximumOfTies(Function):
    """Each of several largest entries gets the whole gradient."""

    @staticmethod
    def forward(ctx, x):
        Function.keep(ctx, x)
        return x.amax(-1)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent.unsqueeze(-1) * (x == x.amax(-1, keepdim=True))


class MaximumOfTwo(Function):
    """Where both are equal neither gets a gradient."""

    @staticmethod
    def forward(ctx, x, y):
        Function.keep(ctx, x, y)
        return torch.maximum(x, y)

    @staticmethod
    def backward(ctx, cotangent):
        x, y = ctx.saved_tensors
        return cotangent * (x > y), cotangent * (y > x)


class SoftplusByExponential(Function):
    """inf / inf for large inputs."""

    @staticmethod
    def forward(ctx, x):
        Function.keep(ctx, x)
        return torch.nn.functional.softplus(x)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent * x.exp() / (1 + x.exp())


class HypotenuseInHalf(Function):
    """The square of 300 is beyond float16, and that of 1e-30 below float32."""

    @staticmethod
    def forward(ctx, x, y):
        Function.keep(ctx, x, y)
        return torch.hypot(x.float(), y.float()).to(x.dtype) if x.itemsize < 4 else x.hypot(y)

    @staticmethod
    def backward(ctx, cotangent):
        x, y = ctx.saved_tensors
        length = (x * x + y * y).sqrt()
        return cotangent * x / length, cotangent * y / length


class RowNormWithoutEpsilon(Function):
    """The epsilon of forward is missing in backward: rows of one value divide by zero."""

    @staticmethod
    def forward(ctx, x):
        Function.keep(ctx, x)
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        centred = x - x.mean(-1, keepdim=True)
        inverse = 1 / (centred.square().mean(-1, keepdim=True)).sqrt()
        safe = 1 / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        unit = centred * safe
        g = cotangent - cotangent.mean(-1, keepdim=True)
        correction = unit * (unit * cotangent).mean(-1, keepdim=True) * safe
        return g * safe - correction + 0 * inverse


class MaskedMean(Function):
    """An empty mask: forward answers zero, backward divides by the count."""

    @staticmethod
    def forward(ctx, x, mask):
        ctx.save_for_backward(mask)
        return (x * mask).sum(-1) / mask.sum(-1).clamp(min=1)

    @staticmethod
    def backward(ctx, cotangent):
        (mask,) = ctx.saved_tensors
        weights = mask.to(cotangent.dtype)
        return cotangent.unsqueeze(-1) * weights / weights.sum(-1, keepdim=True), None


class SoftmaxOfMasked(Function):
    """Entries at minus infinity spoil the gradient of their neighbours."""

    @staticmethod
    def forward(ctx, x):
        Function.keep(ctx, x)
        return x.softmax(-1)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        y = x.softmax(-1)
        mean = (y * cotangent).sum(-1, keepdim=True) + 0 * (y * x).sum(-1, keepdim=True)
        return y * (cotangent - mean)


class SurrogateAtZero(Function):
    """A smooth window around the threshold, as 0 / 0 at it."""

    gradient = "surrogate"

    @staticmethod
    def forward(ctx, x):
        Function.keep(ctx, x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent * x.tanh() / x


class PowerAtZero(Function):
    """x to the power of 1.5 has slope zero at zero, from the one side where it is defined."""

    @staticmethod
    def forward(ctx, x):
        Function.keep(ctx, x)
        return x**1.5

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent * 1.5 * x * x.rsqrt()


class BelowEpsilon(torch.autograd.Function):
    """Divides by the larger of a norm and an epsilon, and pulls back as if it were the norm."""

    @staticmethod
    def forward(ctx, x, eps):
        ctx.save_for_backward(x)
        ctx.eps = eps
        return x / x.norm(dim=-1, keepdim=True).clamp(min=eps)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        norm = x.norm(dim=-1, keepdim=True).clamp(min=ctx.eps)
        unit = x / norm
        return (cotangent - unit * (cotangent * unit).sum(-1, keepdim=True)) / norm, None


SPECIMENS = [
    Specimen(BelowEpsilon, lambda: (normal(3, 4), 1e-3), "values"),
    *(
        Specimen(fault_at(place, fault), lambda: (normal(3, 4),), "values")
        for place, fault in [
            ("zero", "zero"), ("zero", "nan"), ("negative zero", "doubled"), ("tie", "zero"),
            ("constant", "nan"), ("large", "zero"), ("small", "doubled"), ("large", "inf"),
        ]
    ),
    Specimen(NormAtZero, lambda: (normal(3, 4),), "values", verdict="untidy"),
    Specimen(ProductByDivision, lambda: (normal(3, 4),), "values"),
    Specimen(MaximumOfTies, lambda: (normal(3, 4),), "values"),
    Specimen(MaximumOfTwo, lambda: (normal(3, 4), normal(3, 4, seed=5)), "values"),
    Specimen(SoftplusByExponential, lambda: (normal(3, 4),), "values"),
    Specimen(HypotenuseInHalf, lambda: (normal(4), normal(4, seed=5)), "values"),
    Specimen(RowNormWithoutEpsilon, lambda: (normal(3, 4),), "values"),
    Specimen(
        MaskedMean,
        lambda: (normal(2, 3), torch.tensor([[True, False, True], [True, True, False]])),
        "values",
    ),
    Specimen(SoftmaxOfMasked, lambda: (normal(3, 4),), "values"),
    Specimen(SurrogateAtZero, lambda: (normal(4),), "values"),
    Specimen(PowerAtZero, lambda: (positive(4),), "values"),
]  # fmt: skip
