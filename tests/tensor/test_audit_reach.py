"""What the first use looks like must not blind the audit to what later uses do.

The vehicle is a derivative that goes through fixed-point integers: each step is piecewise constant,
so that no rule about operations can refuse it; finite differences alone tell its history is lost.
"""

import pytest
import torch

import pullback
from pullback.errors import PullbackError, UnsupportedError

X = torch.tensor([0.7, 1.3, 0.9], dtype=torch.float64)


def through_integers(t):
    return ((t.double() * 2**40).long().double() / 2**40).to(t.dtype)


def cube(keep):
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.derivative = keep(x, 3 * x * x)
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            return ctx.derivative * g

    return pullback.complete(Cube)


def hidden():
    return cube(lambda x, derivative: through_integers(derivative))


def second(function, x, cotangent=None):
    x = x.clone().requires_grad_()
    y = function.apply(x)
    cotangent = torch.ones_like(y) if cotangent is None else cotangent
    (first,) = torch.autograd.grad(y, x, cotangent, create_graph=True)
    return torch.autograd.grad(first.sum() + 0 * x.sum(), x)[0]


def right_or_refused(function, x):
    try:
        got = second(function, x)
    except PullbackError:
        return
    torch.testing.assert_close(got, 6 * x)


def try_to(ask, *args):
    try:
        return ask(*args)
    except PullbackError:
        return None


def test_the_vehicle_is_refused():
    with pytest.raises(PullbackError):
        second(hidden(), X)


FIRST = {
    "zeros": 0 * X,
    "nan": X * float("nan"),
    "infinity": X * float("inf"),
    "nothing": X[:0],
    "tiny": X * 1e-30,
    "huge": X * 1e100,
}


@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST)
def test_a_first_use_that_tells_nothing(first):
    function = hidden()
    try_to(second, function, first)
    right_or_refused(function, X)


def test_a_first_cotangent_of_zeros():
    function = hidden()
    try_to(second, function, X, torch.zeros_like(X))
    right_or_refused(function, X)


@pytest.mark.parametrize("before", [True, False])
def test_a_path_of_one_dtype(before):
    function = cube(
        lambda x, derivative: (
            through_integers(derivative) if x.dtype == torch.float32 else derivative
        )
    )
    if before:
        right_or_refused(function, X)
    right_or_refused(function, X.float())


@pytest.mark.parametrize("part", [0.1, 0.01, 0.001])
def test_a_small_part(part):
    right_or_refused(
        cube(lambda x, d: (1 - part) * d + part * through_integers(d)),
        X,
    )


def test_one_entry_of_many():
    x = torch.linspace(0.5, 1.5, 20000, dtype=torch.float64)
    right_or_refused(cube(lambda x, d: torch.cat([d[:-1], through_integers(d[-1:])])), x)


def test_another_number_of_dimensions():
    function = cube(lambda x, d: through_integers(d) if x.dim() == 2 else d)
    right_or_refused(function, X)
    right_or_refused(function, X.reshape(1, 3))


class Trapped(torch.autograd.Function):
    """sin(x), or sqrt(x - 5) beyond 5: the derivative of what was not taken is NaN."""

    @staticmethod
    def forward(ctx, x):
        value = torch.where(x > 5, (x - 5).sqrt(), x.sin())
        ctx.save_for_backward(x, value)
        return value

    @staticmethod
    def backward(ctx, g):
        x, value = ctx.saved_tensors
        return g * torch.where(x > 5, 0.5 / value, (1 - value**2).sqrt())


class TrappedBeside(torch.autograd.Function):
    """As `Trapped`, of what is no output, so that no way leads around the root."""

    @staticmethod
    def forward(ctx, x):
        slope = torch.where(x > 5, (x - 5).sqrt(), x.cos())
        ctx.save_for_backward(slope)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (slope,) = ctx.saved_tensors
        return g * slope


class Norm(torch.autograd.Function):
    """The norm of each row; at a row of zeros autograd's second derivative is NaN."""

    @staticmethod
    def forward(ctx, x):
        norm = x.square().sum(-1).sqrt()
        ctx.save_for_backward(x, norm)
        return norm

    @staticmethod
    def backward(ctx, g):
        x, norm = ctx.saved_tensors
        return g[..., None] * x / norm.clamp_min(1e-12)[..., None]


def hessian(function, x):
    return torch.func.jacrev(torch.func.jacrev(lambda x: function(x).sum()))(x)


def test_a_derivative_that_is_no_number_where_the_measured_one_is():
    with pytest.raises(UnsupportedError, match="derived nan, measured"):
        hessian(pullback.complete(TrappedBeside).apply, X)


def test_backward_itself_tells_how_an_output_changes_where_forward_cannot():
    torch.testing.assert_close(hessian(pullback.complete(Trapped).apply, X), torch.diag(-X.sin()))


def test_no_number_at_special_values_alone_is_refused_there():
    rows = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
    function = pullback.complete(Norm).apply
    with pytest.raises(UnsupportedError, match="Norm is not a number where"):
        hessian(function, rows)
    expected = hessian(lambda x: x.norm(dim=-1), rows[1])
    torch.testing.assert_close(hessian(function, rows[1]), expected)


class ClampedToTheRest(torch.autograd.Function):
    """The identity, whose backward clamps what stands out from the other entries."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        limit = 3 * g.std()
        return g.clamp(g.mean() - limit, g.mean() + limit)


def test_a_backward_that_is_not_linear_where_one_cotangent_stands_out():
    x = torch.linspace(-1.0, 1.0, 21, dtype=torch.float64)
    with pytest.raises(UnsupportedError, match="not linear"):
        torch.func.jvp(pullback.complete(ClampedToTheRest).apply, (x,), (x,))


def test_what_a_batch_of_gradients_left_in_a_global_does_not_hide_a_backward_from_the_audit():
    kept = {}

    class SquareWithBoundedGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            kept[g.shape] = g.tanh()
            return 2 * x * kept[g.shape]

    apply = pullback.complete(SquareWithBoundedGradient).apply
    x = X.half().requires_grad_()
    torch.autograd.grad(apply(x), x, torch.eye(3).half(), is_grads_batched=True)
    with pytest.raises(UnsupportedError, match="Forward mode"):
        torch.func.jvp(apply, (X.half(),), (X.half(),))
    (record,) = [a for a in pullback.audits() if a.function == "SquareWithBoundedGradient"]
    assert (record.rule, record.verdict) == ("tangent", "disagrees")
