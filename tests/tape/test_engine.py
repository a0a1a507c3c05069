"""Depth, freeing, graphs to look at, and that torch is never imported."""

import gc
import json
import subprocess
import sys
import textwrap
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from pullback.errors import ArgumentError, GraphError, UnsupportedError
from pullback.tape import (
    Function,
    Variable,
    enable_grad,
    grad,
    is_grad_enabled,
    jvp,
    no_grad,
    sin,
    stack,
)
from pullback.tape.graph import from_json, summary, to_dot, to_json


@pytest.fixture
def little_stack():
    """Runs a call at Python's default recursion limit, in a thread with a stack of 64 KiB.

    The limit is the process's: Inductor raises it to 2,000 when it compiles anything, so what
    ran before in this process decides it where it is not set.
    """
    limit, size = sys.getrecursionlimit(), threading.stack_size()

    def run(call):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(call).result()

    sys.setrecursionlimit(1_000)
    threading.stack_size(64 * 1024)
    try:
        yield run
    finally:
        threading.stack_size(size)
        sys.setrecursionlimit(limit)


def test_a_chain_deeper_than_the_stack(little_stack):
    depth = 30_000

    def chain():
        x = Variable(1.0, requires_grad=True)
        c = Variable(0.99999, requires_grad=True)
        y = x
        for _ in range(depth):
            y = y * c
        last = weakref.ref(y.grad_fn)
        y.backward()
        del y
        return x.grad.data, c.grad.data, last()

    gc.disable()  # what it takes to free the chain is not the collector, which would cost seconds
    try:
        slope, total, last = little_stack(chain)
    finally:
        gc.enable()
    assert slope == pytest.approx(0.99999**depth)
    assert total == pytest.approx(depth * 0.99999 ** (depth - 1))
    assert last is None


def test_a_deep_chain_goes_forward_twice_back_and_is_looked_at(little_stack):
    depth = 3_000

    def run(x):
        for _ in range(depth):
            x = x * 1.0001
        return x

    def go():
        _, change = jvp(run, (Variable(2.0),), (Variable(1.0),))
        x = Variable(2.0, requires_grad=True)
        y = run(x * x)
        (first,) = grad(y, x, create_graph=True)
        (second,) = grad(first, x)
        lines = len(summary(y, limit=50).splitlines())
        return change.data, second.data, lines, to_json(y), to_json(from_json(to_json(y)))

    change, second, lines, before, after = little_stack(go)
    assert change == pytest.approx(1.0001**depth)
    assert second == pytest.approx(2 * 1.0001**depth)
    assert lines == 51
    assert before == after


def test_graphs_are_freed_without_the_collector():
    class Keeps(Function):
        @staticmethod
        def forward(ctx, x):
            y = x * x
            ctx.save_for_backward(x, y)
            ctx.kept = {"nested": [y]}
            return y

        @staticmethod
        def backward(ctx, g):
            _, y = ctx.saved_variables
            return g * y * ctx.kept["nested"][0]

    gc.disable()
    try:
        x = Variable(2.0, requires_grad=True)
        y = Keeps.apply(x)
        assert grad(y, x, retain_graph=True)[0].data == 16.0
        (first,) = grad(y, x, create_graph=True)
        references = [weakref.ref(y), weakref.ref(y.grad_fn), weakref.ref(first)]
        del y, first
        assert [reference() for reference in references] == [None] * 3
    finally:
        gc.enable()


def test_torch_is_never_imported():
    program = """
        import sys
        import pullback
        from pullback.tape import *
        from pullback.tape import graph

        x, t = Variable(2.0, requires_grad=True), Variable("a", requires_grad=True)
        (sin(x) * x + x**2).backward()
        (t + "b").backward(Variable("short"))
        jvp(lambda v: v * v, (x,), (Variable(1.0),))
        vmap(lambda v: v * v)([1.0, 2.0])
        graph.to_json(x * x), graph.summary(x * x), graph.to_dot(t + t)
        assert pullback.tape.Variable is Variable
        try:
            Variable(object())
        except TypeError:
            pass
        print([name for name in ("torch", "numpy", "numba") if name in sys.modules])
    """
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert answer.stdout.strip() == "[]", answer.stderr


