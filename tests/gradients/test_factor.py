"""Factors: kept wide, broadcast, refused at the call when bad."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzzing import examples

import pullback.gradients as room
from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError

SCALING = [
    room.scale_gradient,
    room.scale_forward,
    lambda x, f, **kw: room.scale_both(x, f, 1.0, **kw),
    lambda x, f, **kw: room.scale_both(x, 1.0, f, **kw),
    room.reverse_gradient,
]
each_scaling = pytest.mark.parametrize("scale", SCALING)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "factor",
    [1e-9, torch.tensor(1e-9), torch.tensor([1e-9]), torch.tensor(1e-9, dtype=torch.float64)],
    ids=["number", "scalar", "tensor", "float64"],
)
def test_a_small_factor_survives_half_precision(dtype, factor):
    x = torch.ones(3, dtype=dtype, requires_grad=True)
    room.scale_gradient(x, factor).backward(torch.full((3,), 4096.0, dtype=dtype))
    assert x.grad.dtype == dtype
    assert (x.grad > 0).all()
    torch.testing.assert_close(
        x.grad.double(), torch.full((3,), 4.096e-6).double(), rtol=0.02, atol=0
    )


@each_scaling
@pytest.mark.parametrize(
    ("factor", "error"),
    [
        (None, ArgumentTypeError),
        ("2", ArgumentTypeError),
        (True, ArgumentTypeError),
        ([2.0], ArgumentTypeError),
        (2j, ArgumentTypeError),
        (torch.tensor(2j), ArgumentTypeError),
        (torch.tensor(True), ArgumentTypeError),
        (math.nan, ArgumentError),
        (math.inf, ArgumentError),
        (torch.tensor([1.0, math.nan, 1.0]), ArgumentError),
        (torch.ones(4), ArgumentError),
        (torch.ones(2, 3), ArgumentError),
        (torch.ones(0), ArgumentError),
        (torch.ones(3).to_sparse(), UnsupportedError),
        (torch.ones(3, device="meta"), ArgumentError),
    ],
    ids=repr,
)
def test_a_bad_factor_raises_at_the_call(scale, factor, error):
    with pytest.raises(error) as caught:
        scale(torch.ones(3, requires_grad=True), factor)
    assert "given:" in str(caught.value)


@each_scaling
def test_nan_is_taken_when_allowed(scale):
    scale(torch.ones(3), math.nan, allow_nan=True)
    scale(torch.ones(3), torch.tensor(math.inf), allow_nan=True)


@pytest.mark.parametrize("factor", [None, "2", math.nan, torch.tensor(math.nan), True])
@pytest.mark.parametrize("module", [room.ScaleGradient, room.ScaleForward, room.ReverseGradient])
def test_a_bad_factor_raises_when_a_module_is_made(module, factor):
    with pytest.raises(ArgumentError):
        module(factor)


def test_the_gradients_of_factors():
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    for shape in [(), (3,), (4, 1), (1, 3), (4, 3)]:
        factor = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        weight = torch.randn(4, 3, dtype=torch.float64)
        (got,) = torch.autograd.grad(room.scale_gradient(x, factor), factor, weight)
        assert got.shape == shape
        assert torch.equal(got, torch.zeros(shape, dtype=torch.float64))
        (got,) = torch.autograd.grad(room.scale_forward(x, factor), factor, weight)
        torch.testing.assert_close(got, (weight * x.detach()).sum_to_size(shape))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_the_gradient_of_a_half_precision_factor_has_its_dtype(dtype):
    x = torch.ones(3, dtype=dtype, requires_grad=True)
    factor = torch.full((1,), 2.0, dtype=torch.float16, requires_grad=True)
    output = room.scale_forward(x, factor)
    assert output.dtype == dtype
    output.sum().backward()
    assert factor.grad.dtype == torch.float16
    assert factor.grad.tolist() == [3.0]


@given(
    a=st.floats(-1e3, 1e3), b=st.floats(-1e3, 1e3), size=st.integers(0, 7), seed=st.integers(0, 99)
)
@settings(max_examples=examples(100), deadline=None)
def test_scalings_compose_by_multiplication(a, b, size, seed):
    x = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x.requires_grad_()
    weight = torch.randn(size, dtype=torch.float64)
    twice = room.scale_gradient(room.scale_gradient(x, a), b)
    (got,) = torch.autograd.grad(twice, x, weight)
    torch.testing.assert_close(got, weight * b * a)
    assert torch.equal(twice, x)


def test_reversing_twice_is_the_identity():
    x = torch.randn(5, requires_grad=True)
    weight = torch.randn(5)
    (got,) = torch.autograd.grad(room.reverse_gradient(room.reverse_gradient(x)), x, weight)
    assert torch.equal(got, weight)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("shape", [(), (1,)])
@each_scaling
def test_a_whole_number_keeps_its_digits(scale, shape, dtype):
    factor = torch.full(shape, 2**24 + 1)  # which float32 does not have
    x = torch.ones(3, dtype=dtype, requires_grad=True)
    y = scale(x, factor)
    (got,) = torch.autograd.grad(y, x, torch.ones_like(x))
    assert 2**24 + 1 in {abs(complex(number)) for number in (y.detach()[0], got[0])}


def test_a_whole_threshold_keeps_its_digits():
    x = torch.tensor([2**24 + 0.5, 2**24 + 1.5], dtype=torch.float64)
    assert room.straight_through_threshold(x, torch.tensor(2**24 + 1)).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda f: room.scale_gradient(torch.ones(3), f), True),
        (room.ScaleGradient, True),
        (lambda f: room.clip_gradient(torch.ones(3), f), False),
        (lambda f: room.noise_gradient(torch.ones(3), f), False),
        (lambda f: room.straight_through_threshold(torch.ones(3), torch.tensor(f)), False),
        (room.NoiseGradient, False),
    ],
    ids=range(6),
)
def test_only_who_takes_nan_names_the_way(call, named):
    with pytest.raises(ArgumentError) as caught:
        call(math.nan)
    assert ("allow_nan=True" in str(caught.value)) is named


@pytest.mark.parametrize("bound", ["1", torch.tensor(1.0)], ids=["text", "tensor"])
def test_a_bound_is_a_number_and_no_tensor(bound):
    with pytest.raises(ArgumentTypeError) as caught:
        room.clip_gradient(torch.ones(3), bound)
    assert caught.value.expected == "a number"
