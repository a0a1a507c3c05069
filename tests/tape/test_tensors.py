"""Tensors on the tape, and graphs that go through torch and the tape and back, in one backward."""

import contextlib
import gc
import math
import random
import threading
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzzing import examples
from torch.autograd import forward_ad

from pullback.errors import ArgumentError, ArgumentTypeError, DefinitionError, UnsupportedError
from pullback.internal.torch import FakeTensorMode
from pullback.tape import (
    Function,
    Variable,
    _bridges,
    backward,
    grad,
    jvp,
    no_grad,
    sin,
    stack,
    vmap,
)
from pullback.tape.tensor import call, from_torch, to_torch


def tensor(*numbers, requires_grad=False):
    return torch.tensor(numbers, dtype=torch.float64, requires_grad=requires_grad)


def test_arithmetic_on_tensors_equals_torch():
    x, y = Variable(tensor(1.0, 2.0), requires_grad=True), Variable(3.0, requires_grad=True)
    z = sin(x) * y + x**2 / 2 - abs(-x)
    z.backward(Variable(tensor(1.0, -1.0)))
    a, b = tensor(1.0, 2.0, requires_grad=True), torch.tensor(3.0, dtype=torch.float64)
    b.requires_grad_()
    (torch.sin(a) * b + a**2 / 2 - abs(-a)).backward(tensor(1.0, -1.0))
    assert torch.equal(x.grad.data, a.grad)
    assert y.grad.data == pytest.approx(b.grad.item())
    assert x[0].data == 1.0
    x.grad = None
    (x[1] * 3).backward()
    assert x.grad.data.tolist() == [0.0, 3.0]


# A random program of steps that are each done by torch or by the tape, crossing at random.

STEPS = [
    lambda m, a, b: a * b,
    lambda m, a, b: a + b * 2,
    lambda m, a, b: m.sin(a) - b,
    lambda m, a, b: a / (b * b + 1),
]


@settings(max_examples=examples(60), deadline=None)
@given(
    steps=st.lists(st.tuples(*[st.integers(0, 99)] * 4), min_size=1, max_size=10),
    ends=st.booleans(),
    seed=st.integers(0, 99),
)
def test_programs_that_cross_at_random_equal_torch(steps, ends, seed):
    from pullback import tape

    draw = random.Random(seed)
    numbers = [draw.uniform(-2, 2) for _ in range(3)]
    plain = [torch.tensor(n, dtype=torch.float64, requires_grad=True) for n in numbers]
    truth = list(plain)
    # Half of the leaves are torch's, half are the tape's.
    leaves = [
        torch.tensor(n, dtype=torch.float64, requires_grad=True)
        if i % 2 else Variable(n, requires_grad=True)
        for i, n in enumerate(numbers)
    ]  # fmt: skip
    values = list(leaves)

    def onto(value):
        return value if isinstance(value, Variable) else from_torch(value, number=True)

    def off(value):
        return to_torch(value) if isinstance(value, Variable) else value

    for step, first, second, side in steps:
        rule = STEPS[step % len(STEPS)]
        i, j = first % len(values), second % len(values)
        truth.append(rule(torch, truth[i], truth[j]))
        if side % 2:
            values.append(rule(tape, onto(values[i]), onto(values[j])))
        else:
            values.append(rule(torch, off(values[i]), off(values[j])))
    total_truth = sum(truth[3:], torch.tensor(0.0, dtype=torch.float64))
    total_truth.backward()
    if ends:
        total = Variable(0.0)
        for value in values[3:]:
            total = total + onto(value)
        assert total.data == pytest.approx(total_truth.item())
    else:
        total = sum(map(off, values[3:]), torch.tensor(0.0, dtype=torch.float64))
    if not total.requires_grad:
        return
    total.backward()
    for leaf, true in zip(leaves, plain, strict=True):
        mine = None if leaf.grad is None else float(
            leaf.grad.data if isinstance(leaf, Variable) else leaf.grad
        )  # fmt: skip
        theirs = None if true.grad is None else true.grad.item()
        if theirs is None or mine is None:
            assert not theirs
            assert not mine
        else:
            assert math.isclose(mine, theirs, rel_tol=1e-9, abs_tol=1e-9)


