"""Random programs over lists and mappings equal torch, whichever way they are differentiated."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzzing import examples

from pullback import tape
from pullback.tape import Function, Variable, grad, jvp, stack


class Roll(Function):
    """Each entry squared, times the next one."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return Variable(roll(x.data))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_variables
        before = [g[n - 1] * x[n - 1] * x[n - 1] for n in range(len(x))]
        after = [g[n] * 2.0 * x[n] * x[(n + 1) % len(x)] for n in range(len(x))]
        return stack([a + b for a, b in zip(before, after, strict=True)])


class Same(Function):
    """The same list; its gradient is handed on as it is."""

    @staticmethod
    def forward(ctx, x):
        return Variable(x.data)

    @staticmethod
    def backward(ctx, g):
        return g


class Pair(Function):
    """Of a nested argument a number and a mapping."""

    @staticmethod
    def forward(ctx, held, c):
        ctx.save_for_backward(held["a"], held["rest"][0], c)
        return tuple(
            map(Variable, pair({"a": held["a"].data, "rest": [held["rest"][0].data]}, c.data))
        )

    @staticmethod
    def backward(ctx, g, h):
        a, b, c = ctx.saved_variables
        return {"a": g * b + h["s"] * c, "rest": [g * a + h["t"] * 2.0 * b]}, g + h["s"] * a


def roll(x):
    return [x[n] * x[n] * x[(n + 1) % len(x)] for n in range(len(x))]


def pair(held, c):
    a, b = held["a"], held["rest"][0]
    return a * b + c, {"s": a * c, "t": b * b}


# What a program is written in: torch has lists of tensors where the tape has Variables of lists.
THEIRS = {"stack": lambda values: values, "roll": roll, "same": list, "pair": pair, "m": torch}
OURS = {"stack": stack, "roll": Roll.apply, "same": Same.apply, "pair": Pair.apply, "m": tape}


def run(names, steps, leaves):
    numbers, lists = list(leaves), [names["stack"](list(leaves))]
    for kind, first, second in steps:
        a, b = numbers[first % len(numbers)], numbers[second % len(numbers)]
        one, other = lists[first % len(lists)], lists[second % len(lists)]
        if kind == 0:
            numbers.append(names["m"].tanh(a * b))
        elif kind == 1:
            lists.append(names["stack"]([a, b, a]))
        elif kind == 2:
            numbers.append(one[second % len(one)] * 0.5 + names["stack"]({"x": a, "y": b})["x"])
        elif kind == 3:
            lists.append((one + other)[-3:])
        elif kind == 4:
            lists.append(names["roll"](names["stack"]([names["m"].sin(each) for each in one])))
        elif kind == 5:
            lists.append(names["same"](one))
        else:
            number, both = names["pair"]({"a": a, "rest": [b]}, numbers[-1])
            numbers += [names["m"].sin(number), names["m"].sin(both["st"[second % 2]])]
    total = numbers[-1]
    for each in (*numbers[-4:-1], *lists[-1], *lists[-2 % len(lists)]):
        total = total + each
    return total


steps = st.lists(st.tuples(st.integers(0, 6), *[st.integers(0, 50)] * 2), min_size=1, max_size=12)
three = st.tuples(*[st.floats(-1.2, 1.2, allow_subnormal=False)] * 3)


@settings(max_examples=examples(60), deadline=None)
@given(steps=steps, point=three, along=three)
def test_random_programs_equal_torch(steps, point, along):
    xs = [torch.tensor(n, dtype=torch.float64, requires_grad=True) for n in point]
    seed = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    first = torch.autograd.grad(run(THEIRS, steps, xs), xs, seed, create_graph=True)
    slope = sum(g * u for g, u in zip(first, along, strict=True))
    second = torch.autograd.grad(slope, [*xs, seed], materialize_grads=True)
    truth = [each.item() for each in second]

    leaves, weight = [Variable(n, requires_grad=True) for n in point], Variable(0.7)
    weight.requires_grad_()
    mine = grad(run(OURS, steps, leaves), leaves, weight, create_graph=True)
    change = sum((g * u for g, u in zip(mine, along, strict=True)), Variable(0.0))
    again = grad(change, [*leaves, weight], materialize_grads=True)
    assert [g.data for g in mine] == pytest.approx([g.item() for g in first], rel=1e-9, abs=1e-9)
    assert [g.data for g in again] == pytest.approx(truth, rel=1e-9, abs=1e-9)

    tangents = [Variable(u) for u in along]
    _, pushed = jvp(lambda *v: run(OURS, steps, v), leaves, tangents)
    assert pushed.data == pytest.approx(slope.item() / 0.7, rel=1e-9, abs=1e-9)
    if pushed.requires_grad:  # else the program is linear
        turned = grad(pushed, leaves, weight, materialize_grads=True)
        assert [g.data for g in turned] == pytest.approx(truth[:3], rel=1e-9, abs=1e-9)
