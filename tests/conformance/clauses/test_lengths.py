"""Integers that say how many rows there are: no clause gives another number of rows beside them."""

import os
from itertools import pairwise

import pytest
import torch
from tests.conformance.clauses.test_sizes import resized
from tests.specimens._specimen import normal

from pullback.conformance import check

pytestmark = pytest.mark.usefixtures("no_edits")


class GroupedProduct(torch.autograd.Function):
    """Rows times the matrix of their group, as kernels have it: `ends` says where each group ends.

    Rows beyond the last end are not written, and ends beyond the last row end the process.
    """

    @staticmethod
    def forward(ctx, rows, matrices, ends):
        if int(ends[-1]) > len(rows):
            os.abort()
        ctx.save_for_backward(rows, matrices, ends)
        return GroupedProduct.product(rows, matrices, ends)

    @staticmethod
    def product(rows, matrices, ends):
        out = rows.new_empty(len(rows), matrices.shape[-1])
        for matrix, (start, end) in zip(matrices, pairwise([0, *ends.tolist()]), strict=True):
            out[start:end] = rows[start:end] @ matrix
        return out

    @staticmethod
    def backward(ctx, cotangent):
        rows, matrices, ends = ctx.saved_tensors
        found = [rows[a:b].mT @ cotangent[a:b] for a, b in pairwise([0, *ends.tolist()])]
        return GroupedProduct.product(cotangent, matrices.mT, ends), torch.stack(found), None


class WeightedSums(torch.autograd.Function):
    """Each item adds up so many weighted rows; the process ends where there are others."""

    @staticmethod
    def forward(ctx, rows, weights, order, each):
        if len(rows) != len(weights) * each or len(order) != len(rows):
            os.abort()
        ctx.save_for_backward(rows, weights, order)
        return (rows[order].view(len(weights), each, -1) * weights[..., None]).sum(1)

    @staticmethod
    def backward(ctx, cotangent):
        rows, weights, order = ctx.saved_tensors
        spread = (cotangent[:, None] * weights[..., None]).reshape(rows.shape)
        found = torch.zeros_like(rows).index_copy(0, order, spread)
        return (
            found,
            (rows[order].view(*weights.shape, -1) * cotangent[:, None]).sum(-1),
            None,
            None,
        )


ENDS = torch.tensor([2, 4], dtype=torch.int32)


@pytest.mark.parametrize("clause", ["sizes", "batch", "first-call"])
def test_rows_in_groups_are_not_accused_for_other_ends(clause):
    inputs = normal(4, 16, seed=1), normal(2, 16, 16, seed=2), ENDS
    finding = check(GroupedProduct, *inputs, clauses=clause, isolate="copy")[clause]
    assert not finding.verdict.is_bad, finding


@pytest.mark.parametrize("clause", ["sizes", "first-call"])
def test_a_size_that_a_number_and_another_size_make_up_is_left_as_it_is(clause):
    rows, weights = normal(6, 5, seed=1), normal(3, 2, seed=2)
    order = torch.tensor([2, 0, 3, 1, 5, 4])
    assert 6 not in resized(rows, weights, order, 2)
    finding = check(WeightedSums, rows, weights, order, 2, clauses=clause, isolate="copy")[clause]
    assert not finding.verdict.is_bad, finding
