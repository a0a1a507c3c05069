"""Every dtype, complex numbers with their convention, and data that is not finite."""

import math
import warnings

import pytest
import torch
from tests.gradients.table import FLOWING, each, with_grad

import pullback.gradients as room

REAL = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
COMPLEX = [torch.complex64, torch.complex128]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
ORDERED = ("straight_through_", "dtype_gradient", "noise_gradient")


@each(FLOWING)
@pytest.mark.parametrize("dtype", [*REAL, *COMPLEX], ids=str)
def test_outputs_and_gradients_keep_the_dtype(row, dtype):
    if dtype.is_complex and row.name.startswith(ORDERED):
        pytest.skip("real by definition, or tested below")
    leaves = with_grad(row.tensors(dtype=dtype))
    output = row.call(*leaves)
    assert output.dtype == dtype
    got = torch.autograd.grad(
        output, leaves, row.cotangent(output), allow_unused=True, materialize_grads=True
    )
    assert [g.dtype for g in got] == [dtype] * len(leaves)
    if not dtype.is_complex:
        exact = row.backward(
            row.cotangent(output).double(), *(leaf.detach().double() for leaf in leaves)
        )
        tolerance = 8 * torch.finfo(dtype).eps
        if row.name == "dtype_gradient":
            tolerance = max(tolerance, 2**-7)
        for a, b in zip(got, exact, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=tolerance, atol=4 * tolerance)


SIMPLE = [
    lambda x: room.scale_gradient(x, 0.5),
    lambda x: room.scale_gradient(x, torch.tensor(0.5)),
    lambda x: room.scale_both(x, 2.0, 0.5),
    lambda x: room.reverse_gradient(x, 0.5),
    lambda x: room.clip_gradient(x, value=0.5),
    lambda x: room.clip_gradient(x, norm=0.5),
    room.normalise_gradient,
    lambda x: room.noise_gradient(x, 0.0),
    lambda x: room.dtype_gradient(x, torch.float32),
    lambda x: room.where_gradient(x, torch.tensor(True)),
    room.straight_through_round,
    lambda x: room.straight_through_sign(x, window=9.0),
    room.straight_through_threshold,
    room.straight_through_one_hot,
    lambda x: room.straight_through(x, x),
    lambda x: room.replace_gradient(x, x),
]
each_simple = pytest.mark.parametrize("call", SIMPLE, ids=range(len(SIMPLE)))


@each_simple
@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_float8(call, dtype):
    x = torch.tensor([0.5, 1.5, -2.0]).to(dtype).requires_grad_()
    cotangent = torch.tensor([0.25, 1.0, -0.5]).to(dtype)
    output = call(x)
    assert output.dtype == dtype
    (got,) = torch.autograd.grad(output, x, cotangent)
    assert got.dtype == dtype
    wide = x.detach().float().requires_grad_()
    (expected,) = torch.autograd.grad(call(wide), wide, cotangent.float())
    assert torch.equal(got.float(), expected.to(dtype).float())


