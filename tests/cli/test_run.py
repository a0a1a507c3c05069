"""What is known of a Function that was called in several ways is known of the Function."""

import torch
from rich.console import Console

from pullback.cli._run import run_tasks
from pullback.cli._tasks import Task


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


def test_a_broken_report_says_that_its_intent_was_inferred() -> None:
    x = torch.ones(3, dtype=torch.float64)
    task = Task("patches", lambda: (Patches, [(x, 1.0, 0.5), (x, 0.5, 0.5)]), rerun=())
    clauses = ["derivative", "state"]
    (outcome,) = run_tasks([task], Console(quiet=True), clauses=clauses, isolate=False)
    assert not outcome.report.ok
    assert outcome.report["state"].verdict == "broken"
    assert (outcome.report.gradient, outcome.report.inferred) == ("surrogate", True)
