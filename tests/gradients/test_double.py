"""Second order: the derivative of the backward as written, against finite differences."""

import torch
from tests.gradients.table import FLOWING, each, with_grad

from pullback.gradients import dtype_gradient

STEP = 1e-6
# Rounding has no derivative; its second order is straight-through, tested by itself.
SMOOTH = [row for row in FLOWING if row.name != "dtype_gradient"]


@each(SMOOTH)
def test_the_derivative_of_the_backward(row):
    tensors, weights = row.tensors(2), row.tensors(3)
    cotangent = row.cotangent(tensors[0], 4)

    def product(cotangent, *tensors):
        rows = row.backward(cotangent, *tensors)
        return float(sum((r * w).sum() for r, w in zip(rows, weights, strict=True)))

    leaves = with_grad(tensors)
    seed = cotangent.clone().requires_grad_()
    rows = torch.autograd.grad(
        row.call(*leaves),
        leaves,
        seed,
        create_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )
    total = sum((r * w).sum() for r, w in zip(rows, weights, strict=True))
    variables = (seed, *leaves)
    got = torch.autograd.grad(total, variables, allow_unused=True, materialize_grads=True)
    points = (cotangent, *tensors)
    for index, direction in enumerate(row.tensors(5)[:1] + row.tensors(6)):
        moved = [
            product(*(p + sign * STEP * direction * (i == index) if i == index else p
                      for i, p in enumerate(points)))
            for sign in (1, -1)
        ]  # fmt: skip
        expected = (moved[0] - moved[1]) / (2 * STEP)
        actual = float((got[index].detach() * direction).sum())
        assert abs(actual - expected) < 1e-6 * max(1, abs(expected)), (index, actual, expected)


def test_rounding_passes_its_second_order_straight_through():
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    cotangent = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(
        dtype_gradient(x, torch.bfloat16), x, cotangent, create_graph=True
    )
    (second,) = torch.autograd.grad(first.sum(), cotangent)
    assert torch.equal(second, torch.ones_like(second))
