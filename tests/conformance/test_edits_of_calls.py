"""The edit is found in what a rule calls by objects, properties and tables of functions."""

import torch

from pullback.conformance import check
from pullback.conformance.source._sources import _range


class Operator:
    def __init__(self, by):
        self.by = by

    def __call__(self, x):
        return self.applied(x)


class Shift(Operator):
    @property
    def adjoint(self):
        return ShiftBack(self.by)

    def applied(self, x):
        return WAYS["there"][0](x, self.by)


class ShiftBack(Operator):
    def applied(self, x):
        return WAYS["back"][0](x, self.by)


def there(x, by):
    found = x.clone()
    for k in range(by, len(x)):
        found[k] = found[k] + 0.5 * x[k - by]
    return found


def back(x, by):
    found = x.clone()
    for k in range(by, len(x) - 1):  # one too few
        found[k - by] = found[k - by] + 0.5 * x[k]
    return found


WAYS = {"there": [there], "back": [back]}


class Applied(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, operator):
        ctx.operator = operator
        return operator(x)

    @staticmethod
    def backward(ctx, g):
        return ctx.operator.adjoint(g), None


def test_an_edit_is_found_behind_objects_properties_and_tables():
    x = torch.randn(6, dtype=torch.float64, requires_grad=True)
    found = check(Applied, x, Shift(2), clauses="derivative")["derivative"]
    assert "`len(x)` for `len(x) - 1` at test_edits_of_calls.py:40" in found.hint


def is_short(count):
    return count <= 1


class ByParts(torch.autograd.Function):
    """Wrong where there are several parts, in what no edit mends."""

    @staticmethod
    def forward(ctx, x, count):
        ctx.save_for_backward(x)
        ctx.count = count
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        count = ctx.count
        short = is_short(count)
        if short:
            return g * x.cos(), None
        return g * x.atan().lgamma(), None


def test_a_number_that_leads_to_another_branch_is_no_edit():
    x = 1 + torch.rand(6, dtype=torch.float64)
    found = check(ByParts, x.requires_grad_(), 2, clauses="derivative")["derivative"]
    assert found.verdict == "broken"
    assert "count" not in found.hint, found.hint


def test_a_range_takes_whole_numbers_of_any_type_as_numba_does():
    assert [*_range(1.0, 6, 2.0)] == [1, 3, 5]


class Spread:
    """A matrix with one number along each row, which nobody stores."""

    def __init__(self, numbers):
        self.numbers = numbers

    def __matmul__(self, vector):
        return self.numbers**2 * vector.sum()  # self.numbers


class ByAnOperator(torch.autograd.Function):
    """It refuses what cotangents add up to."""

    @staticmethod
    def forward(ctx, x, numbers):
        ctx.save_for_backward(numbers)
        return (x @ numbers) * torch.ones_like(x)

    @staticmethod
    def backward(ctx, g):
        (numbers,) = ctx.saved_tensors
        if g.abs().max() > 4.5:
            raise RecursionError("no convergence")
        return Spread(numbers) @ g, None


def test_an_edit_is_found_behind_an_operator_and_where_sums_are_refused():
    numbers = torch.linspace(0.2, 1.4, 40, dtype=torch.float64)
    x = torch.randn(40, dtype=torch.float64, requires_grad=True)
    found = check(ByAnOperator, x, numbers, clauses="derivative", gradient="exact")["derivative"]
    assert "for `self.numbers**2` at test_edits_of_calls.py" in found.hint, (
        found.hint or found.detail
    )