def test_second_order_across_both_bridges():
    x = Variable(3.0, requires_grad=True)
    w = tensor(1.0, 2.0, requires_grad=True)
    h = torch.sin(w)
    loss = from_torch((to_torch((from_torch(h) * x) ** 2) * h * w).sum(), number=True)
    (first,) = grad(loss, x, create_graph=True)
    (second,) = grad(first, x)
    assert second.data == pytest.approx(2 * (torch.sin(w) ** 3 * w).sum().item())


def test_torch_differentiates_twice_through_the_tape():
    w = tensor(2.0, requires_grad=True)
    y = to_torch(sin(from_torch(w)) * from_torch(w))
    (first,) = torch.autograd.grad(y, w, torch.ones(1).double(), create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), w)
    assert second.item() == pytest.approx(2 * math.cos(2) - 2 * math.sin(2))


def test_forward_mode_through_torch():
    def f(x, y):
        return call(lambda a, b: torch.exp(a).sum() * b, x, y, number=True)

    x, y = Variable(tensor(0.1, 0.2)), Variable(2.0)
    out, change = jvp(f, (x, y), (Variable(tensor(1.0, 0.0)), Variable(0.5)))
    e = torch.exp(tensor(0.1, 0.2))
    assert out.data == pytest.approx(2 * e.sum().item())
    assert change.data == pytest.approx(2 * e[0].item() + 0.5 * e.sum().item())


def test_a_part_of_torchs_graph_has_hooks_as_every_node_has():
    weight = tensor(2.0, requires_grad=True)
    x = Variable(3.0, requires_grad=True)
    loss = from_torch((to_torch(x * 2) * weight).sum(), number=True) * 5
    [(node, _)] = [edge for edge in loss.grad_fn.next_functions if edge[0]]
    node.register_hook(lambda sent, received: (sent[0] * 10,))
    loss.backward()
    assert x.grad.data == 200.0


def test_a_number_a_tensor_and_a_text_flow_back_together():
    class Score(Function):
        @staticmethod
        def forward(ctx, text, weights, scale):
            ctx.save_for_backward(text, weights, scale)
            counts = torch.tensor([len(word) for word in text.data.split()], dtype=torch.float64)
            ctx.counts = counts
            return Variable(float(weights.data @ counts) * scale.data)

        @staticmethod
        def backward(ctx, g):
            _, weights, scale = ctx.saved_variables
            score = float(weights.data @ ctx.counts)
            return (
                Variable(f"the slope is {g.data}"),
                Variable(ctx.counts * scale.data * g.data),
                g * score,
            )

    text = Variable("one three", role="answer", requires_grad=True)
    raw = tensor(0.5, 0.25, requires_grad=True)
    scale = Variable(2.0, requires_grad=True)
    score = Score.apply(text, from_torch(raw * 2), scale)
    backward(score * score)
    assert score.data == 11.0
    assert scale.grad.data == pytest.approx(2 * 11.0 * 5.5)
    assert torch.allclose(raw.grad, 2 * 11.0 * 2 * 2 * tensor(3.0, 5.0))
    assert [note.data for note in text.grad] == ["the slope is 22.0"]


