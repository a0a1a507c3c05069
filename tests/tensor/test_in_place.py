"""Inputs that forward changes in place, and tensors that the caller changes later."""

import pytest
import torch
from tests.copies import run_python
from tests.tensor.helpers import agree

import pullback
from pullback.errors import PullbackError, UnsupportedError

func = torch.func


def both(make):
    own = make(pullback.Function)
    third = pullback.complete(make(torch.autograd.Function))
    return pytest.mark.parametrize("function", [own, third], ids=["Function", "complete"])


def start():
    return torch.tensor([0.5, 1.5, 2.5], dtype=torch.float64, requires_grad=True)


def doubles(base):
    class Double(base):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx, g):
            return g * 2

    return Double


@both(doubles)
def test_twice_in_place(function):
    x = start()
    y = x * 1
    function.apply(y)
    function.apply(y)
    agree(y, 4 * x)
    agree(torch.autograd.grad(y.sum(), x)[0], torch.full_like(x, 4))


@both(doubles)
def test_in_place_and_then_changed_by_torch(function):
    x = start()
    y = x * 1
    function.apply(y)
    y.add_(1)
    agree(torch.autograd.grad((y * y).sum(), x)[0], 2 * (2 * x + 1) * 2)


def scales_with_residual(base):
    class Squashed(base):
        """y = x * x in place, whose derivative is kept before."""

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(2 * x)
            ctx.mark_dirty(x)
            return x.mul_(x)

        @staticmethod
        def backward(ctx, g):
            (derivative,) = ctx.saved_tensors
            return g * derivative

    return Squashed


@both(scales_with_residual)
def test_in_place_with_a_residual(function):
    x = start()
    y = x * 1
    function.apply(y)
    function.apply(y)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    agree(g, 4 * x**3)
    try:
        (h,) = torch.autograd.grad(g.sum(), x)
    except PullbackError:
        return
    agree(h, 12 * x**2)


def with_a_jvp(base):
    class Doubled(base):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx, g):
            return g * 2

        @staticmethod
        def jvp(ctx, t):
            return t.mul_(2)

    return Doubled


@both(with_a_jvp)
def test_mark_dirty_beside_the_jvp_of_the_author(function):
    with torch.autograd.forward_ad.dual_level():
        x = start().detach()
        dual = torch.autograd.forward_ad.make_dual(x * 1, x * 3)
        y = function.apply(dual)
        value, tangent = torch.autograd.forward_ad.unpack_dual(y)
        agree(value, 2 * x)
        agree(tangent, 6 * x)


def saves_a_residual(base):
    class Cube(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(3 * x * x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (derivative,) = ctx.saved_tensors
            return derivative * g

    return Cube


@both(saves_a_residual)
def test_an_input_that_is_not_saved_may_change_before_backward(function):
    x = start()
    y = x * 1
    z = function.apply(y)
    with torch.no_grad():
        y.zero_()
    agree(torch.autograd.grad(z.sum(), x)[0], 3 * x**2)


@both(saves_a_residual)
def test_an_input_that_changed_is_noticed_at_second_order(function):
    x = start()
    y = x * 1
    z = function.apply(y)
    with torch.no_grad():
        y.zero_()
    try:
        (g,) = torch.autograd.grad(z.sum(), x, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), x)
    except RuntimeError:  # pullback's, or torch's for a saved tensor that has changed
        return
    agree(h, 6 * x)


def keeps_a_small_one(base):
    class Norm(base):
        """The input is large, what backward needs is one number."""

        keep_inputs = False

        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x.sum().exp())
            return x.sum().exp() + y.sum()

        @staticmethod
        def backward(ctx, g):
            (e,) = ctx.saved_tensors
            return (g * e).expand(1000), g.expand(1000)

    return Norm


