"""Derived rules are right by the structure of the call, or refused: nothing is tried at a point."""

import copy
import cProfile
import itertools
import pstats

import pytest

from pullback.errors import UnsupportedError
from pullback.tape import Function, Variable, backward, grad, jvp, no_grad, sin, stack, vmap


def rule(forward, backward, **more):
    """A Function of one Variable that saves it, and has no jvp."""

    class Rule(Function):
        @staticmethod
        def forward(ctx, a):
            ctx.save_for_backward(a)
            return Variable(forward(a.data))

    Rule.backward = staticmethod(backward)
    for name, value in more.items():
        setattr(Rule, name, value)
    return Rule


def cube_list(ctx, g):
    (a,) = ctx.saved_variables
    return stack([g[0] * (3 * a[0] * a[0]), g[1] * (2 * a[1])])


def squares_gradient(ctx, g):
    (a,) = ctx.saved_variables
    return stack([g[0] * g[0] * a[0], g[1] * a[1]])


def first_only(ctx, g):
    (a,) = ctx.saved_variables
    return g["x"] * a + 1.0 * g["y"]


def test_a_list_is_pushed_through_a_linear_backward():
    cubes = rule(lambda a: [a[0] ** 3, a[1] ** 2], cube_list)
    out, change = jvp(cubes.apply, (Variable([2.0, 3.0]),), (Variable([1.0, 10.0]),))
    assert (out.data, change.data) == ([8.0, 9.0], [12.0, 60.0])
    pair = rule(lambda a: {"x": a * a / 2, "y": a}, first_only)
    _, change = jvp(pair.apply, (Variable(3.0),), (Variable(2.0),))
    assert change.data == {"x": 6.0, "y": 2.0}


class Sum(Function):
    """x + 2 y, entry by entry; backward hands the gradient of the list on as it is."""

    @staticmethod
    def forward(ctx, x, y):
        return Variable([a + 2.0 * b for a, b in zip(x.data, y.data, strict=True)])

    @staticmethod
    def backward(ctx, g):
        return g, stack([each * 2.0 for each in g])


def test_a_gradient_of_a_list_that_is_handed_on_keeps_its_history():
    x, y = (Variable(values, requires_grad=True) for values in ([1.0, 2.0], [3.0, 4.0]))
    tangents = Variable([5.0, 7.0]), Variable([10.0, 20.0])
    assert jvp(Sum.apply, (x, y), tangents)[1].data == [25.0, 47.0]
    g = Variable([1.0, -1.0], requires_grad=True)
    (first,) = grad(Sum.apply(x, x), x, g, create_graph=True)
    assert first.data == [3.0, -3.0]
    assert grad(first, g, Variable([1.0, 10.0]))[0].data == [3.0, 30.0]


def unrecorded(ctx, g):
    with no_grad():
        return g * 2.0


@pytest.mark.parametrize(
    ("forward", "wrong", "x"),
    [
        (list, squares_gradient, [3.0, 5.0]),
        (list, lambda ctx, g: stack([abs(g[0]), g[1]]), [3.0, 5.0]),
        (lambda a: {"x": a, "y": a}, lambda ctx, g: g["x"] * g["y"], 3.0),
        (lambda a: a, lambda ctx, g: g * g, 3.0),
        (lambda a: a, lambda ctx, g: g + 1.0, 3.0),
        (lambda a: a, lambda ctx, g: sin(g), 3.0),
        (lambda a: a, lambda ctx, g: Variable(max(g.data, 0.0)), 3.0),
        (lambda a: a, lambda ctx, g: 2.0 / g, 3.0),
        (lambda a: a, lambda ctx, g: g if g > 0 else g * 2.0, 3.0),
        (lambda a: a, lambda ctx, g: g * 2.0 if g else g, 3.0),
        (lambda a: a, lambda ctx, g: copy.copy(g) * 2.0, 3.0),
        (lambda a: a, unrecorded, 3.0),
        (lambda a: [a, a], lambda ctx, g: g[0] + g[1] * g[0], 3.0),
    ],
)
def test_a_backward_that_is_not_linear_is_never_transposed(forward, wrong, x):
    func = rule(forward, wrong)
    tangent = Variable([1.0, 1.0] if isinstance(x, list) else 1.0)
    for _ in range(2):  # nothing is remembered from the first time
        with pytest.raises(UnsupportedError, match="linear"):
            jvp(func.apply, (Variable(x),), (tangent,))


def test_what_is_linear_today_is_not_trusted_tomorrow():
    mode = {"squared": False}
    func = rule(lambda a: a, lambda ctx, g: g * g if mode["squared"] else g * 2.0)
    assert jvp(func.apply, (Variable(1.0),), (Variable(1.0),))[1].data == 2.0
    mode["squared"] = True
    with pytest.raises(UnsupportedError, match="linear"):
        jvp(func.apply, (Variable(1.0),), (Variable(1.0),))


