"""torch.compile(fullgraph=True), alone and composed with torch.func, equals eager."""

import pytest
import torch
from tests.fuzzing import spread
from tests.tensor.cases import ROWS
from tests.tensor.helpers import SEED, agree, every_row, weighted

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


@pytest.mark.parametrize(
    ("row", "transform"), spread(COMPOSED, 7), ids=lambda it: getattr(it, "name", it)
)
def test_composed_with_func(row, transform):
    args = row.arguments(SEED)
    wanted = getattr(func, transform)(weighted(row.formula))(*args)
    agree(compiled(getattr(func, transform)(weighted(row.function)))(*args), wanted)


@pytest.mark.parametrize("row", spread(ROWS, 2), ids=lambda row: row.name)
def test_composed_with_vmap_of_grad(row):
    args = tuple(torch.stack([x, 2 * x]) for x in row.arguments(SEED))

    def batched(function):
        return func.vmap(func.grad(weighted(function)))

    agree(compiled(batched(row.function))(*args), batched(row.formula)(*args))


@pytest.mark.slow
def test_inductor():
    row = ROWS[2]
    args = [x.requires_grad_() for x in row.arguments(SEED)]
    scalar = weighted(row.function)
    agree(
        torch.autograd.grad(compiled(scalar, "inductor")(*args), args),
        torch.autograd.grad(scalar(*args), args),
    )


@pytest.mark.parametrize("row", spread(ROWS[1:], 2), ids=lambda row: row.name)
def test_composed_with_jvp_alone(row):
    args = row.arguments(SEED)

    def pushed(function):
        return lambda *args: func.jvp(function, args, args)[1]

    agree(compiled(pushed(row.function))(*args), pushed(row.formula)(*args))
