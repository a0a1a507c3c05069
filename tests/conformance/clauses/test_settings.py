"""`state`: a call leaves the settings of the process and the seed of its generator as they were."""

import pytest
import torch
from tests.specimens._specimen import normal
from torch.autograd import Function

from pullback.conformance import Verdict, check

pytestmark = pytest.mark.usefixtures("no_edits")


def seeds_in_a_fork():
    with torch.random.fork_rng([]):
        torch.manual_seed(5)
        torch.rand(3)


def puts_its_seed_back():
    state = torch.get_rng_state()
    torch.manual_seed(5)
    torch.set_rng_state(state)


def draws():
    torch.rand(2)


CHANGES = {
    "the default dtype": lambda: torch.set_default_dtype(torch.float64),
    "the seed of the random generator": lambda: torch.manual_seed(7),
    "whether anomalies are detected": lambda: torch.autograd.set_detect_anomaly(True),
}


def sine(change, *, backward=False):
    class Sine(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            if not backward:
                change()
            return x.sin()

        @staticmethod
        def backward(ctx, cotangent):
            if backward:
                change()
            return cotangent * ctx.saved_tensors[0].cos()

    return Sine


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", list(CHANGES))
def test_a_setting_that_a_call_changes_is_named(name, backward):
    finding = check(sine(CHANGES[name], backward=backward), normal(3, 4), clauses="state")["state"]
    assert finding.verdict is Verdict.BROKEN
    assert name in finding.detail


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("change", [seeds_in_a_fork, puts_its_seed_back, draws])
def test_what_is_put_back_is_no_change(change, backward):
    report = check(sine(change, backward=backward), normal(3, 4), clauses="state")
    assert report["state"].verdict is Verdict.HOLDS, report