def test_a_derived_jvp_is_differentiated_again():
    cubes = rule(lambda a: a**3, lambda ctx, g: g * 3.0 * ctx.saved_variables[0] ** 2)
    x = Variable(2.0, requires_grad=True)
    _, change = jvp(cubes.apply, (x,), (Variable(1.0),))
    (second,) = grad(change, x)
    assert (change.data, second.data) == (12.0, 12.0)


def test_a_second_derivative_reads_the_record_alone():
    runs = []

    def forward(a):
        runs.append(a)
        return a**3

    cubes = rule(forward, lambda ctx, g: g * 3.0 * ctx.saved_variables[0] ** 2)
    x = Variable(2.0, requires_grad=True)
    (first,) = grad(cubes.apply(x), x, create_graph=True)
    assert grad(first, x)[0].data == 12.0
    assert runs == [2.0]  # the forward of the author is not run anywhere else

    hides = rule(lambda a: a**3, lambda ctx, g: g * (3.0 * ctx.saved_variables[0].data ** 2))
    (first,) = grad(hides.apply(x), x, create_graph=True)
    assert first.data == 12.0
    with pytest.raises(UnsupportedError, match="plain data"):
        grad(first, x)


def test_what_is_hidden_from_a_gradient_stays_hidden_from_the_derivative_of_that():
    """Of x^2, whose slope is 2x by a number, the gradient c 2x has the derivative 2x by c."""
    square = rule(lambda a: a**2, lambda ctx, g: g * (2.0 * ctx.saved_variables[0].data))
    x, c = Variable(3.0, requires_grad=True), Variable(1.0, requires_grad=True)
    (first,) = grad(square.apply(x), x, c, create_graph=True)
    (by_c,) = grad(first, c, create_graph=True)
    assert by_c.data == 6.0
    pushed = jvp(square.apply, (x,), (c,))[1]
    for hides in (by_c, pushed, grad(pushed, c, create_graph=True)[0]):
        with pytest.raises(UnsupportedError, match="plain data"):
            grad(hides * x, x)


VALUES = [2.0, 3, [1.0, [2.0]], {"a": 1.0}]  # of a text grad gives Feedback, which never changes


@pytest.mark.parametrize(
    ("way", "value"), [(backward, "text"), *itertools.product([backward, grad], VALUES)]
)
def test_a_gradient_is_nobody_elses(way, value):
    leaves = [Variable(value, requires_grad=True) for _ in range(3)]
    given = Variable("said") if value == "text" else Variable(
        float(value) if isinstance(value, int) else value)  # fmt: skip
    before = repr(given.data)
    if way is backward:
        backward([*leaves, leaves[0]], [given] * 4)
        told = [leaf.grad for leaf in leaves]
    else:
        told = list(grad([*leaves, leaves[0]], leaves, [given] * 4))
    assert all(a is not b for n, a in enumerate(told) for b in [given, *told[:n]])
    first = told[1]
    if isinstance(value, list):
        first.data[1][0] = 99.0
    elif isinstance(value, dict):
        first.data["a"] = 99.0
    elif value == "text":
        first.append(Variable("more"))
    else:
        first.data = 99.0
    assert repr(given.data) == before
    assert "99" not in repr(told[2])
    assert "more" not in repr(told[2])
    assert "99" not in repr(told[0])


def test_a_gradient_of_ones_own_keeps_its_history():
    x, g = Variable(2.0, requires_grad=True), Variable(3.0, requires_grad=True)
    (x * 1.0).backward(g, create_graph=True)
    y = Variable(1.0, requires_grad=True)
    backward(y, g, create_graph=True)
    assert y.grad is not g
    assert grad(y.grad + x.grad, g)[0].data == 2.0


def calls(function, *args):
    """How many calls of functions it takes, which no other load on the machine changes."""
    profile = cProfile.Profile()
    profile.runcall(function, *args)
    return pstats.Stats(profile).total_calls  # type: ignore[missing-attribute]


def test_forward_mode_costs_the_same_at_each_step_of_a_long_way():
    cubes = rule(lambda a: a**3, lambda ctx, g: g * 3.0 * ctx.saved_variables[0] ** 2)

    def chain(size):
        def run(x):
            for _ in range(size):
                x = cubes.apply(x) * 0.5
            return x

        jvp(run, (Variable(0.9),), (Variable(1.0),))

    def batch(size):
        values = Variable([1.0] * size)
        jvp(vmap(lambda v: v * v), (values,), (values,))

    for program in (chain, batch):
        program(2)
        assert calls(program, 80) < 2.2 * calls(program, 40)


def test_forward_mode_of_arithmetic_costs_no_more_than_both_ways_of_reverse_mode():
    def run(x):
        for _ in range(50):
            x = sin(x) * x + x / 3.0
        return x

    def reverse():
        x = Variable(0.9, requires_grad=True)
        run(x).backward()

    one = Variable(1.0)
    assert calls(jvp, run, (Variable(0.9),), (one,)) < 1.5 * calls(reverse)
