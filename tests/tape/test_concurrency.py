"""Rules that wait run at once, up to the limit, and what they give does not depend on time."""

import asyncio
import json
import os
import random
import subprocess
import sys
import textwrap
import threading
import time
from contextvars import copy_context
from functools import partial

import pytest
from tests.fuzzing import examples

from pullback.errors import ArgumentError, GraphError
from pullback.tape import (
    Function,
    Variable,
    abackward,
    concurrency,
    is_grad_enabled,
    no_grad,
    set_grad_enabled,
    stack,
    vmap,
)
from pullback.tape._concurrency import begin, run


class Meter:
    """Counts the calls under way, and lets a call wait until so many are there at once."""

    def __init__(self, together):
        self.now = self.peak = self.calls = 0
        self.lock = threading.Lock()
        self.together = threading.Barrier(together)

    def __enter__(self):
        with self.lock:
            self.now += 1
            self.calls += 1
            self.peak = max(self.peak, self.now)
        return self

    def __exit__(self, *error):
        with self.lock:
            self.now -= 1

    async def eight(self):
        """Wait until the call's own eight have all begun."""
        full = -(-self.calls // 8) * 8
        deadline = time.monotonic() + 30
        while self.calls < full:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.001)


def blocking(meter):
    class Wait(Function):
        blocking = True

        @staticmethod
        def forward(ctx, x):
            with meter:
                meter.together.wait(30)
                return Variable(x.data + "!", role=x.role)

        @staticmethod
        def backward(ctx, feedback):
            with meter:
                meter.together.wait(30)
                return feedback

    return Wait


def awaited(meter):
    class Await(Function):
        @staticmethod
        async def forward(ctx, x):
            with meter:
                await meter.eight()
                return Variable(x.data + "!", role=x.role)

        @staticmethod
        async def backward(ctx, feedback):
            with meter:
                await meter.eight()
                return feedback

    return Await


@pytest.mark.parametrize("make", [blocking, awaited])
def test_a_limit_is_reached_and_never_exceeded(make):
    meter = Meter(8)
    function = make(meter)
    texts = [Variable(f"text {i}", requires_grad=True) for i in range(24)]
    with concurrency(8):
        results = vmap(function.apply)(texts)
        assert meter.peak == 8
        meter.peak = 0
        results.backward(Variable(["good"] * 24))
    assert meter.peak == 8
    assert meter.calls == 48
    assert [text.grad[0].data for text in texts] == ["good"] * 24
    assert results.data == [f"text {i}!" for i in range(24)]


def test_the_limit_holds_for_gathered_applications_too():
    meter = Meter(8)
    function = awaited(meter)

    async def main():
        with concurrency(8):
            texts = [Variable(f"text {i}", requires_grad=True) for i in range(16)]
            results = await asyncio.gather(*[function.aapply(text) for text in texts])
            await abackward(stack(results), Variable(["good"] * 16))
            return texts

    texts = asyncio.run(main())
    assert meter.peak == 8
    assert all(text.grad[0].data == "good" for text in texts)


def test_rules_that_run_others_lend_them_their_place():
    class Inner(Function):
        @staticmethod
        async def forward(ctx, x):
            await asyncio.sleep(0)
            return x * 2

        @staticmethod
        async def backward(ctx, g):
            await asyncio.sleep(0)
            return g * 2

    class Outer(Function):
        @staticmethod
        async def forward(ctx, x):
            results = await asyncio.gather(*[Inner.aapply(x) for _ in range(3)])
            return results[0] + results[1] + results[2]

        @staticmethod
        async def backward(ctx, g):
            again = Inner.apply(g)  # synchronous, inside a running loop
            return again * 3

    x = Variable(1.0, requires_grad=True)
    with concurrency(1):
        y = Outer.apply(x)
        y.backward()
    assert y.data == 6.0
    assert x.grad.data == 6.0


def test_apply_works_inside_a_running_loop():
    class Twice(Function):
        @staticmethod
        async def forward(ctx, x):
            await asyncio.sleep(0)
            return x * 2

        @staticmethod
        async def backward(ctx, g):
            return g * 2

    async def main():
        x = Variable(1.0, requires_grad=True)
        y = Twice.apply(x) * (await Twice.aapply(x))
        y.backward()
        return x.grad.data

    assert asyncio.run(main()) == 8.0


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_program_reaches_who_asked_and_the_next_is_served(end):
    class Ends(Function):
        @staticmethod
        async def forward(ctx, x):
            if x < 0:
                raise end
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    for _ in range(2):
        with pytest.raises(end):
            Ends.apply(Variable(-1.0))
        assert Ends.apply(Variable(3.0)).data == 6.0


