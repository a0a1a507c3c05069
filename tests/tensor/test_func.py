"""torch.func: grad, vjp, jacrev, jacfwd, hessian, nested every way."""

import pytest
import torch
from tests.fuzzing import spread
from tests.tensor.cases import ROWS
from tests.tensor.helpers import SEED, agree, every_row, weighted

import pullback

func = torch.func


def argnums(args):
    return tuple(range(len(args)))


@every_row
def test_grad_and_vjp(row):
    args = row.arguments(SEED)
    for transform in (func.grad, func.jacrev, func.jacfwd):
        agree(
            transform(weighted(row.function), argnums(args))(*args),
            transform(weighted(row.formula), argnums(args))(*args),
        )
    output, pull = func.vjp(row.function, *args)
    want, pull_formula = func.vjp(row.formula, *args)
    agree(output, want)
    agree(pull(output), pull_formula(want))


@every_row
def test_jacobians_of_a_vector_output(row):
    args = row.arguments(SEED)
    for transform in (func.jacrev, func.jacfwd):
        agree(
            transform(row.function, argnums(args))(*args),
            transform(row.formula, argnums(args))(*args),
        )


NESTED = [
    pytest.param(row, outer, inner, id=f"{inner}-{outer}-{row.name}")
    for inner in ("grad", "jacfwd")
    for outer in ("jacrev", "jacfwd")
    for row in ROWS
]


@pytest.mark.parametrize(("row", "outer", "inner"), spread(NESTED, 4))
def test_second_order_in_every_nesting(row, outer, inner):
    args = row.arguments(SEED)

    def hessian(function):
        once = getattr(func, inner)(weighted(function), argnums(args))
        return getattr(func, outer)(once, argnums(args))(*args)

    agree(hessian(row.function), hessian(row.formula))


@pytest.mark.sampled(3)
@every_row
def test_third_order_forward_over_forward_over_reverse(row):
    x, *rest = row.arguments(SEED)

    def third(function):
        def scalar(t):
            return weighted(function)(x * t, *rest)

        return func.jacfwd(func.jacfwd(func.grad(scalar)))(torch.tensor(1.3, dtype=torch.float64))

    agree(third(row.function), third(row.formula))


@every_row
def test_hessian_through_autograd_outside(row):
    args = [x.requires_grad_() for x in row.arguments(SEED)]

    def mixed(function):
        first = func.grad(weighted(function), argnums(args))(*args)
        total = sum((g * g).sum() for g in first)
        return torch.autograd.grad(total, args, allow_unused=True)

    agree(mixed(row.function), mixed(row.formula))


class Polar(torch.autograd.Function):
    """Length and angle, with the length kept for backward as a residual."""

    @staticmethod
    def forward(x, y):
        return (x * x + y * y).sqrt(), torch.atan2(y, x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y = inputs
        ctx.save_for_backward(x, y, (x * x + y * y).sqrt())

    @staticmethod
    def backward(ctx, for_length, for_angle):
        x, y, length = ctx.saved_tensors
        return (
            for_length * x / length - for_angle * y / length**2,
            for_length * y / length + for_angle * x / length**2,
        )


@pytest.mark.parametrize("used", [0, 1])
@pytest.mark.parametrize("outer", [func.jacrev, func.jacfwd])
def test_a_second_derivative_where_one_output_is_not_used(used, outer):
    def ask(polar):
        return outer(func.grad(lambda v: polar(v[0], v[1])[used]))

    rows = torch.tensor([[0.3, 0.8], [1.1, -0.4]], dtype=torch.float64)
    apply = pullback.complete(Polar).apply

    def formula(x, y):
        return (x * x + y * y).sqrt(), torch.atan2(y, x)

    agree(ask(apply)(rows[0]), ask(formula)(rows[0]))
    agree(func.vmap(ask(apply))(rows), func.vmap(ask(formula))(rows))
