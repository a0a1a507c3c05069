"""Inputs with infinite entries, as the scores of what a mask leaves out."""

import re

import pytest
import torch
from tests.scripts import printed_by
from tests.specimens._specimen import normal

from pullback.conformance import check


def masked(rows=4, columns=6):
    """Scores of which each row has another number of entries that count."""
    scores = normal(rows, columns).detach()
    outside = torch.ones(rows, columns, dtype=torch.bool).triu(3)
    return scores.masked_fill(outside, -torch.inf).requires_grad_()


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores):
        shares = scores.softmax(-1)
        ctx.save_for_backward(shares)
        return shares

    @staticmethod
    def backward(ctx, g):
        (shares,) = ctx.saved_tensors
        return shares * (g - (g * shares).sum(-1, keepdim=True))


class Doubled(Softmax):
    @staticmethod
    def backward(ctx, g):
        (shares,) = ctx.saved_tensors
        return 2 * shares * (g - (g * shares).sum(-1, keepdim=True))


class Attend(torch.autograd.Function):
    """It takes one size alone, so that no other one shows what is wrong."""

    @staticmethod
    def forward(ctx, scores, values):
        if scores.shape != (4, 6):
            raise ValueError("scores must be (4, 6)")
        ctx.save_for_backward(scores, values)
        return scores.softmax(-1) @ values

    @staticmethod
    def backward(ctx, g):
        scores, values = ctx.saved_tensors
        shares, by_shares = scores.softmax(-1), g @ values.mT
        mean = by_shares.mean(-1, keepdim=True)  # of all, and not by their shares
        return shares * (by_shares - mean), shares.mT @ g


class Finite(torch.autograd.Function):
    """Right: an infinite entry counts as zero."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return torch.where(x.isfinite(), x, 0) * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        known = x.isfinite()
        return torch.where(known, g * w, 0), g * torch.where(known, x, 0)


class Masked(torch.autograd.Function):
    """The mask is an argument of its own, which needs no gradient."""

    factor = 1.0

    @staticmethod
    def forward(ctx, scores, mask):
        shares = (scores + mask).softmax(-1)
        ctx.save_for_backward(shares)
        return shares

    @classmethod
    def backward(cls, ctx, g):
        return cls.factor * Softmax.backward(ctx, g), None


class MaskedDoubled(Masked):
    factor = 2.0


def test_a_mask_of_infinite_entries_hides_nothing():
    mask = torch.where(masked().detach().isinf(), -torch.inf, 0.0).double()
    assert check(MaskedDoubled, normal(4, 6), mask, clauses="derivative")["derivative"].verdict == (
        "broken"
    )
    report = check(Masked, normal(4, 6), mask, without="compile")
    assert report.ok, report
    assert report["derivative"].verdict == "holds"


def test_a_wrong_gradient_beside_infinite_entries_is_found_with_its_edit():
    finding = check(Doubled, masked(), clauses="derivative")["derivative"]
    assert finding.verdict == "broken"
    assert "with `shares` for `2 * shares`" in finding.detail
    assert "nan" not in finding.expected
    printed = re.findall(r"\[(-?[0-9.]+)", printed_by(finding.repro))
    shown = [text.strip("[").split(",")[0] for text in (finding.expected, finding.got)]
    assert [*map(float, printed)] == pytest.approx([*map(float, shown)], rel=1e-3)


def test_it_is_found_where_forward_takes_one_size_alone():
    finding = check(Attend, masked(), normal(6, 3, seed=2), clauses="derivative")["derivative"]
    assert finding.verdict == "broken"
    assert finding.input == "args[0]"


def test_square_scores_with_a_causal_mask_are_no_symmetric_matrix():
    outside = torch.ones(5, 5, dtype=torch.bool).triu(1)
    scores = normal(5, 5).detach().masked_fill(outside, -torch.inf).requires_grad_()
    assert check(Doubled, scores, clauses="derivative")["derivative"].verdict == "broken"
    report = check(Softmax, scores, without="compile")
    assert report.ok, report
    assert report["derivative"].verdict == "holds"


@pytest.mark.parametrize("value", [torch.inf, -torch.inf])
def test_what_is_right_beside_infinite_entries_is_not_accused(value):
    report = check(Softmax, masked(), without="compile")
    assert report.ok, report
    x = normal(4, 3).detach()
    x[0, 0] = value
    report = check(Finite, x.requires_grad_(), normal(4, 3, seed=2), without="compile")
    assert report.ok, report
    assert report["derivative"].verdict == "holds"