def test_who_is_cancelled_may_await_while_it_cleans_up():
    """A portal that cancels each await anew would leave streams open."""
    begun, ended, said = threading.Event(), threading.Event(), []

    async def work():
        try:
            begun.set()
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            said.append("cleaned up")
            ended.set()

    working = begin(work())
    assert begun.wait(10)
    working.cancel()
    assert ended.wait(10)
    assert said == ["cleaned up"]


def test_what_waits_is_refused_while_the_interpreter_ends(monkeypatch):
    """A finalizer that asked for it then, when no loop runs any more, waited for ever."""
    with monkeypatch.context() as patched:
        patched.setattr(sys, "is_finalizing", lambda: True)
        with pytest.raises(GraphError, match="interpreter ends"):
            run(asyncio.sleep(0))
    assert run(asyncio.sleep(0, "served")) == "served"


def test_a_rule_beyond_what_is_wanted_is_not_awaited():
    """Where a rule asks a model, to run it for nothing would cost."""
    asked = []

    class Ask(Function):
        @staticmethod
        async def forward(ctx, x):
            return Variable(x.data + "!")

        @staticmethod
        async def backward(ctx, feedback):
            asked.append(feedback.data)
            return feedback

    x = Variable("text", requires_grad=True)
    y = Ask.apply(x)
    Ask.apply(y).backward(Variable("grad"), inputs=[y])
    assert [note.data for note in y.grad] == asked == ["grad"]
    y.backward(Variable("whole"))  # and what it keeps was not freed
    assert asked == ["grad", "whole"]


@pytest.mark.parametrize("switch", [no_grad, partial(set_grad_enabled, False)])
def test_a_function_or_coroutine_function_is_decorated_not_to_record(switch):
    x = Variable(2.0, requires_grad=True)

    @switch()
    def called():
        return (x * x).requires_grad

    @switch()
    async def awaited():
        await asyncio.sleep(0)
        return (x * x).requires_grad

    assert is_grad_enabled()
    assert not called()
    assert not asyncio.run(awaited())
    assert is_grad_enabled()


def test_a_limit_is_a_number():
    for wrong in (0, -1, 1.5, True, None):
        with pytest.raises(ArgumentError, match="limit"), concurrency(wrong):
            pass


# What a graph of texts gives is the same bit for bit, whatever the timing and the hash seed.

PROGRAM = """
    import asyncio, hashlib, json, random, sys
    from pullback.tape import Function, Variable, concurrency, graph, stack, vmap

    prompts = []

    def build(delay, blocking_):
        class Say(Function):
            @staticmethod
            async def forward(ctx, *texts):
                ctx.save_for_backward(*texts)
                await asyncio.sleep(delay())
                return Variable("+".join(t.data for t in texts), role="said")

            @staticmethod
            async def backward(ctx, feedback):
                texts = ctx.saved_variables
                await asyncio.sleep(delay())
                return tuple(
                    Variable(f"{t.data}: {[note.data for note in feedback]}", role=t.role)
                    for t in texts
                )
        return Say

    def run(delay, limit):
        Say = build(delay, False)
        draw = random.Random(3)
        leaves = [Variable(f"t{i}", role=f"role {i}", requires_grad=True) for i in range(6)]
        values = list(leaves)

        async def main():
            for _ in range(4):
                chosen = [[draw.choice(values) for _ in range(2)] for _ in range(5)]
                values.extend(await asyncio.gather(*[Say.aapply(*pair) for pair in chosen]))
        with concurrency(limit):
            asyncio.run(main())
            out = Say.apply(*values[-5:])
            text = graph.to_json(out)
            out.backward(Variable("shorter", role="critique"))
        notes = [[(n.data, n.role, n.origin.function) for n in leaf.grad] for leaf in leaves]
        return hashlib.sha256(json.dumps([text, out.data, notes]).encode()).hexdigest()

    def timings():
        yield (lambda: 0), 64
        yield (lambda: random.random() / 300), 64
        yield (lambda: random.random() / 500), 3

    print(json.dumps([run(*timing) for timing in timings()]))
"""