def test_shapes_dtypes_and_histories_are_looked_at():
    class Wrong(Function):
        @staticmethod
        def forward(ctx, x, made):
            ctx.made = made
            return x * 1.0

        @staticmethod
        def backward(ctx, g):
            return ctx.made, None

    x = Variable(tensor(1.0, 2.0), requires_grad=True)
    with pytest.raises(DefinitionError, match="shape"):
        Wrong.apply(x, Variable(torch.ones(3))).backward(Variable(torch.ones(2)))
    with pytest.raises(DefinitionError, match="tensor Variable"):
        Wrong.apply(x, Variable(1.0)).backward(Variable(torch.ones(2)))
    with pytest.raises(ArgumentError, match="history in torch"):
        Variable(tensor(1.0, requires_grad=True) * 2)
    with pytest.raises(ArgumentError):
        Variable(torch.tensor([1]), requires_grad=True)
    with pytest.raises(ArgumentTypeError):
        to_torch(Variable("text"))
    with pytest.raises(ArgumentTypeError):
        from_torch(1.0)
    with pytest.raises(ArgumentError):
        from_torch(tensor(1.0, 2.0), number=True)
    single = Variable(torch.ones(2), requires_grad=True)
    (single * Variable(tensor(1.0, 2.0))).backward(Variable(tensor(1.0, 1.0)))
    assert single.grad.data.dtype is torch.float32