@each_simple
@pytest.mark.parametrize("shape", [(0,), (1,), (0, 3), (1, 1)], ids=str)
def test_empty_and_single(call, shape):
    if shape == (0,) and call is room.straight_through_one_hot:
        pytest.skip("there is nothing to choose from")
    x = torch.randn(shape, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        output = call(x)
        (got,) = torch.autograd.grad(output, x, torch.ones(shape))
    assert output.shape == got.shape == shape


@each_simple
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_data_that_is_not_finite_does_not_disturb(call, value):
    x = torch.full((3,), value, requires_grad=True)
    (got,) = torch.autograd.grad(call(x), x, torch.tensor([1.0, 2.0, 3.0]))
    assert got.shape == (3,)
    assert got.isfinite().all()


@each_simple
def test_a_gradient_of_nan_stays_nan(call):
    x = torch.ones(3, requires_grad=True)
    (got,) = torch.autograd.grad(call(x), x, torch.full((3,), math.nan))
    assert got.isnan().all()


def test_zero_dimensional():
    x = torch.tensor(2.0, requires_grad=True)
    for call in SIMPLE:
        if call is room.straight_through_one_hot:
            continue
        (got,) = torch.autograd.grad(call(x), x, torch.tensor(1.0))
        assert got.shape == ()


class TestComplex:
    """A gradient, dL/dRe + i dL/dIm, is multiplied as given: no conjugate."""

    def setup_method(self):
        self.x = torch.tensor([1 + 2j, -0.5 + 1j], dtype=torch.complex128, requires_grad=True)
        self.g = torch.tensor([0.3 - 1j, 3 + 4j], dtype=torch.complex128)

    def grad(self, output):
        return torch.autograd.grad(output, self.x, self.g)[0]

    def test_a_complex_factor_multiplies_as_given(self):
        factor = 0.5 + 0.25j
        torch.testing.assert_close(self.grad(room.scale_gradient(self.x, factor)), self.g * factor)
        torch.testing.assert_close(
            self.grad(room.scale_both(self.x, 1.0, torch.tensor(factor))),
            (self.g * factor),
        )

    def test_the_tangent_is_that_of_the_transposed_map(self):
        factor, tangent = 0.5 + 0.25j, torch.tensor([1j, 2 - 1j], dtype=torch.complex128)
        out = torch.func.jvp(
            lambda t: room.scale_gradient(t, factor), (self.x.detach(),), (tangent,)
        )[1]
        torch.testing.assert_close(out, tangent * (0.5 - 0.25j))

    def test_scale_forward_has_the_exact_factor_gradient(self):
        factor = torch.tensor(0.5 - 2j, dtype=torch.complex128, requires_grad=True)
        plain = torch.tensor(0.5 - 2j, dtype=torch.complex128, requires_grad=True)
        got = torch.autograd.grad(room.scale_forward(self.x, factor), factor, self.g)
        torch.testing.assert_close(got, torch.autograd.grad(self.x * plain, plain, self.g))
        real = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
        plain = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
        got = torch.autograd.grad(room.scale_forward(self.x, real), real, self.g)
        torch.testing.assert_close(got, torch.autograd.grad(self.x * plain, plain, self.g))

    def test_clipping_keeps_the_phase(self):
        got = self.grad(room.clip_gradient(self.x, value=1.0))
        torch.testing.assert_close(got.abs(), self.g.abs().clamp(max=1))
        torch.testing.assert_close(got.angle(), self.g.angle())

    def test_normalising(self):
        got = self.grad(room.normalise_gradient(self.x, 2.0))
        torch.testing.assert_close(got, 2 * self.g / self.g.norm())

    def test_noise_has_the_variance_in_all(self):
        x = torch.zeros(20000, dtype=torch.complex64, requires_grad=True)
        generator = torch.Generator().manual_seed(0)
        output = room.noise_gradient(x, 3.0, generator)
        (got,) = torch.autograd.grad(output, x, torch.zeros_like(x))
        assert abs(float(got.abs().square().mean()) - 9) < 0.3
        assert abs(float(got.real.var()) - 4.5) < 0.2

    def test_dtype(self):
        x = self.x
        (got,) = torch.autograd.grad(room.dtype_gradient(x, torch.complex64), x, self.g / 3)
        assert torch.equal(got, (self.g / 3).to(torch.complex64).to(torch.complex128))

    def test_a_real_like_gets_the_real_part(self):
        like = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        (got,) = torch.autograd.grad(room.replace_gradient(self.x, like), like, self.g)
        assert torch.equal(got, self.g.real)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.complex64, torch.complex128], ids=str)
    def test_a_like_of_another_dtype_gets_the_gradient_in_its_own(self, dtype):
        like, g = torch.zeros(1, dtype=dtype, requires_grad=True), self.g.real
        y = room.replace_gradient(self.x.detach().real, like)
        (got,) = torch.autograd.grad(y, like, g)
        assert y.tolist() == self.x.real.tolist()
        torch.testing.assert_close(got, g.sum().reshape(1).to(dtype))


@pytest.mark.parametrize("scale", [1e-30, 1e30], ids=str)
def test_norms_neither_overflow_nor_vanish(scale):
    x = torch.zeros(2, requires_grad=True)
    g = torch.tensor([3.0, 4.0]) * scale
    (got,) = torch.autograd.grad(room.normalise_gradient(x), x, g)
    torch.testing.assert_close(got, torch.tensor([0.6, 0.8]))
    (got,) = torch.autograd.grad(room.clip_gradient(x, norm=2.5 * scale), x, g)
    torch.testing.assert_close(got, g / 2)


def test_a_zero_gradient_stays_zero_and_has_a_finite_derivative():
    x = torch.zeros(2, requires_grad=True)
    for call in (room.normalise_gradient, lambda x: room.clip_gradient(x, norm=1.0),
                 lambda x: room.clip_gradient(x, value=1.0)):  # fmt: skip
        g = torch.zeros(2, requires_grad=True)
        (first,) = torch.autograd.grad(call(x), x, g, create_graph=True)
        assert torch.equal(first, torch.zeros(2))
        (second,) = torch.autograd.grad(first.sum(), g)
        assert second.isfinite().all()


def test_masked_nan_becomes_zero():
    x = torch.ones(2, requires_grad=True)
    mask = torch.tensor([True, False])
    (got,) = torch.autograd.grad(room.where_gradient(x, mask), x, torch.tensor([2.0, math.nan]))
    assert got.tolist() == [2.0, 0.0]


