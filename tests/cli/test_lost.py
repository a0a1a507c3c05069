"""What ran in the program and does not run alone is said as such, and accuses nobody."""

import pytest
import torch

from pullback.cli._run import _lost
from pullback.cli._tasks import Task
from pullback.conformance import check


class TakesWhatAnotherLeft(torch.autograd.Function):
    """As the checkpoint of a pipeline: another Function fills the list before this backward."""

    @staticmethod
    def forward(ctx, x, left):
        ctx.left = left
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return g * ctx.left.pop(), None


@pytest.mark.parametrize("ran", [(), ("forward",), ("forward", "backward")])
def test_a_backward_that_another_function_prepares_is_not_called_crashing(ran) -> None:
    report = check(TakesWhatAnotherLeft, torch.ones(2, requires_grad=True), [], clauses="linear")
    task = Task("program:TakesWhatAnotherLeft", lambda: (TakesWhatAnotherLeft, []), (), ran=ran)
    assert ("IndexError: pop from empty list" in _lost(task, report)) == ("backward" in ran)