def test_a_tensor_changed_in_place_since_it_was_saved():
    class Save(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2.0

        @staticmethod
        def backward(ctx, g):
            ctx.saved_variables
            return g * 2.0

    x = Variable(tensor(1.0), requires_grad=True)
    y = Save.apply(x)
    x.data.add_(1.0)
    with pytest.raises(RuntimeError, match="changed in place"):
        y.backward()


def test_a_failure_on_the_tape_gives_torch_nothing_and_can_be_retried():
    fails = [True]

    class Once(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            if fails.pop():
                raise ValueError("once")
            return g

    w = tensor(2.0, requires_grad=True)
    x = Variable(1.0, requires_grad=True)
    y = from_torch((w * w).sum(), number=True) * Once.apply(x)
    with pytest.raises(ValueError, match="once"):
        y.backward()
    assert w.grad is None
    fails.append(False)
    y.backward()
    assert (w.grad.item(), x.grad.data) == (4.0, 4.0)


def test_threads_cross_at_the_same_time():
    w = tensor(2.0, requires_grad=True)
    results = []

    def run():
        x = Variable(3.0, requires_grad=True)
        h = torch.sin(w)
        y = from_torch((to_torch(from_torch(h) * x) * h).sum(), number=True)
        for _ in range(10):
            (g,) = grad(y, x, retain_graph=True)
            results.append(g.data)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [pytest.approx(math.sin(2) ** 2)] * 40


def test_nothing_is_recorded_where_nothing_is_wanted():
    with no_grad():
        x = Variable(tensor(1.0), requires_grad=True)
        assert not to_torch(x).requires_grad
        assert not from_torch(tensor(1.0, requires_grad=True)).requires_grad


def test_a_derivative_of_torch_that_the_tape_would_drop_is_refused():
    three = torch.tensor([3.0])
    weight = torch.ones(3, requires_grad=True)
    x = Variable(2.0, requires_grad=True)

    def across(t):
        return to_torch(from_torch(t) * 3.0)

    for lost in (
        lambda: torch.func.jvp(across, (three,), (three,)),
        lambda: torch.func.grad(lambda t: across(t).sum())(three),
        lambda: torch.vmap(across)(weight),
        lambda: torch.func.grad(lambda t: to_torch(Variable(t) * 3.0))(torch.tensor(1.0)),
        lambda: torch.func.grad(lambda t: t * to_torch(x))(torch.tensor(1.0)),
    ):
        with pytest.raises(UnsupportedError):
            lost()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(three, three)
        with pytest.raises(UnsupportedError, match="tangent"):
            across(dual)
        assert forward_ad.unpack_dual(dual * to_torch(x)).tangent.item() == 6.0
    assert torch.vmap(across)(torch.ones(3)).tolist() == [3.0] * 3


def test_a_gradient_that_torch_only_asks_for_is_added_to_no_leaf_of_the_tape():
    weight = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    scale = Variable(3.0, requires_grad=True)
    loss = to_torch(from_torch(weight, number=True) * scale) * weight  # scale w^2
    (slope,) = torch.autograd.grad(loss, weight, create_graph=True)
    loss.backward(inputs=[weight], retain_graph=True)
    assert (slope.item(), weight.grad.item(), scale.grad) == (12.0, 12.0, None)
    loss.backward(retain_graph=True)
    assert scale.grad.data == 4.0
    slope.backward()  # of 2 scale w
    assert (scale.grad.data, weight.grad.item()) == (8.0, 30.0)


def written(rule):
    """A Function of torch that cubes, with a backward of somebody's own."""

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            return rule(g, *ctx.saved_tensors)

    return Cube.apply


def test_a_backward_of_torch_that_is_not_linear_is_never_transposed():
    x, t = Variable(tensor(1.0, 2.0)), Variable(tensor(1.0, -1.0))
    cube = written(lambda g, x: g * 3 * x * x)
    pushed = jvp(lambda v: call(lambda u: torch.sin(cube(u)), v), (x,), (t,))[1]
    assert pushed.data.tolist() == pytest.approx([3 * math.cos(1.0), -12 * math.cos(8.0)])
    for wrong in (lambda g, x: g * g, lambda g, x: g.relu() * x, lambda g, x: g / g.norm()):
        with pytest.raises(UnsupportedError, match=r"CubeBackward of torch is not linear"):
            jvp(lambda v, wrong=wrong: call(written(wrong), v), (x,), (t,))


def test_a_tangent_of_complex_tensors_equals_torch():
    x = torch.tensor([1 + 0.3j, -0.5j], dtype=torch.complex128)
    t = torch.tensor([1 + 2j, 0.5], dtype=torch.complex128)
    for function in (lambda u: u * (2 + 3j) * u, lambda u: u.conj() * u.abs(), torch.angle):
        _, change = jvp(lambda v, f=function: call(f, v), (Variable(x),), (Variable(t),))
        torch.testing.assert_close(change.data, torch.func.jvp(function, (x,), (t,))[1])


def test_a_function_of_tensors_is_called_for_each_item_of_a_batch():
    xs = [Variable(tensor(number), requires_grad=True) for number in (1.0, 2.0)]
    out = vmap(lambda x: call(lambda u: torch.sin(u).sum(), x, number=True))(xs)
    assert out.data == [math.sin(1.0), math.sin(2.0)]
    out.backward(Variable([1.0, 2.0]))
    assert [x.grad.data.item() for x in xs] == [math.cos(1.0), 2 * math.cos(2.0)]


class Rule(Function):
    @staticmethod
    def forward(ctx, x):
        return Variable(list(x.data))

    @staticmethod
    def backward(ctx, g):
        return g


def test_tangents_of_tensors_go_through_lists_and_mappings():
    def program(x, n):
        held = stack([x, stack({"n": n})])
        return call(lambda u, v: (u * v).sum(), held[0], held[1]["n"], number=True) * 2, held

    (out, _), (change, pair) = jvp(
        program, (Variable(tensor(1.0, 2.0)), Variable(3.0)), (Variable(tensor(1.0, 1.0)), None)
    )
    assert (out.data, change.data) == (18.0, 12.0)
    assert (pair.data[0].tolist(), pair.data[1]) == ([1.0, 1.0], {"n": 0.0})
    x, t = Variable([tensor(1.0), 2.0]), Variable([tensor(5.0), 7.0])
    assert jvp(Rule.apply, (x,), (t,))[1].data == [tensor(5.0), 7.0]


def test_a_backward_that_sends_a_tensor_for_nothing_is_never_transposed():
    class Constant(Rule):
        @staticmethod
        def backward(ctx, g):
            return stack([g[0], Variable(tensor(1.0))])

    x = Variable([tensor(1.0), tensor(2.0)])
    with pytest.raises(UnsupportedError, match="sends something for nothing"):
        jvp(Constant.apply, (x,), (x,))


def test_a_tensor_in_a_gradient_of_a_list_is_its_leafs_own():
    given = Variable([tensor(1.0), {"n": 2.0}])
    leaves = [Variable([tensor(0.0), {"n": 0.0}], requires_grad=True) for _ in range(2)]
    backward(leaves, [given, given])
    leaves[0].grad.data[0].add_(5.0)
    leaves[0].grad.data[1]["n"] = 7.0
    assert given.data == leaves[1].grad.data == [tensor(1.0), {"n": 2.0}]


def test_what_inference_made_is_a_constant_like_any_other():
    with torch.inference_mode():
        factor, start = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    x = Variable(start, requires_grad=True)
    y = call(torch.sum, x * x * from_torch(factor))
    y.backward()
    assert x.grad.data.tolist() == [6.0, 16.0]


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph=True")  # torch's own
@pytest.mark.parametrize("drive", [Variable.backward, lambda y, **how: to_torch(y).backward(**how)])
def test_what_a_leaf_of_torch_is_given_has_a_history_whoever_drives(drive):
    w = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    v = from_torch(w, number=True)
    drive(v * v * v, create_graph=True)
    assert torch.autograd.grad(w**3 + w.grad, w)[0].item() == 45.0  # 3 w^2 + 6 w


@pytest.mark.parametrize("number", [True, False])
@pytest.mark.parametrize("drive", [Variable.backward, lambda y: to_torch(y).backward()])
def test_a_hook_on_a_leaf_of_torch_runs_once_whoever_drives(drive, number):
    w, seen = torch.tensor(3.0, dtype=torch.float64, requires_grad=True), []
    handle = w.register_hook(lambda g: seen.append(g.item()) or g * 2)
    w.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.item()))
    v, u = from_torch(w, number=number), Variable(2.0, requires_grad=True)
    drive(v * v)
    assert (w.grad.item(), seen) == (12.0, [6.0, 12.0])
    w.grad = None
    drive(from_torch(to_torch(u * v) * w, number=number))  # with a value of the tape upstream
    assert (w.grad.item(), u.grad.data) == (24.0, 9.0)
    handle.remove()
    drive(v * v)
    assert w.grad.item() == 30.0


