"""What is known of a Function that was called in several ways is known of the Function."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from rich.console import Console

from pullback.cli._guessed import paste_inputs
from pullback.cli._run import run_tasks
from pullback.cli._tasks import Task, on_rank
from pullback.conformance import bind
from pullback.errors import PullbackError


class Patches(torch.autograd.Function):
    """Looks exact at one call and a surrogate at another; patches torch at both."""

    @staticmethod
    def forward(ctx, x, up, down):
        ctx.down = down
        return x * up

    @staticmethod
    def backward(ctx, cotangent):
        torch.cumsum = torch.cumprod
        return cotangent * ctx.down, None, None


def test_no_two_tasks_are_loaded_at_once() -> None:
    """Threads that import modules that import one another end with an error of Python's."""
    loading = threading.Lock()

    def load():
        assert loading.acquire(blocking=False)
        time.sleep(0.01)
        loading.release()
        return Patches, [((1.0,), {})]

    tasks = [Task(f"F{k}", load, rerun=(), guessed=True) for k in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(paste_inputs, tasks)) == ["1.0"] * 4


def test_a_broken_report_says_that_its_intent_was_inferred() -> None:
    x = torch.ones(3, dtype=torch.float64)
    task = Task("patches", lambda: (Patches, [((x, 1.0, 0.5), {}), ((x, 0.5, 0.5), {})]), rerun=())
    clauses = ["derivative", "state"]
    (outcome,) = run_tasks([task], Console(quiet=True), clauses=clauses, isolate=False)
    assert not outcome.report.ok
    assert outcome.report["state"].verdict == "broken"
    assert (outcome.report.gradient, outcome.report.inferred) == ("surrogate", True)


class Saves(Patches):
    """The same in the other form, without ``ctx`` in forward."""

    @staticmethod
    def forward(x, up, down):
        return x * up

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.down = inputs[2]


@torch.library.custom_op("pullback_test_run::scaled", mutates_args=())
def scaled(x: torch.Tensor, factor: float, *, power: int = 1) -> torch.Tensor:
    return x * factor**power


@pytest.mark.parametrize("function", [Patches, Saves])
def test_arguments_by_keyword_are_bound_as_forward_takes_them(function) -> None:
    bound = (1.0, 2.0, 3.0), {}
    assert bind(function, ((1.0,), {"down": 3.0, "up": 2.0})) == bound
    with pytest.raises(PullbackError, match="do not fit"):
        bind(function, ((1.0,), {"up": 2.0}))


def test_what_has_no_place_stays_a_keyword() -> None:
    call = (1.0,), {"power": 2, "factor": 3.0}
    assert bind(scaled, call) == ((1.0, 3.0), {"power": 2})
    with pytest.raises(PullbackError, match="by keyword only"):
        on_rank(scaled, call)
