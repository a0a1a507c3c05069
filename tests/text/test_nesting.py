"""Programs in which one way to wait stands inside another: none waits for itself."""

import asyncio
import itertools
import multiprocessing
import os
import random
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest
from tests.fuzzing import examples

from pullback import tape
from pullback.tape import Function, Variable, vmap
from pullback.text import Module, Parameter, chat, exact_match
from pullback.text.lm import Limit, Scripted
from pullback.text.train import Measure


class Fixed(Module):
    def __init__(self):
        self.text = Parameter("x", role="text", requires_grad=False)


def measured(inner):
    return Measure(Fixed(), lambda module, sample: inner() is None or 1.0, ["a", "b"])()


def rule(wait):
    """A rule that waits for the program inside of it: called in its loop, awaited, or blocking."""

    def within(inner):
        class Rule(Function):
            blocking, random = wait == "blocking", True

            @staticmethod
            async def forward(ctx, x):
                await asyncio.to_thread(inner) if wait == "awaited" else inner()
                return Variable("done")

        class Blocking(Rule):
            @staticmethod
            def forward(ctx, x):
                inner()
                return Variable("done")

        chosen = Blocking if wait == "blocking" else Rule
        return vmap(chosen.apply, randomness="different")(["a", "b", "c"]).data

    return within


def threads(inner):
    with ThreadPoolExecutor(3) as pool:
        return [each.result() for each in [pool.submit(copy_context().run, inner) for _ in "abc"]]


WAYS = [rule("called"), rule("awaited"), rule("blocking"), threads, measured]


def ask(lm):
    chat(lm, "first")
    return exact_match(Variable(lm("second").text), "yes").score.data


def program(ways, limit):
    lm = Limit(Scripted(lambda request: "yes"), concurrency=limit)
    run = lambda: ask(lm)  # noqa: E731
    for way in ways:
        run = lambda way=way, inner=run: way(inner)  # noqa: E731
    with tape.concurrency(limit):
        run()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12: of the threads
def test_no_way_to_wait_inside_another_waits_for_itself():
    dice = random.Random(0)
    nested = [ways for depth in (1, 2) for ways in itertools.product(WAYS, repeat=depth)]
    nested += [dice.choices(WAYS, k=3) for _ in range(examples(4))]

    def work():
        for ways in nested:
            program(ways, dice.choice([1, 2, 8]))
        os._exit(0)

    # In a process of its own: where one waits for itself, so does every test after it.
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(60 * examples(1))
    waits = child.is_alive()
    child.kill()
    child.join()
    assert (waits, child.exitcode) == (False, 0)