def test_hooks_of_leaves_of_torch_run_where_something_is_given_to_them():
    w, u, seen = tensor(3.0, requires_grad=True), Variable(2.0, requires_grad=True), []
    w.register_hook(seen.append)
    y = from_torch((to_torch(u) * w).sum(), number=True)
    assert (grad(y, u)[0].data, seen) == (3.0, [])


def test_a_hook_that_is_added_or_removed_while_a_leaf_is_given_its_gradient_stays_so():
    w, seen = tensor(3.0, requires_grad=True), []
    handle = w.register_hook(lambda g: seen.append("first"))

    def change(leaf):
        handle.remove()
        w.register_hook(lambda g: seen.append("second"))

    once = w.register_post_accumulate_grad_hook(change)
    for _ in range(2):
        from_torch((w * w).sum(), number=True).backward()
        once.remove()
    assert seen == ["first", "second"]


def test_parts_of_torch_upstream_of_several_crossings_run_once_as_in_torch():
    w, seen = torch.tensor(3.0, dtype=torch.float64, requires_grad=True), []
    w.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.item()))
    cubed = written(lambda g, x: seen.append(g.item()) or g.clamp(-1, 1) * 3 * x**2)(w)
    y = from_torch(cubed * 2, number=True) + from_torch(cubed * 3, number=True)
    y.backward()
    assert (w.grad.item(), seen) == (27.0, [5.0, 27.0])


def test_a_failure_in_torch_gives_nothing_and_can_be_retried():
    fails, w, x = [True], tensor(2.0, requires_grad=True), Variable(1.0, requires_grad=True)

    def rule(g, x):
        if fails:
            raise ValueError("once")
        return g * 3 * x**2

    y = from_torch((written(rule)(w) + w).sum(), number=True) * x
    with pytest.raises(ValueError, match="once"):
        y.backward()
    assert (w.grad, x.grad) == (None, None)
    fails.clear()
    y.backward()
    assert (w.grad.item(), x.grad.data) == (13.0, 10.0)


