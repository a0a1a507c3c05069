"""Sparse inputs: what moves are the values that they have."""

import pytest
import torch

from pullback.conformance import check


class SparseProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, x):
        ctx.save_for_backward(a, x)
        return a @ x

    @staticmethod
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        return (g @ x.T).sparse_mask(a), a.t() @ g


class Untransposed(SparseProduct):
    @staticmethod
    def backward(ctx, g):
        a, _ = ctx.saved_tensors
        return None, a @ g


class OffItsPattern(SparseProduct):
    @staticmethod
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        return (g @ x.T).sparse_mask(a) * 2, a.t() @ g


class AnotherIndex(SparseProduct):
    """Each value's gradient is that of another column; what it calls takes no argument."""

    @staticmethod
    def forward(ctx, a, x):
        _nothing()
        return SparseProduct.forward(ctx, a, x)

    @staticmethod
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        row, column = a.detach()._indices()
        found = (g[row] * x[row]).sum(1) + 0 * column  # x[column]
        return torch.sparse_coo_tensor(a._indices(), found, a.shape), a.t() @ g


def _nothing():
    return 0


def operands(both=True):
    a = torch.randn(5, 5) * (torch.rand(5, 5) < 0.5)
    return a.to_sparse().requires_grad_(both), torch.randn(5, 3).requires_grad_()


def test_a_right_function_of_sparse_tensors_breaks_no_clause():
    report = check(SparseProduct, *operands(), without="compile,rank,autocast", gradient="exact")
    assert report["derivative"].verdict == "holds"
    assert "for 2 of 2 input" in report["derivative"].detail
    assert [str(finding) for finding in report.problems] == []


def test_a_wrong_one_is_found_and_its_edit():
    found = check(Untransposed, *operands(both=False), gradient="exact",
                  clauses="derivative")["derivative"]  # fmt: skip
    assert "`None, a.t() @ g` for `None, a @ g`" in found.hint
    assert "torch.sparse_coo_tensor(" in found.repro
    assert "Run by the checker" not in found.repro


def test_the_gradient_of_the_values_is_judged():
    found = check(OffItsPattern, *operands(), clauses="derivative")["derivative"]
    assert found.input == "args[0].values()"
    assert "Run by the checker" not in found.repro


def test_the_edit_of_a_gradient_by_sparse_values_is_named():
    a, x = operands()
    finding = check(AnotherIndex, a.detach().coalesce().requires_grad_(), x,
                    clauses="derivative", gradient="exact")["derivative"]  # fmt: skip
    assert "`x[column]` for `x[row]`" in finding.hint, finding.hint or finding.detail


class Rows(torch.autograd.Function):
    """The product with a matrix by compressed rows, whose gradient has the pattern of it."""

    @staticmethod
    def forward(ctx, a, x):
        ctx.save_for_backward(a, x)
        return a.to_dense() @ x

    @staticmethod
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        start, column = a.crow_indices(), a.col_indices()
        row = torch.repeat_interleave(torch.arange(len(start) - 1), start.diff())
        values = g[row] * x[column]
        return torch.sparse_csr_tensor(start, column, values, a.shape), a.to_dense().mT @ g


class RowsOfRows(Rows):
    @staticmethod
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        start, column = a.crow_indices(), a.col_indices()
        row = torch.repeat_interleave(torch.arange(len(start) - 1), start.diff())
        values = g[row] * x[row]
        return torch.sparse_csr_tensor(start, column, values, a.shape), a.to_dense().mT @ g


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_a_matrix_by_compressed_rows_is_one_of_its_values():
    a = operands()[0].detach().to_dense().double().to_sparse_csr().requires_grad_()
    x = torch.randn(5).double().requires_grad_()
    report = check(Rows, a, x, without="compile,autocast")
    assert [str(finding) for finding in report.problems] == []
    assert "for 2 of 2 input" in report["derivative"].detail
    found = check(RowsOfRows, a, x, clauses="derivative")["derivative"]
    assert found.input == "args[0].values()"
    assert "`x[column]` for `x[row]`" in found.hint
    assert "torch.sparse_compressed_tensor(" in found.repro
    assert "Run by the checker" not in found.repro


def _times(values, others):
    return values / others


class Scaled(torch.autograd.Function):
    """A sparse tensor by a row that is dense: the output is sparse, and so is its cotangent."""

    @staticmethod
    def forward(ctx, a, row):
        ctx.save_for_backward(a, row)
        values = a.values() * row[a.indices()[1]]
        return torch.sparse_coo_tensor(a.indices(), values, a.shape, is_coalesced=True)

    @staticmethod
    def backward(ctx, g):
        a, row = ctx.saved_tensors
        assert g.layout is torch.sparse_coo
        column = a.indices()[1]
        values = g.coalesce().values()
        by_a = torch.sparse_coo_tensor(a.indices(), values * row[column], a.shape)
        return by_a, torch.zeros_like(row).index_add(0, column, _times(a.values(), values))


def test_what_answers_a_sparse_tensor_is_told_by_its_values():
    a, _ = operands()
    inputs = a.detach().coalesce().requires_grad_(), torch.randn(a.shape[1]).requires_grad_()
    report = check(Scaled, *inputs, clauses="derivative,dtype", gradient="exact")
    finding = report["derivative"]
    assert "`values * others` for `values / others`" in finding.hint, finding.hint or finding.detail
    assert "Run by the checker" not in finding.repro
    assert not report["dtype"].verdict.is_bad, report["dtype"].detail
