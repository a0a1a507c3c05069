"""torch.compile(fullgraph=True), alone and composed with torch.func, equals eager."""

import pytest
import torch
from tests.tensor.cases import ROWS
from tests.tensor.helpers import SEED, agree, every_row, weighted

import pullback

pytestmark = pytest.mark.sampled(20)

func = torch.func


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function, backend="aot_eager"):
    return torch.compile(function, fullgraph=True, backend=backend)


@every_row
def test_forward_and_backward(row):
    def gradients(function):
        args = [x.requires_grad_() for x in row.arguments(SEED)]
        return torch.autograd.grad(function(*args), args)

    scalar = weighted(row.function)
    agree(gradients(compiled(scalar)), gradients(scalar))


# By row and by transform in turn: each seventh has every transform, on nine rows.
COMPOSED = [
    (row, transform) for row in ROWS for transform in ("grad", "jacrev", "jacfwd", "hessian")
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("row", "transform"), COMPOSED, ids=lambda it: getattr(it, "name", it))
def test_composed_with_func(row, transform):
    args = row.arguments(SEED)
    wanted = getattr(func, transform)(weighted(row.formula))(*args)
    agree(compiled(getattr(func, transform)(weighted(row.function)))(*args), wanted)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_composed_with_vmap_of_grad(row):
    args = tuple(torch.stack([x, 2 * x]) for x in row.arguments(SEED))

    def batched(function):
        return func.vmap(func.grad(weighted(function)))

    agree(compiled(batched(row.function))(*args), batched(row.formula)(*args))


def test_inductor():
    row = ROWS[2]
    args = [x.requires_grad_() for x in row.arguments(SEED)]
    scalar = weighted(row.function)
    agree(
        torch.autograd.grad(compiled(scalar, "inductor")(*args), args),
        torch.autograd.grad(scalar(*args), args),
    )


@pytest.mark.parametrize("row", ROWS[1:], ids=lambda row: row.name)
def test_composed_with_jvp_alone(row):
    args = row.arguments(SEED)

    def pushed(function):
        return lambda *args: func.jvp(function, args, args)[1]

    agree(compiled(pushed(row.function))(*args), pushed(row.formula)(*args))


class AsksItsAttribute(torch.autograd.Function):
    """tanh(x * scale), which keeps the scale on the context and asks whether it requires grad."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return (x * scale).tanh()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        slope = g * (1 - (x * ctx.scale).tanh() ** 2)
        return slope * ctx.scale, (slope * x).sum() if ctx.scale.requires_grad else None


@pytest.mark.parametrize("ask", ["jvp", "grad", "hessian"])
def test_a_tensor_on_the_context_is_the_input_that_it_is_in_a_graph_too(ask):
    x = torch.tensor([0.6, -1.1, 1.4], dtype=torch.float64)
    scale = torch.tensor(1.7, dtype=torch.float64)

    def asked(f):
        if ask == "jvp":
            return lambda x, s: torch.func.jvp(f, (x, s), (x + 1, s + 1))[1]
        way = getattr(torch.func, ask)
        return lambda x, s: way(lambda s: f(x, s).sum())(s)

    torch._dynamo.reset()
    found = asked(pullback.complete(AsksItsAttribute).apply)
    compiled = torch.compile(found, fullgraph=True, backend="aot_eager")
    expected = asked(lambda x, s: (x * s).tanh())(x, scale)
    torch.testing.assert_close(found(x, scale), expected)
    torch.testing.assert_close(compiled(x, scale), expected)


class Scaled(torch.autograd.Function):
    """It has a default: without its context, what it is given would fit as well."""

    @staticmethod
    def forward(ctx, x, scale=1.0, shift=0.0):
        ctx.scale = scale
        return x * scale + shift

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.scale, None, None


@pytest.mark.parametrize("given", [(), (3.0,), (3.0, 0.5)])
@pytest.mark.parametrize("fullgraph", [True, False])
def test_nothing_that_needs_a_gradient_is_given_to_forward_in_its_place(given, fullgraph):
    torch._dynamo.reset()
    apply = pullback.complete(Scaled).apply
    compiled = torch.compile(lambda x: apply(x, *given), backend="eager", fullgraph=fullgraph)
    x = torch.randn(3)
    assert torch.equal(compiled(x), Scaled.apply(x, *given))
    x.requires_grad_()
    with torch.no_grad():
        assert torch.equal(compiled(x), Scaled.apply(x, *given))
