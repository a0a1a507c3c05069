"""What kernels in use were once accused of, by Functions made as theirs are.

A kernel that is handed pointers asks for no shapes: where one of two sizes is no longer twice the
other, it reads what is not there. That the process ends there stands for it.
"""

import os

import pytest
import torch
from tests.specimens._specimen import normal

from pullback.conformance import check

pytestmark = pytest.mark.usefixtures("no_edits")


class GatedHalves(torch.autograd.Function):
    """The product of the two halves of each row, and of a weight of half of that length."""

    @staticmethod
    def forward(ctx, x, weight):
        if x.shape[-1] != 2 * len(weight):
            os.abort()
        ctx.save_for_backward(x, weight)
        gate, value = x.chunk(2, -1)
        return gate * value * weight

    @staticmethod
    def backward(ctx, cotangent):
        x, weight = ctx.saved_tensors
        gate, value = x.chunk(2, -1)
        both = torch.cat((cotangent * value * weight, cotangent * gate * weight), -1)
        return both, (cotangent * gate * value).sum(0)


class CountsCalls(GatedHalves):
    """The first call has another answer."""

    calls = 0

    @staticmethod
    def forward(ctx, x, weight):
        CountsCalls.calls += 1
        return GatedHalves.forward(ctx, x, weight) * (1.0 + (CountsCalls.calls > 1))


@pytest.mark.parametrize("clause", ["first-call", "memory"])
def test_the_end_of_a_copy_at_sizes_that_do_not_fit_accuses_nobody(clause):
    report = check(GatedHalves, normal(3, 8), normal(4), clauses=clause)
    assert report[clause].verdict == "holds", str(report)


def test_the_given_arguments_are_judged_all_the_same():
    CountsCalls.calls = 0
    report = check(CountsCalls, normal(3, 8), normal(4), clauses="first-call")
    assert report["first-call"].verdict == "broken"


def turned(x, cosine, sine):
    """The halves of each row turned by an angle, in the memory of ``x``."""
    one, other = x.chunk(2, -1)
    first = one * cosine - other * sine
    other.copy_(other * cosine + one * sine)
    one.copy_(first)
    return x


class TurnedInPlace(torch.autograd.Function):
    """A rotary embedding that works in the memory of its inputs, and of its cotangents."""

    @staticmethod
    def scale(x):
        return 1.0

    @classmethod
    def forward(cls, ctx, query, key, cosine, sine):
        ctx.save_for_backward(cosine, sine)
        found = (turned(it.detach().transpose(1, 2).contiguous(), cosine[:, :, None],
                        sine[:, :, None]) * cls.scale(it) for it in (query, key))  # fmt: skip
        return tuple(it.transpose(1, 2) for it in found)

    @staticmethod
    def backward(ctx, *cotangents):
        cosine, sine = ctx.saved_tensors
        found = (turned(it.transpose(1, 2).contiguous(), cosine[:, :, None], -sine[:, :, None])
                 for it in cotangents)  # fmt: skip
        return *(it.transpose(1, 2) for it in found), None, None


class TurnedByTheLargest(TurnedInPlace):
    """In a batch of more than four, all rows share the largest entry."""

    @staticmethod
    def scale(x):
        return 1.0 if len(x) < 5 else 1.0 + x.detach().abs().max()


def rotary():
    angle = normal(1, 3, 4, seed=5).detach()
    return normal(1, 2, 3, 8), normal(1, 1, 3, 8, seed=2), angle.cos(), angle.sin()


@pytest.mark.parametrize(
    ("kind", "verdict"), [(TurnedInPlace, "holds"), (TurnedByTheLargest, "broken")]
)
def test_what_writes_into_its_cotangents_is_told_by_those_clauses_alone(kind, verdict):
    report = check(kind, *rotary(), clauses="batch, mutation, cotangent", gradient="exact")
    assert [report[it].verdict for it in ("mutation", "cotangent")] == ["broken", "broken"]
    assert report["batch"].verdict == verdict


def test_no_larger_batch_is_tried_where_calls_are_slow(monkeypatch):
    monkeypatch.setattr("pullback.conformance.clauses.batch._SECONDS", 0.0)
    finding = check(TurnedInPlace, *rotary(), clauses="batch")["batch"]
    assert finding.verdict == "holds"
    assert "4096 times as large, no larger ones (calls are slow)" in finding.detail, finding


class SingleAlone(torch.autograd.Function):
    """A kernel whose backward has no float64: it adds products of it to float32."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, cotangent):
        if cotangent.dtype == torch.float64:
            raise TypeError("a product of float64 into float32")
        x, weight = ctx.saved_tensors
        return cotangent @ weight.mT, x.mT @ cotangent


def test_a_backward_without_float64_is_judged_in_float32():
    inputs = normal(3, 4, dtype=torch.float32), normal(4, 2, dtype=torch.float32)
    report = check(SingleAlone, *inputs, clauses="derivative, deterministic, dtype")
    assert [report[it].verdict for it in ("derivative", "deterministic")] == ["holds", "holds"]
    assert report["dtype"].verdict == "crashes"


class SumsNeighbours(torch.autograd.Function):
    """A kernel that would write anywhere for a neighbour that is not there."""

    @staticmethod
    def forward(ctx, x, neighbours):
        ctx.save_for_backward(neighbours)
        if int(neighbours.max()) >= len(x):
            LOOKED.append("out of bounds")
        return x + x[neighbours.clamp(max=len(x) - 1)].sum(0)

    @staticmethod
    def backward(ctx, g):
        (neighbours,) = ctx.saved_tensors
        return g.clone().index_add_(0, neighbours, g.sum(0).expand(len(neighbours), -1)), None


LOOKED: list[str] = []


def test_rows_to_which_integers_point_are_not_taken_apart():
    x, neighbours = torch.randn(5, 3, dtype=torch.float64), torch.tensor([4, 1, 2, 2])
    finding = check(SumsNeighbours, x.requires_grad_(), neighbours, clauses="batch")["batch"]
    assert finding.verdict == "skipped"
    assert "may point to rows" in finding.detail
    assert LOOKED == []
