"""Functions that hand torch whole programs, which it compiles by itself: `cond`, `scan`."""

import torch
from tests.versions import needs_torch

from pullback.conformance import check


class Branches(torch.autograd.Function):
    """The sine or the cosine of all, by the sign of the sum; backward branches as forward does."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        slope = torch.cond(x.sum() > 0, lambda x: x.cos(), lambda x: -x.sin(), (x,))
        return slope * cotangent


@needs_torch("2.9", "operators of higher order that run under a dispatch mode of others")
def test_looking_on_changes_no_later_call():
    """What counts operations sees an operator of higher order whole, and leaves the compiler be."""
    chosen = ["needs-input-grad", "undefined", "deterministic", "fake"]
    x = torch.linspace(-1, 2, 4, dtype=torch.float64, requires_grad=True)
    report = check(Branches, x, clauses=chosen)
    assert {finding.clause: finding.verdict for finding in report} == dict.fromkeys(chosen, "holds")