@pytest.mark.parametrize("drive", [Variable.backward, lambda y: to_torch(y).backward()])
def test_a_sparse_gradient_of_a_leaf_of_torch(drive):
    table = torch.ones(3, 2, requires_grad=True)
    rows = lambda w: torch.nn.functional.embedding(torch.tensor([0, 2, 0]), w, sparse=True).sum()  # noqa: E731
    drive(call(rows, from_torch(table)))
    assert table.grad.is_sparse
    assert table.grad.to_dense()[:, 0].tolist() == [2.0, 0.0, 1.0]
    (call(rows, from_torch(table)) + from_torch(table.sum())).backward()
    assert table.grad.to_dense()[:, 0].tolist() == [5.0, 1.0, 3.0]


def test_a_batch_of_gradients_is_refused_by_name():
    a = tensor(1.0, 2.0, requires_grad=True)
    square = lambda a: to_torch(from_torch(a) * from_torch(a))  # noqa: E731
    with pytest.raises(UnsupportedError, match="is_grads_batched"):
        torch.autograd.grad(square(a), a, torch.eye(2, dtype=a.dtype), is_grads_batched=True)
    with pytest.raises(UnsupportedError, match="vectorize"):
        torch.autograd.functional.jacobian(square, a, vectorize=True)


@pytest.mark.parametrize("drive", [Variable.backward, lambda y, *how: to_torch(y).backward(*how)])
def test_parts_of_the_tape_upstream_of_several_crossings_run_once(drive):
    seen, w, s = [], tensor(1.0, requires_grad=True), Variable(3.0, requires_grad=True)

    class Clip(Function):
        @staticmethod
        def forward(ctx, x):
            return Variable(x.data)

        @staticmethod
        def backward(ctx, g):
            seen.append(g.data)
            return Variable(min(g.data, 1.0))

    u = Clip.apply(s)
    y = from_torch((to_torch(u) * 2 + to_torch(u * 3) * w).sum(), number=True)
    drive(y, None, True)
    assert (seen, s.grad.data, w.grad.item()) == ([5.0], 1.0, 9.0)
    drive(y)
    assert (seen, s.grad.data) == ([5.0, 5.0], 2.0)


def test_what_a_failed_backward_of_torch_held_of_the_tape_is_gone_with_the_next():
    s, held = Variable(3.0, requires_grad=True), []

    def rule(g, x):
        raise ValueError("failed")

    for _ in range(3):
        part = s * 2
        held.append(weakref.ref(part.grad_fn))
        y = to_torch(part) + to_torch(s) * written(rule)(tensor(1.0, requires_grad=True)).sum()
        with contextlib.suppress(ValueError):
            y.backward()
        del part, y
        gc.collect()
    assert (s.grad, [each() for each in held[:-1]]) == (None, [None, None])  # torch keeps the last


def test_values_leave_the_tape_whatever_surrounds_it(monkeypatch):
    def slope():
        x = Variable(torch.ones(2), requires_grad=True)
        to_torch(x * x).sum().backward()
        return x.grad.data

    with FakeTensorMode():
        monkeypatch.setattr(_bridges, "_ANCHOR", _bridges._anchor())  # as if imported here
        assert slope().shape == (2,)
    with torch.device("meta"):
        assert slope().is_meta
    torch.set_default_dtype(torch.float64)
    try:
        assert slope().dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert slope().tolist() == [2.0, 2.0]
    with torch.inference_mode():
        monkeypatch.setattr(_bridges, "_ANCHOR", _bridges._anchor())
    assert slope().tolist() == [2.0, 2.0]


def test_threads_that_share_a_leaf_of_torch_with_a_hook():
    w, seen = torch.tensor(1.0, dtype=torch.float64, requires_grad=True), []
    w.register_hook(lambda g: seen.append(g.item()) or g * 2)

    def work():
        for _ in range(100):
            x = Variable(3.0, requires_grad=True)
            (to_torch(x * x) * 2 + to_torch(x) * 3).backward()
            assert x.grad.data == 15.0
            (from_torch(w * 1, number=True) * 2).backward()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(seen), set(seen), w.grad.item()) == (600, {2.0}, 2400.0)
