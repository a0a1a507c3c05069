"""`layout`: what is handed over lies where it is said to lie, and is nobody else's."""

import pytest
import torch
from tests.specimens._specimen import normal
from tests.specimens.right.values import NearestCodes
from torch.autograd import Function

from pullback.conformance import Verdict, check


class WritesIntoItsInput(Function):
    """Right, and leaves its result where its input was, as a kernel does that autograd misses."""

    @staticmethod
    def forward(ctx, x):
        found = x.detach().cos()
        ctx.save_for_backward(-x.detach().sin())
        x.data.copy_(found)
        return found

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.saved_tensors[0]


def test_what_writes_into_its_input_is_told_by_mutation_alone():
    report = check(WritesIntoItsInput, normal(3, 4), clauses=["mutation", "layout"])
    assert report["mutation"].verdict is Verdict.BROKEN
    assert not report["layout"].verdict.is_bad, report


def from_the_start(tensor):
    """A copy of what lies at the start of its memory, as of a kernel that is given that address."""
    whole = tensor.contiguous()
    return torch.as_strided(whole, whole.shape, whole.stride(), 0).clone()


class ReadsFromTheStart(Function):
    """Takes any strides, and the start of the memory for the start of the tensor."""

    at = "forward"

    @staticmethod
    def forward(ctx, x):
        return 2 * (from_the_start(x) if ReadsFromTheStart.at == "forward" else x)

    @staticmethod
    def backward(ctx, cotangent):
        there = ReadsFromTheStart.at == "backward"
        return 2 * (from_the_start(cotangent) if there else cotangent)


@pytest.mark.parametrize("at", ["forward", "backward"])
def test_a_tensor_that_begins_within_its_memory_is_read_there(at, monkeypatch):
    monkeypatch.setattr(ReadsFromTheStart, "at", at)
    finding = check(ReadsFromTheStart, normal(3, 4), clauses="layout", isolate=False)["layout"]
    assert finding.verdict is Verdict.BROKEN
    assert "Offset" in finding.detail


def test_a_number_that_broadcasts_with_what_is_no_argument_is_no_vector_of_one():
    bias = normal(3)

    class Shifted(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.shape = x.shape
            return x + bias

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent.sum_to_size(ctx.shape)

    report = check(Shifted.apply, normal(5, 3), clauses="layout")
    assert report["layout"].verdict is Verdict.HOLDS, report


class AsksForItsLastDimension(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent * x.cos() * (x.shape[-1] > 0)


def test_what_fails_without_dimensions_is_not_told_to_be_contiguous():
    finding = check(AsksForItsLastDimension, normal(3, 4), clauses="layout")["layout"]
    assert finding.verdict is Verdict.CRASHES
    assert "contiguous" not in finding.hint


@pytest.mark.parametrize(("seed", "clause"), [(2, "autocast"), (3, "layout")])
def test_ties_are_told_where_new_tensors_lie_elsewhere(seed, clause):
    given = normal(64, 6, seed=seed), normal(16, 6, seed=seed + 20)
    with torch.device("meta"):
        finding = check(NearestCodes, *given, clauses=clause, seed=seed, isolate=False)[clause]
    assert finding.verdict == "holds", finding
