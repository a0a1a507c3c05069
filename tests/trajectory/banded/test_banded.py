"""Banded solves: scipy and dense torch as oracles, every derivative, every transform."""

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzzing import examples, spread

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.trajectory.kernels.banded import (
    BandedSolve,
    banded_product,
    banded_solve,
)
from pullback.trajectory.kernels.banded._dispatch import _kernels
from pullback.trajectory.kernels.banded._reference import factorise, solve


def make_band(
    generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    """A diagonally dominant band, with rubbish where it stores nothing."""
    band = torch.randn(*shape, generator=generator, dtype=dtype)
    band[..., 0] = band[..., 0].abs() + 2 * shape[-1]
    return band


def dense(band: torch.Tensor) -> torch.Tensor:
    size, width = band.shape[-2], band.shape[-1] - 1
    matrix = band.new_zeros(*band.shape[:-2], size, size)
    for i in range(size):
        for d in range(min(width, i) + 1):
            matrix[..., i, i - d] = band[..., i, d]
            matrix[..., i - d, i] = band[..., i, d]
    return matrix


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


@settings(max_examples=examples(40), deadline=None)
@given(
    size=st.integers(0, 13),
    width=st.integers(0, 5),
    columns=st.integers(0, 3),
    batch=st.sampled_from([(), (1,), (3,), (0,), (2, 3)]),
    seed=st.integers(0, 2**31),
)
def test_it_solves_and_multiplies(
    size: int, width: int, columns: int, batch: tuple[int, ...], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    band = make_band(generator, *batch, size, width + 1)
    right = torch.randn(*batch, size, columns, generator=generator, dtype=torch.float64)
    x = banded_solve(band, right)
    assert x.shape == right.shape
    torch.testing.assert_close(dense(band) @ x, right, rtol=0, atol=1e-12)
    torch.testing.assert_close(banded_product(band, x), right, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_agrees_with_scipy_and_the_reference(
    generator: torch.Generator, dtype: torch.dtype
) -> None:
    band = make_band(generator, 4, 50, 4, dtype=dtype)
    right = torch.randn(4, 50, 3, generator=generator, dtype=dtype)
    x = banded_solve(band, right)
    tolerance = 100 * torch.finfo(dtype).eps
    torch.testing.assert_close(x, solve(band, right), rtol=tolerance, atol=tolerance)
    for item in range(4):
        lower = np.zeros((4, 50))
        for d in range(4):
            lower[d, : 50 - d] = band[item, d:, d].double().numpy()
        expected = scipy.linalg.solveh_banded(lower, right[item].double().numpy(), lower=True)
        assert np.abs(x[item].double().numpy() - expected).max() < tolerance


def test_the_factor_multiplies_to_the_matrix(generator: torch.Generator) -> None:
    band = make_band(generator, 2, 9, 4)
    factor = torch.tril(dense(factorise(band)))
    torch.testing.assert_close(factor @ factor.mT, dense(band))


def test_one_matrix_serves_a_batch(generator: torch.Generator) -> None:
    band = make_band(generator, 8, 4)
    right = torch.randn(2, 3, 8, 2, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(
        banded_solve(band, right), banded_solve(band.expand(2, 3, 8, 4).clone(), right)
    )
    strided = right.mT.contiguous().mT
    torch.testing.assert_close(banded_solve(band, strided), banded_solve(band, right))


SHAPES = [((2, 4, 3), (4, 1)), ((5, 3), (5, 2)), ((1, 1), (1, 1)), ((4, 4), (2, 4, 1))]


@pytest.mark.parametrize(("band_shape", "right_shape"), spread(SHAPES, 3))
def test_every_derivative(
    generator: torch.Generator, band_shape: tuple[int, ...], right_shape: tuple[int, ...]
) -> None:
    band = make_band(generator, *band_shape).requires_grad_()
    right = torch.randn(right_shape, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        banded_solve, (band, right), check_forward_ad=True, check_batched_grad=True
    )
    assert torch.autograd.gradgradcheck(
        banded_solve, (band, right), check_fwd_over_rev=True, fast_mode=True
    )


def test_the_dot_product(generator: torch.Generator) -> None:
    band, right = make_band(generator, 40, 4), torch.randn(40, 3, dtype=torch.float64)
    tangents = (torch.randn_like(band), torch.randn_like(right))
    x, pushed = torch.func.jvp(banded_solve, (band, right), tangents)
    weights = torch.randn_like(x)
    _, pull = torch.func.vjp(banded_solve, band, right)
    pulled = pull(weights)
    left = (weights * pushed).sum()
    other = sum((a * b).sum() for a, b in zip(pulled, tangents, strict=True))
    scale = (weights * pushed).abs().sum()
    assert abs(left - other) <= 1e-13 * scale


@pytest.mark.parametrize("in_dims", [(0, 0), (None, 1), (2, None), (1, 2)])
def test_vmap_equals_a_loop(
    generator: torch.Generator, in_dims: tuple[int | None, int | None]
) -> None:
    bands = make_band(generator, 3, 6, 3) if in_dims[0] is not None else None
    band = make_band(generator, 6, 3) if bands is None else bands.movedim(0, in_dims[0])
    rights = torch.randn(3, 6, 2, generator=generator, dtype=torch.float64)
    right = rights[0] if in_dims[1] is None else rights.movedim(0, in_dims[1])

    def energy(band: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return banded_solve(band, right).pow(2).sum()

    found = torch.func.vmap(torch.func.grad(energy, argnums=(0, 1)), in_dims)(band, right)
    for i in range(3):
        one = band if bands is None else bands[i]
        other = right if in_dims[1] is None else rights[i]
        expected = torch.func.grad(energy, argnums=(0, 1))(one, other)
        torch.testing.assert_close(found[0][i], expected[0])
        torch.testing.assert_close(found[1][i], expected[1])


def test_it_compiles_whole(generator: torch.Generator) -> None:
    band = make_band(generator, 6, 3).requires_grad_()
    right = torch.randn(6, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    compiled = torch.compile(banded_solve, backend="aot_eager", fullgraph=True)
    expected = torch.autograd.grad(banded_solve(band, right).sin().sum(), (band, right))
    found = torch.autograd.grad(compiled(band, right).sin().sum(), (band, right))
    torch.testing.assert_close(found, expected)


def test_unneeded_gradients_are_left_out(generator: torch.Generator) -> None:
    band = make_band(generator, 6, 3)
    right = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    BandedSolve.apply(band, right, True).sum().backward()
    assert band.grad is None
    assert right.grad is not None


def test_kernels_follow_device_and_dtype() -> None:
    for device, dtype, name in (
        ("cpu", torch.float32, "_cpu"),
        ("cpu", torch.float16, "_reference"),
        ("meta", torch.float64, "_reference"),
    ):
        assert _kernels(torch.zeros(1, device=device, dtype=dtype)).__name__.endswith(name)


def test_bad_input() -> None:
    band, right = torch.eye(3)[:, :2] + 1, torch.ones(3, 1)
    for wrong in (
        (band, torch.ones(4, 1)),
        (band[0], right),
        (band, right[:, 0]),
        (band[:, :0], right),
    ):
        with pytest.raises(ArgumentError, match="sizes"):
            banded_solve(*wrong)
    with pytest.raises(ArgumentTypeError, match="one real floating"):
        banded_solve(band, right.double())
    with pytest.raises(ArgumentTypeError, match="one real floating"):
        banded_solve(band.long(), right.long())
    indefinite = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 0.0]])
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.raises(ArgumentError, match="not positive definite"):
            banded_solve(indefinite.to(dtype), right.to(dtype))