def test_the_same_bits_over_hash_seeds_and_timings():
    answers = set()
    for seed in range(examples(4)):
        answer = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(PROGRAM)],
            capture_output=True, text=True, timeout=120, check=False,
            env={"PYTHONHASHSEED": str(seed), "PATH": ""},
        )  # fmt: skip
        assert answer.returncode == 0, answer.stderr
        answers.update(json.loads(answer.stdout))
    assert len(answers) == 1


def test_numbers_are_the_same_bits_whatever_the_timing():
    def run(seed):
        draw = random.Random(seed)

        class Scale(Function):
            @staticmethod
            async def forward(ctx, x, factor):
                ctx.factor = factor
                return x * factor

            @staticmethod
            async def backward(ctx, g):
                await asyncio.sleep(draw.random() / 500)
                return g * ctx.factor, None

        x = Variable(0.1, requires_grad=True)
        total = Variable(0.0)
        for i in range(20):
            total = total + Scale.apply(Scale.apply(x, 0.1 * (i + 1)), 1.0 / (i + 3))
        total.backward()
        return x.grad.data.hex()

    assert len({run(seed) for seed in range(5)}) == 1


def test_a_coroutine_that_waits_for_a_thread_which_runs_another_does_not_wait_for_itself():
    async def inner():
        return 1

    async def outer():
        found = []
        work = partial(copy_context().run, lambda: found.append(run(inner())))
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(2)  # of a portal that waits for itself, nothing comes before this is over
        return found

    assert run(outer()) == [1]


def test_a_rule_in_a_thread_is_served_by_the_loop_that_awaits_it():
    """So clients that belong to a loop serve rules of either kind."""

    async def here():
        return asyncio.get_running_loop()

    class Rule(Function):
        @staticmethod
        async def forward(ctx, x):
            loops.append(await here())
            return Variable(x.data)

    class Blocking(Rule):
        blocking = True

        @staticmethod
        def forward(ctx, x):
            loops.append(run(here()))
            return Variable(x.data)

    loops = [run(here())]
    vmap(lambda x: Blocking.apply(Rule.apply(x)))([1.0, 2.0])
    assert len(loops) == 5
    assert len(set(loops)) == 1


FINALIZERS = """
    import contextvars
    import gc
    import weakref

    from pullback.tape import _concurrency


    class Client:
        async def close(self):
            pass


    def changes(variable):
        for number in range(2000):
            client = Client()
            weakref.finalize(client, _concurrency.begin, Client().close(), "home").atexit = False
            client.itself = client
            del client
            gc.set_threshold(1 + number % 9)  # it runs where memory is taken: at each place once
            for _ in range(5):
                variable.reset(variable.set(number))
            gc.set_threshold(100_000)


    _concurrency.begin(Client().close(), "home").result()
    for number in range(3):
        contextvars.ContextVar(f"other {number}").set(0)
    changes(contextvars.ContextVar("changing"))
    with _concurrency._loops_lock:  # as a thread that makes a loop holds it when one runs
        _concurrency.begin(Client().close(), "home").result()
"""


def test_a_finalizer_may_begin_a_coroutine_in_a_thread_that_changes_its_context():
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FINALIZERS)], capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert (answer.returncode, answer.stderr) == (0, "")


FORKS = """
    import contextvars
    import os
    import signal
    import threading

    from pullback.tape import Function, Variable, concurrency

    held, over = threading.Event(), threading.Event()


    class Wait(Function):
        blocking = True

        @staticmethod
        def forward(ctx, text):
            if text.data == "parent":
                held.set()
                over.wait()
            return text


    with concurrency(1):
        run = contextvars.copy_context().run
        threading.Thread(target=run, args=(Wait.apply, Variable("parent"))).start()
        held.wait()  # until it has the one place that there is
        child = os.fork()
        if not child:
            signal.alarm(10)  # of a child that waits for it, nothing comes before
            Wait.apply(Variable("child"))
            os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        over.set()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_of_a_fork_waits_for_no_place_that_its_parent_holds():
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(FORKS)], capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (answer.stdout, answer.stderr) == ("7\n", "")
