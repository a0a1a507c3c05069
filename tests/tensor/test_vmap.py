"""vmap: every in_dim, around and inside of derivatives, derived, by rule and item by item."""

import numpy as np
import pytest
import torch
from tests.tensor.helpers import SEED, agree, every_row, weighted

import pullback

func = torch.func


def batched(args, dim):
    return tuple(torch.stack([x, x * 2 - 1, -x], dim=dim) for x in args)


@every_row
@pytest.mark.parametrize("dim", [0, -1])
def test_batched_equals_the_formula(row, dim):
    args = batched(row.arguments(SEED), dim)
    agree(func.vmap(row.function, in_dims=dim)(*args), func.vmap(row.formula, in_dims=dim)(*args))


@every_row
def test_one_argument_batched(row):
    x, *rest = row.arguments(SEED)
    (xs,) = batched((x,), 0)
    dims = (0, *(None for _ in rest))
    argnums = tuple(range(1 + len(rest)))
    for transform in (lambda f: f, lambda f: func.grad(weighted(f), argnums)):
        agree(
            func.vmap(transform(row.function), in_dims=dims)(xs, *rest),
            func.vmap(transform(row.formula), in_dims=dims)(xs, *rest),
        )


@every_row
@pytest.mark.parametrize("outside", [True, False])
def test_with_derivatives(row, outside):
    args = batched(row.arguments(SEED), 0)
    argnums = tuple(range(len(args)))

    def gradient(function):
        if outside:
            return func.vmap(func.grad(weighted(function), argnums))(*args)
        return func.grad(lambda *a: func.vmap(weighted(function))(*a).sum(), argnums)(*args)

    def curvature(function):
        if outside:
            return func.vmap(func.hessian(weighted(function), argnums))(*args)
        return func.hessian(lambda *a: func.vmap(weighted(function))(*a).sum(), argnums)(*args)

    agree(gradient(row.function), gradient(row.formula))
    agree(curvature(row.function), curvature(row.formula))


@every_row
def test_nested_batches(row):
    args = tuple(torch.stack([a, a + 1]) for a in batched(row.arguments(SEED), 0))
    agree(
        func.vmap(func.vmap(row.function), in_dims=1)(*args),
        func.vmap(func.vmap(row.formula), in_dims=1)(*args),
    )


class Opaque(pullback.Function):
    """A kernel that torch cannot look into, batched item by item."""

    batching = "loop"

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        assert x.dim() == 1
        return torch.from_numpy(np.cumsum(x.detach().numpy() ** 2))

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        total = np.cumsum(cotangent.detach().numpy()[::-1])[::-1].copy()
        return torch.from_numpy(2 * x.detach().numpy() * total)


def test_item_by_item():
    xs = torch.randn(3, 4, dtype=torch.float64)
    agree(func.vmap(Opaque.apply)(xs), (xs**2).cumsum(-1))
    agree(func.vmap(Opaque.apply, in_dims=1)(xs), (xs.T**2).cumsum(-1))

    def scalar(function):
        return lambda x: (function(x) ** 2).sum()

    agree(
        func.vmap(func.grad(scalar(Opaque.apply)))(xs),
        func.vmap(func.grad(scalar(lambda x: (x**2).cumsum(-1))))(xs),
    )


def test_item_by_item_refuses_what_it_cannot():
    xs = torch.randn(3, 4, dtype=torch.float64)
    with pytest.raises(pullback.errors.UnsupportedError, match="batch is empty"):
        func.vmap(Opaque.apply)(xs[:0])
    with pytest.raises(pullback.errors.UnsupportedError, match="item by item"):
        func.vmap(func.grad(lambda x: func.grad(lambda y: Opaque.apply(y).sum())(x).sum()))(xs)
