"""Tensors of a class of their own, as quantised weights are: few operations, no numbers to move."""

import pytest
import torch
from tests.specimens._specimen import normal
from torch.autograd import Function

from pullback.conformance import Verdict, check


class Coarse(torch.Tensor):
    """Whole numbers and a scale; a copy of it is made of rounded numbers, and is another."""

    @staticmethod
    def __new__(cls, codes, scale):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scale.dtype)

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self):
        return ["codes", "scale"], []

    def dequantize(self):
        return self.codes.to(self.scale.dtype) * self.scale

    @classmethod
    def __torch_dispatch__(cls, operation, types, args, kwargs):
        given = args[0]
        if operation is torch.ops.aten.detach.default:
            return Coarse(given.codes, given.scale)
        if operation is torch.ops.aten.clone.default:
            return Coarse(given.codes, given.scale * 1.01)
        raise NotImplementedError(f"Coarse has no {operation}")


def coarse(*shape):
    codes = torch.arange(8).view(*shape).to(torch.int8)
    return Coarse(codes, torch.tensor(0.5))


class CoarseProduct(Function):
    """A product with a coarse weight, which it saves."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return x @ weight.dequantize().to(x.dtype)

    @staticmethod
    def backward(ctx, cotangent):
        (weight,) = ctx.saved_tensors
        return cotangent @ weight.dequantize().to(cotangent.dtype).mT, None


class CoarseGradient(Function):
    """Hands back a gradient of whole numbers and a scale."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, cotangent):
        return Coarse(cotangent.round().to(torch.int8), torch.ones((), dtype=cotangent.dtype))


@pytest.mark.parametrize("clause", ["derivative", "hooks", "linear", "dtype", "state"])
def test_a_weight_of_another_class_is_handed_over_as_it_is(clause):
    finding = check(CoarseProduct, normal(3, 4, dtype=torch.float32), coarse(4, 2), clauses=clause)[
        clause
    ]
    assert finding.verdict is Verdict.HOLDS, finding


def test_a_gradient_that_has_no_numbers_of_its_own_is_said_to_be_one():
    finding = check(CoarseGradient, normal(3, 4), gradient="surrogate", clauses="derivative")
    assert finding["derivative"].verdict is Verdict.LACKING, finding
    assert "Coarse" in finding["derivative"].detail


class SharedScale(Function):
    """A product whose weight gets a gradient from rows that are rounded by their largest entry."""

    @staticmethod
    def forward(ctx, x, weight):
        if weight.ndim != 2:
            raise ValueError("a matrix alone")
        ctx.save_for_backward(x, weight)
        return x @ weight.mT

    @staticmethod
    def backward(ctx, cotangent):
        x, weight = ctx.saved_tensors
        rows, flat = x.flatten(0, -2), cotangent.flatten(0, -2)
        scale = rows.abs().amax(0, keepdim=True) / 8
        return cotangent @ weight, flat.mT @ ((rows / scale).round() * scale)


def test_what_is_rounded_by_the_largest_of_all_rows_is_not_accused_where_shapes_agree():
    inputs = normal(4, 4), normal(4, 4, seed=2)
    finding = check(SharedScale, *inputs, gradient="surrogate", clauses="rank")["rank"]
    assert not finding.verdict.is_bad, finding


class Gathers(Function):
    """Rows by an index of which torch computes little."""

    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.count = len(x)
        return x[index.long()]

    @staticmethod
    def backward(ctx, cotangent):
        (index,) = ctx.saved_tensors
        rows = cotangent.new_zeros(ctx.count, *cotangent.shape[1:])
        return rows.index_add(0, index.long(), cotangent), None


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.int64])
def test_indices_of_any_kind_are_changed_for_a_second_call(dtype):
    report = check(Gathers, normal(4, 3), torch.tensor([0, 3, 1], dtype=dtype), clauses="state")
    assert report["state"].verdict == Verdict.HOLDS