@both(keeps_a_small_one)
def test_inputs_that_nobody_saved_are_not_kept_alive(function):
    import weakref

    x = torch.zeros(1000, requires_grad=True)
    y = x * 1
    z = x * 1
    alive = [weakref.ref(y), weakref.ref(z)]
    storage = [y.untyped_storage()._weak_ref(), z.untyped_storage()._weak_ref()]
    total = function.apply(y, z)
    del y, z
    assert [reference() for reference in alive] == [None, None]
    expired = [torch.UntypedStorage._expired(reference) for reference in storage]
    for reference in storage:
        torch.UntypedStorage._free_weak_ref(reference)
    assert expired == [True, True]
    total.backward()
    assert x.grad.eq(2).all()


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacrev])
def test_a_view_changed_beside_a_residual_is_refused_by_name_under_a_transform(transform):
    class Squares(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x.clone())
            x.mul_(x.clone())
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx, g):
            return 2 * g * ctx.saved_tensors[0]

    function = pullback.complete(Squares)

    def changed(x, part):
        whole = x * 1.0
        function.apply(part(whole))
        return whole.sum()

    x = torch.tensor([1.0, 2.0, 3.0])
    with pytest.raises(UnsupportedError, match="Squares changes a view in place"):
        transform(lambda x: changed(x, lambda whole: whole[:2]))(x)
    assert torch.equal(transform(lambda x: changed(x, lambda whole: whole))(x), 2 * x)
    leaf = x.clone().requires_grad_()
    changed(leaf, lambda whole: whole[:2]).backward()
    assert torch.equal(leaf.grad, torch.tensor([2.0, 4.0, 1.0]))


class Frees(torch.autograd.Function):
    """2 x, which gives the memory of its input back; backward finds it by the inverse."""

    @staticmethod
    def forward(ctx, x):
        y = 2 * x
        ctx.x, ctx.y = x, y.detach()
        x.untyped_storage().resize_(0)
        return y

    @staticmethod
    def backward(ctx, g):
        ctx.x.untyped_storage().resize_(ctx.y.untyped_storage().size())
        with torch.no_grad():
            ctx.x.set_(ctx.y / 2)
        return 2 * g


FREED = """
import torch
import pullback
from tests.tensor.test_in_place import Frees

def f(x):
    return pullback.complete(Frees).apply(x * 1.0)

x = torch.tensor([0.6, 1.1, 1.4], dtype=torch.float64)
assert torch.equal(torch.func.grad(lambda x: f(x).sum())(x), torch.full_like(x, 2.0))
for ask in (
    lambda: torch.func.jvp(f, (x,), (x,)),
    lambda: torch.func.jacfwd(f)(x),
    lambda: torch.func.hessian(lambda x: f(x).sum())(x),
    lambda: torch.autograd.functional.hessian(lambda x: f(x).sum(), x),
    lambda: torch.vmap(f)(x[:, None]),
):
    try:
        ask()
    except pullback.errors.PullbackError as error:
        print("by name", type(error).__name__)
    else:
        print("gave an answer")
"""


def test_an_input_whose_memory_is_freed_is_refused_by_name():
    """In a process of its own: memory that is gone ends it."""
    ran = run_python("-c", FREED)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.count("by name") == 5, ran.stdout


RESHAPED = {
    "unsqueeze_": lambda sums: sums.unsqueeze_(-1),
    "t_": lambda sums: sums.unsqueeze_(0).t_(),
    "transpose_": lambda sums: sums.unsqueeze(0).transpose_(0, 1),
    "after mul_": lambda sums: sums.mul_(1.0).unsqueeze_(-1),
    "before mul_": lambda sums: sums.unsqueeze_(-1).mul_(1.0),
}


@pytest.mark.parametrize("name", RESHAPED)
def test_a_change_of_shape_in_place_is_followed_or_refused(name):
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            sums = RESHAPED[name](x.square().sum(-1))
            ctx.save_for_backward(x, sums)
            return x * sums.reshape(sums.shape)

        @staticmethod
        def backward(ctx, g):
            x, sums = ctx.saved_tensors
            return g * sums + 2 * x * (g * x).sum(-1, keepdim=True)

    x = torch.randn(2, 3, dtype=torch.float64)
    want = torch.func.hessian(lambda x: (x * x.square().sum(-1, keepdim=True)).sum())(x)
    try:
        got = torch.func.hessian(lambda x: pullback.complete(Scaled).apply(x).sum())(x)
    except UnsupportedError as error:
        assert name == "after mul_" and "changes the shape" in str(error)  # noqa: PT017, PT018
        return
    torch.testing.assert_close(got, want)


