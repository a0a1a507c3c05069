"""One table of Functions and what is true of each, for every test of the tensor room."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

import pullback


class Split(pullback.Function):
    """x ** 3, split form."""

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * cotangent


class Combined(pullback.Function):
    """x ** 3, combined form, as most published Functions are written."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * cotangent


class Residual(pullback.Function):
    """x ** 3 with an intermediate saved, which torch takes for a constant."""

    @staticmethod
    def forward(ctx, x):
        square = x * x
        ctx.save_for_backward(square)
        return square * x

    @staticmethod
    def backward(ctx, cotangent):
        (square,) = ctx.saved_tensors
        return 3 * square * cotangent


class Attributes(pullback.Function):
    """x ** 3 with tensors left on the context in every way that one meets."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x.detach()
        ctx.nested = {"square": x.data * x, "mask": [x > -100]}
        return ctx.nested["square"] * x

    @staticmethod
    def backward(ctx, cotangent):
        (mask,) = ctx.nested["mask"]
        return (ctx.nested["square"] + 2 * ctx.x * ctx.x) * cotangent * mask


class SavesOutput(pullback.Function):
    """exp(x), from its output."""

    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def vjp(ctx, cotangent):
        (y,) = ctx.saved_tensors
        return y * cotangent


class OwnJvp(pullback.Function):
    """sin(x) with a forward rule of its own."""

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return x.cos() * cotangent

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return x.cos() * tangent


class OwnVmap(pullback.Function):
    """x * sin(x) with a batching rule of its own and an intermediate saved."""

    @staticmethod
    def forward(x):
        return x * x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,) = inputs
        ctx.save_for_backward(x, x.sin())

    @staticmethod
    def backward(ctx, cotangent):
        x, sine = ctx.saved_tensors
        return cotangent * (sine + x * x.cos())

    @staticmethod
    def vmap(info, in_dims, x):
        return OwnVmap.apply(x), in_dims[0]


class TwoOutputs(pullback.Function):
    """(x * y, x + y): both outputs are wanted, or either."""

    @staticmethod
    def forward(x, y):
        return x * y, x + y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, product, total):
        x, y = ctx.saved_tensors
        return product * y + total, product * x + total


class IntegerOutput(pullback.Function):
    """The sorted values and where they were."""

    @staticmethod
    def forward(x):
        values, order = x.sort()
        return values, order

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx, cotangent, _):
        (order,) = ctx.saved_tensors
        return torch.zeros_like(cotangent).scatter(-1, order, cotangent)


class Broadcast(pullback.Function):
    """x * scale for a scale of another shape and a number."""

    @staticmethod
    def forward(x, scale, offset=0.0):
        return x * scale + offset

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, scale, ctx.offset = inputs
        ctx.save_for_backward(x, scale)

    @staticmethod
    def backward(ctx, cotangent):
        x, scale = ctx.saved_tensors
        return cotangent * scale, (cotangent * x).sum_to_size(scale.shape), None


class Nested(pullback.Function):
    """A product over a dict, with a keyword-only argument."""

    @staticmethod
    def forward(parameters, *, power=1):
        a, (b,) = parameters["a"], parameters["rest"]
        return a * b**power

    @staticmethod
    def setup_context(ctx, inputs, output):
        parameters, ctx.power = inputs
        ctx.save_for_backward(parameters["a"], *parameters["rest"])

    @staticmethod
    def backward(ctx, cotangent):
        a, b = ctx.saved_tensors
        n = ctx.power
        return {"a": cotangent * b**n, "rest": [cotangent * a * n * b ** (n - 1)]}, None


class Surrogate(pullback.Function):
    """round(x) whose gradient passes straight through, scaled."""

    gradient = "surrogate"

    @staticmethod
    def forward(x):
        return x.round()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent * torch.exp(-x * x)


class Alias(pullback.Function):
    """The input as it is; the gradient is halved."""

    gradient = "surrogate"

    @staticmethod
    def forward(x):
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent / 2


@pullback.custom_vjp(static=("power",))
def raised(x, power=3):
    return x**power


raised.defvjp(
    lambda x, power=3: (x**power, {"derivative": power * x ** (power - 1)}),
    lambda residuals, cotangent: residuals["derivative"] * cotangent,
)


class PublishedCube(torch.autograd.Function):
    """Written as third-party code is: combined, intermediates on ctx, .data, once."""

    @staticmethod
    def forward(ctx, x):
        ctx.square = x.data * x
        return ctx.square * x

    @staticmethod
    @once_differentiable
    def backward(ctx, cotangent):
        return 3 * ctx.square * cotangent.data


def vector(generator: torch.Generator) -> tuple[Any, ...]:
    return (torch.randn(5, generator=generator, dtype=torch.float64),)


def pair(generator: torch.Generator) -> tuple[Any, ...]:
    return vector(generator) + vector(generator)


def scaled(generator: torch.Generator) -> tuple[Any, ...]:
    x = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    return x, torch.randn(1, 5, generator=generator, dtype=torch.float64)


@dataclass(frozen=True)
class Row:
    """A callable of tensors, a plain formula with the same derivatives, and inputs."""

    name: str
    function: Callable[..., Any]
    formula: Callable[..., Any]
    inputs: Callable[[torch.Generator], tuple[Any, ...]] = vector

    def arguments(self, seed: int) -> tuple[torch.Tensor, ...]:
        return self.inputs(torch.Generator().manual_seed(seed))


def _surrogate_formula(x: torch.Tensor) -> torch.Tensor:
    # A function whose derivative is exp(-x * x), shifted to have the value round(x).
    import math

    smooth = math.sqrt(math.pi) / 2 * torch.erf(x)
    return smooth + (x.round() - smooth).detach()


ROWS = [
    Row("split", Split.apply, lambda x: x**3),
    Row("combined", Combined.apply, lambda x: x**3),
    Row("residual", Residual.apply, lambda x: x**3),
    Row("attributes", Attributes.apply, lambda x: x**3),
    Row("saves output", SavesOutput.apply, torch.exp),
    Row("own jvp", OwnJvp.apply, torch.sin),
    Row("own vmap", OwnVmap.apply, lambda x: x * x.sin()),
    Row("two outputs", TwoOutputs.apply, lambda x, y: (x * y, x + y), pair),
    Row("integer output", lambda x: IntegerOutput.apply(x)[0], lambda x: x.sort()[0]),
    Row(
        "broadcast", lambda x, s: Broadcast.apply(x, s, offset=2.0), lambda x, s: x * s + 2, scaled
    ),
    Row(
        "nested",
        lambda a, b: Nested.apply({"a": a, "rest": [b]}, power=2),
        lambda a, b: a * b**2,
        pair,
    ),
    Row("surrogate", Surrogate.apply, _surrogate_formula),
    Row("alias", Alias.apply, lambda x: x / 2 + (x / 2).detach()),
    Row("custom_vjp", lambda x: raised(x, power=4), lambda x: x**4),
    Row("completed", pullback.complete(PublishedCube).apply, lambda x: x**3),
]
