"""Random graphs of numbers equal torch, whichever way they are differentiated."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzzing import examples

from pullback import tape
from pullback.errors import UnsupportedError
from pullback.tape import Function, Variable, grad, jvp

OPERATIONS = [
    lambda m, a, b: a + b,
    lambda m, a, b: a - b,
    lambda m, a, b: a * b,
    lambda m, a, b: a / (b * b + 1),
    lambda m, a, b: m.sin(a),
    lambda m, a, b: m.cos(b) * a,
    lambda m, a, b: m.tanh(a - b),
    lambda m, a, b: m.exp(-(a * a)),
    lambda m, a, b: m.sqrt(a * a + 1),
    lambda m, a, b: m.log(a * a + b * b + 1),
    lambda m, a, b: a**3 - 2 * b,
    lambda m, a, b: -a,
    lambda m, a, b: abs(a) + b,
]


def program(steps):
    """A graph of operations on what came before, chosen by numbers."""

    def run(m, leaves):
        values = list(leaves)
        for operation, first, second in steps:
            a, b = values[first % len(values)], values[second % len(values)]
            values.append(OPERATIONS[operation % len(OPERATIONS)](m, a, b))
        total = values[-1]
        for value in values[-4:-1]:
            total = total + value
        return total

    return run


steps = st.lists(st.tuples(*[st.integers(0, 10_000)] * 3), min_size=1, max_size=25)
numbers = st.lists(st.floats(-2, 2, allow_subnormal=False), min_size=2, max_size=4)


def close(ours, theirs):
    return math.isclose(ours, theirs, rel_tol=1e-10, abs_tol=1e-10) or (
        not math.isfinite(ours) and not math.isfinite(theirs)
    )


@settings(max_examples=examples(60), deadline=None)
@given(steps=steps, numbers=numbers)
def test_random_graphs_equal_torch(steps, numbers):
    run = program(steps)
    xs = [torch.tensor(n, dtype=torch.float64, requires_grad=True) for n in numbers]
    vs = [Variable(n, requires_grad=True) for n in numbers]
    theirs, ours = run(torch, xs), run(tape, vs)
    if not math.isfinite(theirs.item()) or abs(theirs.item()) > 1e6:
        return
    assert close(ours.data, theirs.item())
    first = torch.autograd.grad(theirs, xs, create_graph=True, materialize_grads=True)
    mine = grad(ours, vs, create_graph=True, materialize_grads=True)
    scale = 1 + max(abs(g.item()) for g in first)
    assert all(close(a.data / scale, b.item() / scale) for a, b in zip(mine, first, strict=True))
    along = [0.3 * (i + 1) for i in range(len(xs))]
    slope = sum(g.item() * a for g, a in zip(first, along, strict=True))
    tangents = tuple(Variable(a) for a in along)
    _, change = jvp(lambda *v: run(tape, v), tuple(Variable(n) for n in numbers), tangents)
    assert close(change.data / scale, slope / scale)
    theirs_second = sum(g * a for g, a in zip(first, along, strict=True))
    ours_second = sum((g * a for g, a in zip(mine, along, strict=True)), Variable(0.0))
    if theirs_second.requires_grad and ours_second.requires_grad:
        second = torch.autograd.grad(theirs_second, xs, materialize_grads=True)
        again = grad(ours_second, vs, materialize_grads=True)
        scale = scale + max(abs(g.item()) for g in second)
        assert all(
            close(a.data / scale, b.item() / scale) for a, b in zip(again, second, strict=True)
        )


# A Function y = x0 (x1^2 + c x1) whose backward is right, and whose way of getting at one of the
# numbers in it is drawn at random: some ways the tape can follow, the others it must refuse.

WAYS = [
    "input", "data", "float", "attribute", "saved number", "saved intermediate", "closure",
    "text", "nested attribute", "detached", "default", "unrecorded",
]  # fmt: skip


def hidden(way, which):
    """The Function, with input number ``which`` reaching backward in a given way."""
    store = {}

    class Hidden(Function):
        @staticmethod
        def forward(ctx, a, b):
            chosen = (a, b)[which]
            saved = chosen
            if way == "attribute":
                ctx.number = chosen.data * 1.0
            elif way == "nested attribute":
                ctx.number = {"deep": [chosen.data * 1.0]}
            elif way == "text":
                ctx.number = repr(chosen.data)
            elif way == "saved number":
                saved = chosen.data * 1.0
            elif way == "saved intermediate":
                saved = chosen * 1.0
            elif way in ("closure", "default"):
                store["number"] = chosen.data * 1.0
            ctx.save_for_backward(a, b, saved)
            return a * (b * b + b * 0.5)

        @staticmethod
        def backward(ctx, g, default=store):
            a, b, saved = ctx.saved_variables
            if way == "attribute":
                value = ctx.number
            elif way == "nested attribute":
                value = ctx.number["deep"][0]
            elif way == "text":
                value = float(ctx.number)
            elif way in ("closure", "default"):
                value = default["number"]
            elif way == "data":
                value = (a, b)[which].data
            elif way == "float":
                value = Variable(float((a, b)[which]))
            elif way == "detached":
                value = (a, b)[which].detach()
            elif way == "unrecorded":
                with tape.no_grad():
                    value = (a, b)[which] * 1.0
            else:
                value = saved
            a, b = (value, b) if which == 0 else (a, value)
            return g * (b * b + b * 0.5), g * a * (b * 2 + 0.5)

    return Hidden


def true_hessian_times(a, b, u):
    """The product of the Hessian of a (b^2 + b/2) with u."""
    cross = 2 * b + 0.5
    return [cross * u[1], cross * u[0] + 2 * a * u[1]]


@settings(max_examples=examples(60), deadline=None)
@given(
    way=st.sampled_from(WAYS),
    which=st.integers(0, 1),
    point=st.tuples(*[st.floats(-2, 2, allow_subnormal=False)] * 2),
    along=st.tuples(*[st.floats(-2, 2, allow_subnormal=False)] * 2),
    mode=st.sampled_from(["reverse", "forward over reverse", "reverse over forward"]),
)
def test_a_hidden_dependence_is_right_or_refused(way, which, point, along, mode):
    function = hidden(way, which)
    leaves = [Variable(p, requires_grad=True) for p in point]
    tangents = tuple(Variable(u) for u in along)

    def slope(*v):
        return grad(function.apply(*v), v, create_graph=True)

    try:
        if mode == "reverse":
            first = slope(*leaves)
            total = first[0] * along[0] + first[1] * along[1]
            answer = [g.data for g in grad(total, leaves, materialize_grads=True)]
        elif mode == "forward over reverse":
            answer = [g.data for g in jvp(slope, tuple(leaves), tangents)[1]]
        else:
            change = jvp(function.apply, tuple(leaves), tangents)[1]
            answer = [g.data for g in grad(change, leaves, materialize_grads=True)]
    except UnsupportedError:
        assert way != "input", "what the tape can follow was refused"
        return
    truth = true_hessian_times(*point, along)
    assert answer == pytest.approx(truth, rel=1e-9, abs=1e-5), (way, which, mode)


def test_first_order_is_right_whatever_is_hidden():
    draw = random.Random(1)
    for way in WAYS:
        for which in (0, 1):
            a, b = draw.uniform(-2, 2), draw.uniform(-2, 2)
            leaves = [Variable(a, requires_grad=True), Variable(b, requires_grad=True)]
            gradients = grad(hidden(way, which).apply(*leaves), leaves)
            truth = [b * b + b / 2, a * (2 * b + 0.5)]
            assert [g.data for g in gradients] == pytest.approx(truth)


def test_the_slope_of_a_power_changes_where_the_exponent_is_zero():
    """d^2 (a^b) / da db = (1 + b log a) a^(b-1), which is 1/a at b = 0."""
    for first, second in ((0, 1), (1, 0)):
        leaves = Variable(1.3, requires_grad=True), Variable(0.0, requires_grad=True)
        (slope,) = grad(leaves[0] ** leaves[1], leaves[first], create_graph=True)
        assert slope.data == pytest.approx([0.0, math.log(1.3)][first])
        assert grad(slope, leaves[second])[0].data == pytest.approx(1 / 1.3)
    for base in (0.0, 1e-320, math.nan):  # where the slope alone would be no number
        leaves = Variable(base, requires_grad=True), Variable(0.0, requires_grad=True)
        assert grad(leaves[0] ** leaves[1], leaves[0])[0].data == 0.0