def test_special_values_of_the_hard_functions():
    x = torch.tensor([math.nan, 0.0, -0.0, math.inf])
    assert room.straight_through_sign(x)[0].isnan()
    assert room.straight_through_sign(x)[1:].tolist() == [0.0, 0.0, 1.0]
    assert room.straight_through_threshold(x)[0].isnan()
    assert room.straight_through_round(torch.tensor([0.5, 1.5, -0.5])).tolist() == [0.0, 2.0, 0.0]
    assert room.straight_through_one_hot(x).isnan().all()
    rows = torch.tensor([[1.0, 1.0, 0.0], [0.0, 2.0, 1.0]])
    assert room.straight_through_one_hot(rows).tolist() == [[1, 0, 0], [0, 1, 0]]
    assert room.straight_through_one_hot(rows, dim=0).tolist() == [[1, 0, 0], [0, 1, 1]]


class TestExploding:
    """Gradients at the end of their dtype's range, where the norm or magnitude overflows."""

    def pull(self, call, cotangent):
        x = torch.zeros_like(cotangent, requires_grad=True)
        return torch.autograd.grad(call(x), x, cotangent)[0]

    def calls(self):
        return (
            lambda x: room.clip_gradient(x, norm=2.0),
            lambda x: room.normalise_gradient(x, 2.0),
        )

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    @pytest.mark.parametrize("complex_parts", [False, True])
    def test_the_direction_survives_where_the_norm_overflows(self, dtype, complex_parts):
        largest = torch.finfo(dtype).max
        g = torch.tensor([1.0, -0.5, 0.75, 1.0], dtype=torch.float64)
        if complex_parts:
            if dtype is torch.bfloat16:
                pytest.skip("there is no complex bfloat16")
            g = torch.complex(g, g.flip(0))
        expected = 2 * g / torch.linalg.vector_norm(g)
        huge = (g.to(dtype.to_complex() if complex_parts else dtype)) * largest
        for call in self.calls():
            got = self.pull(call, huge)
            tolerance = 4 * torch.finfo(dtype).eps
            torch.testing.assert_close(got.to(g.dtype), expected, rtol=tolerance, atol=0)

    @pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
    def test_subnormal_complex_gradients_have_a_direction(self, dtype):
        given = torch.tensor([1, 1j, 0], dtype=dtype) * (torch.finfo(dtype).tiny / 4)
        clip, normalise = self.calls()
        assert torch.equal(self.pull(clip, given), given)
        expected = torch.tensor([1, 1j, 0], dtype=dtype) * math.sqrt(2)
        torch.testing.assert_close(self.pull(normalise, given), expected)

    def test_below_the_bound_nothing_is_touched(self):
        g = torch.randn(5) * 1e-3
        assert torch.equal(self.pull(self.calls()[0], g), g)

    @pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
    def test_a_complex_gradient_clipped_by_value_keeps_its_phase(self, dtype):
        inf, largest = math.inf, torch.finfo(dtype).max
        diagonal = 2 / math.sqrt(2)
        pairs = [
            (complex(inf, 0), 2),
            (complex(inf, 5), 2),
            (complex(0, -inf), -2j),
            (complex(-inf, inf), complex(-diagonal, diagonal)),
            (complex(largest, largest), complex(diagonal, diagonal)),
            (complex(largest, 0), 2),
            (complex(0.5, 1), complex(0.5, 1)),
            (0j, 0j),
        ]
        given, expected = (torch.tensor(column, dtype=dtype) for column in zip(*pairs, strict=True))
        got = self.pull(lambda x: room.clip_gradient(x, 2.0), given)
        torch.testing.assert_close(got, expected)

    def test_complex_nan_stays_nan(self):
        given = torch.tensor([complex(math.nan, 0), complex(math.inf, math.nan)])
        assert self.pull(lambda x: room.clip_gradient(x, 2.0), given).isnan().all()

    def test_the_second_derivative_of_a_zero_gradient_is_that_of_the_identity(self):
        x = torch.zeros(1, dtype=torch.complex128, requires_grad=True)
        g = torch.zeros(1, dtype=torch.complex128, requires_grad=True)
        (pulled,) = torch.autograd.grad(room.clip_gradient(x, 0.5), x, g, create_graph=True)
        (got,) = torch.autograd.grad(pulled, g, torch.ones_like(pulled))
        assert got == 1


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64],
    ids=str,
)
@pytest.mark.parametrize("bound", ["value", "norm"])
def test_a_bound_beyond_the_dtype_clips_nothing(dtype, bound):
    x = torch.zeros(3, dtype=dtype, requires_grad=True)
    y = room.clip_gradient(x, **{bound: 1e300 if dtype == torch.float64 else 1e39})
    for cotangent in (torch.tensor([1.0, -2.0, 3.0], dtype=dtype), torch.zeros(3, dtype=dtype)):
        (gradient,) = torch.autograd.grad(y, x, cotangent, retain_graph=True)
        assert torch.equal(gradient, cotangent)
