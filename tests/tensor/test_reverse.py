"""Reverse mode: once, twice, and with the graph retained."""

import gc
import weakref

import pytest
import torch
from tests.tensor.cases import Residual, SavesOutput, Split, TwoOutputs
from tests.tensor.helpers import SEED, agree, every_row, weighted

from pullback.errors import UnsupportedError


def leaves(row):
    return [x.requires_grad_() for x in row.arguments(SEED)]


@every_row
def test_values_and_first_order_gradients_are_those_of_the_formula(row):
    x, y = leaves(row), leaves(row)
    agree(row.function(*x), row.formula(*y))
    agree(
        torch.autograd.grad(weighted(row.function)(*x), x),
        torch.autograd.grad(weighted(row.formula)(*y), y),
    )


@every_row
def test_second_and_third_order_follow(row):
    def derivatives(function, args):
        value = weighted(function)(*args)
        first = torch.autograd.grad(value, args, create_graph=True)
        total = sum((g * g).sum() for g in first)
        second = torch.autograd.grad(total, args, create_graph=True, allow_unused=True)
        third = torch.autograd.grad(sum((g * g).sum() for g in second if g is not None), args)
        return first, second, third

    agree(derivatives(row.function, leaves(row)), derivatives(row.formula, leaves(row)))


@every_row
def test_two_backward_passes_over_a_retained_graph_agree(row):
    x = leaves(row)
    value = weighted(row.function)(*x)
    agree(
        torch.autograd.grad(value, x, retain_graph=True),
        torch.autograd.grad(value, x, retain_graph=True),
    )


def test_either_of_two_outputs_may_be_unused():
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    y = torch.randn(4, dtype=torch.float64, requires_grad=True)
    product, total = TwoOutputs.apply(x, y)
    agree(torch.autograd.grad(product.sum(), (x, y), retain_graph=True), (y, x))
    agree(torch.autograd.grad(total.sum(), (x, y)), (torch.ones_like(x), torch.ones_like(y)))


def test_nothing_keeps_an_output_alive():
    gc.disable()
    try:
        for function in (SavesOutput, Residual):
            x = torch.randn(3, requires_grad=True)
            out = function.apply(x)
            alive = weakref.ref(out.grad_fn), weakref.ref(out)
            del out
            assert [reference() for reference in alive] == [None, None]
    finally:
        gc.enable()


def changed_after(function, *, create_graph=False):
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    z = x * 1
    out = function.apply(z)
    with torch.no_grad():
        z.add_(1)
    return x, torch.autograd.grad(out.sum(), x, create_graph=create_graph)[0]


def test_a_saved_tensor_that_is_changed_later_is_noticed():
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        changed_after(Split)


def test_an_input_that_is_not_saved_may_be_changed_until_a_second_derivative_needs_it():
    x, gradient = changed_after(Residual)
    agree(gradient, 3 * x.detach() ** 2)
    x, gradient = changed_after(Residual, create_graph=True)
    agree(gradient.detach(), 3 * x.detach() ** 2)
    with pytest.raises(UnsupportedError, match="changed in place since"):
        torch.autograd.grad(gradient.sum(), x)


def test_an_alias_cannot_be_changed_in_place():
    from tests.tensor.cases import Alias

    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    z = x * 1
    out = Alias.apply(z)
    assert out.data_ptr() == z.data_ptr()
    with pytest.raises(RuntimeError, match="view"):
        out.mul_(2)