ENDS = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0], dtype=torch.float64)


def _moved(e, g):
    wide = torch.zeros_like(e)
    for j in range(3):  # each piece is read, and written again
        wide[j : j + g.shape[0]] += g
    return e * wide


def _items(e, g):
    e[torch.tensor([0, 2])] -= 1
    return e * g


def _overwritten(e, g):
    e[torch.tensor([0, 2])] = 0.0
    return e * g


def _added(e, g):
    e.scatter_add_(0, torch.tensor([0, 2]), torch.ones(2, dtype=e.dtype))
    return e * g


def _given_out(e, g):
    made, again = torch.empty_like(e), torch.empty(5, dtype=e.dtype)
    torch.mul(e, e, out=made)
    made.sqrt_()
    torch.mul(made, g, out=again)
    return torch.add(again, 0, out=again)


# What is computed of x, and its gradient of exp(x), which is changed in place.
WRITTEN = {
    "moved": (lambda x: x.exp().unfold(0, 3, 1).sum(-1), _moved),
    "items": (lambda x: x.exp() - ENDS * x, _items),
    "overwritten": (lambda x: x.exp() * (1 - ENDS), _overwritten),
    "added": (lambda x: x.exp() + ENDS * x, _added),
    "given out": (torch.exp, _given_out),
}


def _twice(f, x):
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad((f(x) ** 2).sum(), x, create_graph=True)
    return torch.autograd.grad((slope**3).sum(), x)[0]


def _slope_of_tangent(f, x):
    return func.grad(lambda x: (func.jvp(f, (x,), (x.detach() + 1,))[1] ** 2).sum())(x)


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("kept", ["an input", "a residual"])
@pytest.mark.parametrize("ask", [_twice, _slope_of_tangent])
def test_backward_writes_into_what_it_has_made(name, kept, ask):
    formula, rule = WRITTEN[name]

    class Written(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x if kept == "an input" else x + 0)
            return formula(x)

        @staticmethod
        def backward(ctx, g):
            return rule(ctx.saved_tensors[0].exp(), g)

    x = torch.linspace(-1, 1, 5, dtype=torch.float64)
    agree(ask(pullback.complete(Written).apply, x), ask(formula, x))


def written_in_pieces(t):
    out = torch.zeros_like(t)
    out[:1] = t[:1]
    out[1:] = t[1:]
    return out


@pytest.mark.parametrize(("write", "formula"), [
    (written_in_pieces, torch.clone), (lambda t: t.exp().mul_(t), lambda t: t.exp() * t),
])  # fmt: skip
def test_what_a_rule_keeps_outside_has_the_numbers_that_it_wrote(write, formula):
    kept = []

    class Keeps(pullback.Function):
        gradient = "surrogate"

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            kept.append(write(g * x))
            return kept[-1] + write(x)

    x = torch.tensor([0.7, 0.9, 1.4], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(Keeps.apply(x).sum(), x, create_graph=True)
    for tensor in kept:
        torch.testing.assert_close(tensor.detach(), write(x.detach()))
    (curvature,) = torch.autograd.grad(slope.sum(), x)
    expected = torch.autograd.grad(2 * formula(x).sum(), x)[0]  # at a cotangent of one
    torch.testing.assert_close(curvature, expected)


def test_what_forward_keeps_outside_in_pieces_is_whole_for_the_next_backward():
    kept = {}

    class Weighed(pullback.Function):
        gradient = "nonlinear"

        @staticmethod
        def forward(ctx, x):
            kept["h"] = written_in_pieces(2 * x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            return kept["h"] * g * g

    def first(x):
        y = Weighed.apply(x)
        return (y * y).sum() / 2

    x = torch.tensor([0.7, 0.9, 1.4], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(first(x), x, create_graph=True)
    (found,) = torch.autograd.grad(slope.sum(), x)
    within = torch.autograd.grad(torch.func.grad(first)(x).sum(), x)[0]
    # slope = 2x y^2, where y moves by the rule: 2x (2 * 2x y)^2.
    y, h = (x * x).detach(), (2 * x).detach()
    torch.testing.assert_close(found, 2 * y * y + h * (2 * h * y) ** 2)
    torch.testing.assert_close(within, found)
