"""Failures and cancellations at random: nothing accumulates twice, all can be retried."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzzing import examples

from pullback.tape import Function, Variable, abackward, backward, concurrency


class Trouble(Exception):
    pass


def build(plan, asynchronous):
    """A random graph of which some backward rules fail the first times they run."""
    draw = random.Random(plan["seed"])
    left = dict(plan["failures"])
    runs = []

    def rule(ctx, g):
        runs.append(ctx.number)
        if left.get(ctx.number, 0):
            left[ctx.number] -= 1
            raise Trouble(ctx.number)
        return g * ctx.factor, g * 0.5, None

    class Sync(Function):
        @staticmethod
        def forward(ctx, a, b, number):
            ctx.number, ctx.factor = number, 0.5 + number % 3
            return a * ctx.factor + b * 0.5

        backward = staticmethod(rule)

    class Async(Function):
        forward = Sync.forward

        @staticmethod
        async def backward(ctx, g):
            await asyncio.sleep(draw.random() / 2000)
            return rule(ctx, g)

    leaves = [Variable(float(i + 1), requires_grad=True) for i in range(3)]
    values = list(leaves)
    for number in range(plan["size"]):
        function = Async if asynchronous and number % 2 else Sync
        a, b = draw.choice(values), draw.choice(values)
        values.append(function.apply(a, b, number))
    total = values[-1]
    for value in values[3:-1]:
        total = total + value * 0.1
    return leaves, total, runs


plans = st.fixed_dictionaries({
    "seed": st.integers(0, 10_000),
    "size": st.integers(1, 12),
    "failures": st.dictionaries(st.integers(0, 11), st.integers(1, 2), max_size=4),
})  # fmt: skip


def truth(plan):
    leaves, total, _ = build({**plan, "failures": {}}, asynchronous=False)
    total.backward()
    return [None if leaf.grad is None else leaf.grad.data for leaf in leaves]


def gradients(leaves):
    return [None if leaf.grad is None else leaf.grad.data for leaf in leaves]


@settings(max_examples=examples(40), deadline=None)
@given(plan=plans, asynchronous=st.booleans(), retain=st.booleans())
def test_a_failed_run_can_be_retried(plan, asynchronous, retain):
    leaves, total, _ = build(plan, asynchronous)
    for _ in range(10):
        try:
            total.backward(retain_graph=retain)
            break
        except Trouble:
            assert gradients(leaves) == [None, None, None]
    assert gradients(leaves) == truth(plan)


@settings(max_examples=examples(25), deadline=None)
@given(plan=plans, after=st.integers(0, 20))
def test_a_cancelled_run_can_be_retried(plan, after):
    leaves, total, runs = build({**plan, "failures": {}}, asynchronous=True)

    async def cancelled():
        task = asyncio.create_task(abackward(total))
        for _ in range(after):
            await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return True
        return False

    if asyncio.run(cancelled()):
        assert gradients(leaves) == [None, None, None]
        before = len(runs)
        asyncio.run(asyncio.sleep(0.005))
        assert len(runs) == before, "a rule went on after the cancellation"
        backward(total)
    assert gradients(leaves) == truth(plan)


def test_a_failing_hook_commits_nothing():
    x, y = Variable(1.0, requires_grad=True), Variable(2.0, requires_grad=True)
    z = x * y

    def fail(gradient):
        raise Trouble

    handle = y.register_hook(fail)
    with pytest.raises(Trouble):
        z.backward()
    assert x.grad is None
    handle.remove()
    z.backward()
    assert (x.grad.data, y.grad.data) == (2.0, 1.0)


def test_one_failure_cancels_what_runs_beside_it():
    finished = []

    class Slow(Function):
        @staticmethod
        async def forward(ctx, x, fails):
            ctx.fails = fails
            return x * 1

        @staticmethod
        async def backward(ctx, g):
            if ctx.fails:
                raise Trouble
            await asyncio.sleep(30)
            finished.append(True)
            return g, None

    x = Variable(1.0, requires_grad=True)
    with concurrency(4), pytest.raises(Trouble):
        (Slow.apply(x, False) + Slow.apply(x, True)).backward()
    assert finished == []
    assert x.grad is None


def test_threads_add_to_one_leaf_without_losing_any():
    import threading

    x = Variable(1.0, requires_grad=True)
    graphs = [x * float(i) for i in range(200)]
    parts = [graphs[i::4] for i in range(4)]
    threads = [threading.Thread(target=lambda p=p: [g.backward() for g in p]) for p in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert x.grad.data == sum(range(200))