def test_the_tape_works_where_torch_is_missing():
    program = """
        import sys

        class NoTorch:
            def find_spec(self, fullname, path=None, target=None):
                if fullname.partition(".")[0] == "torch":
                    raise ModuleNotFoundError("No module named 'torch'", name=fullname)

        sys.meta_path.insert(0, NoTorch())
        import pullback
        from pullback.errors import MissingExtraError
        x = pullback.tape.Variable(3.0, requires_grad=True)
        (x * x).backward()
        print(x.grad.data)
        for needs_torch in (
            lambda: __import__("pullback.tape.tensor"),
            lambda: pullback.check(pullback.tape.Function, x),
        ):
            try:
                needs_torch()
            except MissingExtraError as error:
                print(error)
    """
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert answer.stdout.startswith("6.0"), answer.stderr
    assert answer.stdout.count("pip install 'pullback[tensor]'") == 2


def test_a_picture_holds_what_the_graph_does():
    x = Variable(2.0, role='a "quoted" \\ weight', requires_grad=True, name="w")
    t = Variable("a text\nof two lines", role="prompt", requires_grad=True)
    y = x * x + 1
    (t + "!").backward(Variable("too short"), retain_graph=True)
    dot = to_dot([y, t + "!"])
    assert dot.count("->") == 4
    assert '\\"quoted\\"' in dot
    assert "1 note: 'too short'" in dot
    assert "w: " in summary(y)
    whole = json.loads(to_json([y, t + "!"]))
    assert len(whole["nodes"]) == 5
    assert to_json(from_json(to_json([y, t + "!"]))) == to_json([y, t + "!"])
    z = Variable(1.0, requires_grad=True) * 1
    z.grad_fn.next_functions = from_json(to_json(y))
    with pytest.raises(GraphError, match="no rule to run"):
        z.backward()
    for wrong in ("", "{}", "[]", '{"format": 9}', '{"format": 1, "roots": [[3, 0]], "nodes": []}'):
        with pytest.raises(ArgumentError, match="no JSON of a graph"):
            from_json(wrong)


def test_a_picture_of_a_graph_that_was_read_back_holds_what_its_json_does():
    t, u = (Variable("a", role=role, requires_grad=True) for role in "tu")
    held = stack([stack({"n": Variable(2.0, requires_grad=True)}), Variable([1.0]), t + u])
    t.grad, u.grad = [Variable("said"), Variable("more")], [Variable("once")]
    for draw in (summary, to_dot):
        assert draw(from_json(to_json(held))) == draw(held)
    assert "2 notes: 'said'" in summary(held)


def test_values_that_are_no_finite_numbers_are_kept_in_json():
    x = Variable(float("inf"), requires_grad=True)
    [root] = from_json(to_json(x * 2))
    assert root.node.outputs[0].data == float("inf")


def test_grad_modes_do_not_leak_between_threads():
    seen = []
    with no_grad():
        thread = threading.Thread(target=lambda: seen.append(is_grad_enabled()))
        thread.start()
        thread.join()
        with enable_grad():
            seen.append(is_grad_enabled())
    assert seen == [True, True]


@pytest.mark.parametrize("place", ["tensor", "node before", "node after"])
def test_a_hook_that_gives_plain_data_is_refused_past_first_order(place):
    def plain(gradient):
        return Variable(gradient.data * 2)

    def hooked(x, hook):
        middle = x * x
        if place == "tensor":
            middle.register_hook(hook)
        elif place == "node before":
            middle.grad_fn.register_prehook(lambda given: (hook(given[0]),))
        else:
            middle.grad_fn.register_hook(lambda sent, given: tuple(map(hook, sent)))
        return sin(middle)

    x = Variable(0.5, requires_grad=True)
    (twice,) = grad(hooked(x, lambda g: g * 2), x, create_graph=True)
    (first,) = grad(hooked(x, plain), x, create_graph=True)
    assert first.data == twice.data
    grad(twice, x)
    with pytest.raises(UnsupportedError, match="hook of MultiplyBackward reads the data"):
        grad(first, x)
    # What it does not change keeps its history.
    (seen,) = grad(hooked(x, lambda g: [g.data, g][1]), x, create_graph=True)
    (plainly,) = grad(sin(x * x), x, create_graph=True)
    assert grad(seen, x)[0].data == grad(plainly, x)[0].data
