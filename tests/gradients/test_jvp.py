"""Forward mode is the transpose of the backward, and refused by name where there is none."""

import pytest
import torch
from tests.fuzzing import examples
from tests.gradients.table import LINEAR, NONLINEAR, ROWS, STOPPED, each, gradients
from torch.autograd import forward_ad
from torch.func import jacfwd, jacrev, jvp

from pullback.errors import UnsupportedError
from pullback.gradients import scale_gradient

# torch itself loads its decompositions through the deprecated torch.jit.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


@each(LINEAR)
@pytest.mark.parametrize("seed", [0, 5])
def test_the_transpose(row, seed):
    tensors = row.tensors(seed)
    tangents = row.tensors(seed + 7)
    output, tangent = jvp(row.call, tensors, tangents)
    torch.testing.assert_close(output, row.value(*tensors))
    weight = row.cotangent(output, seed)
    rows = gradients(row, tensors, weight)
    products = sum((r * t).sum() for r, t in zip(rows, tangents, strict=True))
    torch.testing.assert_close((weight * tangent).sum(), products, rtol=1e-12, atol=1e-12)


@each(LINEAR)
def test_dual_numbers(row):
    tensors, tangents = row.tensors(), row.tensors(9)
    expected = jvp(row.call, tensors, tangents)[1]
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(t, d) for t, d in zip(tensors, tangents, strict=True)]
        got = forward_ad.unpack_dual(row.call(*duals)).tangent
        assert got is not None
        torch.testing.assert_close(got, expected)


@each(LINEAR)
def test_jacfwd_is_jacrev(row):
    tensors = row.tensors()
    torch.testing.assert_close(jacfwd(row.call)(*tensors), jacrev(row.call)(*tensors))


@each(NONLINEAR)
def test_a_nonlinear_backward_refuses_by_name(row):
    tensors = row.tensors()
    with pytest.raises(UnsupportedError):
        jvp(row.call, tensors, row.tensors(1))


@each([row for row in ROWS if row.name in STOPPED])
def test_a_stopped_tangent_is_zero(row):
    tensors = row.tensors()
    tangent = jvp(row.call, tensors, row.tensors(1))[1]
    assert torch.equal(tangent, torch.zeros_like(tangent))


@pytest.mark.parametrize("factor", [1e-6, 1e-7, 1e-8, 1e-9])
def test_tiny_factors_in_half_precision(factor):
    """What is lost where numbers are subnormal is no sign of a backward that is not linear."""
    for seed in range(examples(20)):
        generator = torch.Generator().manual_seed(seed)
        x, tangent = torch.randn(2, 100, generator=generator).half()
        _, pushed = jvp(lambda x: scale_gradient(x, factor), (x,), (tangent,))
        torch.testing.assert_close(pushed, tangent * factor, rtol=2e-3, atol=6e-8)
