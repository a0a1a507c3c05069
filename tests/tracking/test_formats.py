"""Rounding to number formats equals a brute-force search of each format's values."""

import json
import math
import re
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzzing import examples
from tests.tracking.torchao_casts import DIGESTS, blocks, digest

from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.tracking.formats import (
    BFLOAT16,
    E2M1,
    E4M3,
    E4M3_FNUZ,
    E5M2,
    FORMATS,
    SCALED_FORMATS,
    NumberFormat,
    ScaledFormat,
    advise_formats,
    draw_noise,
    find_format,
    round_values,
    simulate_format,
)

CAST = [known for known in FORMATS if known.dtype is not None]  # torch has no cast to E2M1
EVERY_BFLOAT16 = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
each_format = pytest.mark.parametrize("known", FORMATS, ids=str)


@cache
def table_of(known):
    """Every finite value >= 0 of a format, in order: decoded from torch's bits, or built."""
    if known.dtype is None:  # E2M1 has eight
        return torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    if known.bits == 16:
        patterns = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(known.dtype)
    else:
        patterns = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(known.dtype)
    values = patterns.double()
    return values[values.isfinite() & (values >= 0)].unique()


def brute_force(values, known):
    """Round magnitudes by search: the nearer neighbour, or the even one; and what overflows."""
    table = table_of(known)
    beyond = table[-1] + (table[-1] - table[-2])
    table = torch.cat([table, beyond[None]])
    magnitude = values.abs().double().clamp(max=float(beyond))
    above = torch.searchsorted(table, magnitude).clamp(max=len(table) - 1)
    below = (above - 1).clamp(min=0)
    up, down = table[above] - magnitude, magnitude - table[below]
    # Values are in the order of their bits, so the even one has the even index.
    even = torch.where(above % 2 == 0, above, below)
    index = torch.where(up < down, above, torch.where(up > down, below, even))
    return table[index], index == len(table) - 1


@each_format
def test_the_description_is_that_of_the_bits(known):
    table = table_of(known)
    assert table[-1] == known.largest
    assert table[1] == known.smallest
    assert known.smallest_normal in table.tolist()
    if known.dtype is not None:
        info = torch.finfo(known.dtype)
        assert (info.max, info.smallest_normal) == (known.largest, known.smallest_normal)
        assert known.bits == info.bits


@each_format
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_all_bfloat16_patterns_round_as_by_search(known, dtype):
    values = EVERY_BFLOAT16.to(dtype)
    finite = values.isfinite()
    got = round_values(values.double(), known)
    expected, _ = brute_force(values[finite], known)
    expected = expected.clamp(max=known.largest)
    assert torch.equal(got[finite].abs(), expected)
    negative = torch.signbit(values) if known.signed_zero else (values < 0) & (got != 0)
    assert torch.equal(torch.signbit(got[finite]), negative[finite])
    assert torch.equal(got.isnan(), values.isnan())
    assert torch.equal(got[values.isinf()], values[values.isinf()].double())


def both_ways(values, known):
    """Values, and the same as a gradient, as the format's own cast has them."""
    yield simulate_format(values, forward=known, overflow="cast")
    leaf = torch.ones_like(values, requires_grad=True)
    shaped = simulate_format(leaf, backward=known, overflow="cast")
    yield from torch.autograd.grad(shaped, leaf, values)


@pytest.mark.parametrize("known", CAST, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_all_bfloat16_patterns_round_as_torch_casts(known, dtype):
    values = EVERY_BFLOAT16.to(dtype)
    expected = values.to(known.dtype).to(dtype)
    for got in both_ways(values, known):
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(torch.signbit(got)[~got.isnan()], torch.signbit(expected)[~got.isnan()])


TORCHAO = json.loads(DIGESTS.read_text())


@pytest.mark.parametrize("name", TORCHAO)
def test_all_bfloat16_patterns_round_as_torchao_casts(name):
    for rows, expected in TORCHAO[name].items():
        for got in both_ways(blocks()[rows], find_format(name)):
            assert digest(got) == expected, rows


def test_every_format_is_compared_with_a_cast_of_others():
    assert {*map(str, CAST), *TORCHAO} == {*map(str, FORMATS), *map(str, SCALED_FORMATS)}


@pytest.mark.parametrize("known", [*FORMATS, *SCALED_FORMATS], ids=str)
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_no_format_hides_divergence(known, value, rounding):
    x = torch.linspace(-1, 1, 40, dtype=torch.float64)
    x[3] = value
    y = simulate_format(x, forward=known, rounding=rounding)
    assert not y[3].isfinite()
    if y[3].isinf():
        assert y[3] == value
    leaf = torch.ones_like(x, requires_grad=True)
    (gradient,) = torch.autograd.grad(
        simulate_format(leaf, backward=known, rounding=rounding), leaf, x
    )
    assert torch.equal(gradient.isfinite(), y.isfinite())


@pytest.mark.parametrize("known", SCALED_FORMATS, ids=str)
def test_a_nan_takes_what_shares_its_scale_along(known):
    x = torch.ones(2, 64)
    x[0, 3] = torch.nan
    expected = torch.zeros(2, 64, dtype=torch.bool)
    size = 64 if known.per == "channel" else 32 if known.per == "tensor" else known.per
    expected[0, :size] = True
    if known.per == "tensor" or known.scale == "E4M3":  # the tensor has a scale too
        expected[:] = True
    assert torch.equal(round_values(x, known).isnan(), expected)


def test_values_between_bfloat16_round_as_torch_casts():
    values = torch.randn(100_000, generator=torch.Generator().manual_seed(0)).double()
    values = values * 2.0 ** torch.randint(-30, 17, (100_000,))
    for known in CAST:
        single = values.float()
        got = round_values(single, known, overflow="cast")
        torch.testing.assert_close(
            got.double(), single.to(known.dtype).double(), rtol=0, atol=0, equal_nan=True
        )


@pytest.mark.parametrize("known", [*FORMATS, *SCALED_FORMATS], ids=str)
@pytest.mark.parametrize("overflow", ["saturate", "cast"])
def test_a_cast_of_torch_rounds_as_float64_does(known, overflow):
    drawn = torch.Generator().manual_seed(1)
    x = torch.randn(512, 64, generator=drawn) * 2.0 ** torch.randint(
        -140, 120, (512, 1), generator=drawn
    )
    x[:, :8] = x[:, :8].bfloat16().float() * (1 + 2.0**-8)  # ties, and what is around them
    x[:, 8:10] *= 2.0**-20
    for values in (x, x.bfloat16(), x.clamp(-6e4, 6e4).half()):
        got = round_values(values, known, overflow=overflow)
        expected = round_values(values.double(), known, overflow=overflow).to(values.dtype)
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(got.signbit()[~got.isnan()], expected.signbit()[~got.isnan()])


def test_float64_is_not_rounded_twice():
    # Just above the tie between 1 and 1 + 2**-7; through float32 it would become the tie.
    tie = 1 + 2.0**-8
    value = torch.tensor([tie + 2.0**-40, tie - 2.0**-40, tie], dtype=torch.float64)
    assert round_values(value, BFLOAT16).tolist() == [1 + 2.0**-7, 1.0, 1.0]


@each_format
def test_the_values_of_a_format_stay(known):
    table = table_of(known)
    noise = torch.full(table.shape, 1 - 2.0**-24)
    for values in (table, -table):
        assert torch.equal(round_values(values, known), values)
        assert torch.equal(round_values(values, known, noise), values)


@given(value=st.floats(-1e6, 1e6), known=st.sampled_from(FORMATS), noise=st.floats(0, 1 - 2**-24))
@settings(max_examples=examples(100), deadline=None)
def test_stochastic_rounding_gives_a_neighbour(value, known, noise):
    x = torch.tensor([value], dtype=torch.float64)
    got = round_values(x, known, torch.tensor([noise], dtype=torch.float64))
    table = table_of(known)
    limited = x.abs().clamp(max=known.largest)
    above = int(torch.searchsorted(table, limited))
    neighbours = {float(table[above]), float(table[max(above - 1, 0)])}
    assert float(got.abs()) in neighbours


@each_format
def test_stochastic_rounding_is_unbiased(known):
    generator = torch.Generator().manual_seed(0)
    for value in (1.3, -1.3, known.smallest * 0.3):
        x = torch.full((200_000,), value, dtype=torch.float64)
        got = round_values(x, known, draw_noise(x, generator))
        spread = float(got.std())
        assert abs(float(got.mean()) - value) < 4 * spread / 200_000**0.5 + 1e-12
        assert len(got.unique()) == 2


def test_complex_values_round_by_parts():
    x = torch.tensor([0.3 + 17j, -1000 + 0.01j])
    got = round_values(x, E4M3)
    assert torch.equal(got.real, round_values(x.real, E4M3))
    assert torch.equal(got.imag, round_values(x.imag, E4M3))
    assert draw_noise(x).shape == (2, 2)
    round_values(x, E4M3, draw_noise(x))


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2],
    ids=str,
)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0), (2, 3)], ids=str)
def test_any_dtype_and_shape(dtype, shape):
    got = round_values(torch.zeros(shape).to(dtype), E2M1)
    assert (got.dtype, got.shape) == (dtype, shape)


def test_overflow_by_cast():
    x = torch.tensor([1e6, -1e6, torch.inf, 448.0])
    assert round_values(x, E5M2, overflow="cast").tolist() == [
        torch.inf,
        -torch.inf,
        torch.inf,
        448,
    ]
    cast = x.to(E4M3.dtype).to(x.dtype)  # before torch 2.13 NaN on a CPU
    torch.testing.assert_close(
        round_values(x, E4M3, overflow="cast"), cast, rtol=0, atol=0, equal_nan=True
    )
    assert round_values(x, E4M3_FNUZ, overflow="cast").isnan().all()
    assert round_values(x, E4M3).tolist() == [448, -448, torch.inf, 448]


def test_finding_a_format():
    assert find_format("E4M3 FNUZ") is find_format("e4m3_fnuz") is E4M3_FNUZ
    assert find_format(torch.float8_e4m3fn) is E4M3
    assert find_format(torch.float32) is find_format("fp32")
    assert find_format("MXFP6").element is find_format("E2M3")
    assert find_format("MXFP6 E3M2").element is find_format("e3m2")
    assert find_format("int8").per == "channel"  # not its elements, which are of use under a scale
    assert find_format(E2M1) is E2M1
    with pytest.raises(ArgumentError, match="no number format"):
        find_format("fp7")
    with pytest.raises(ArgumentError):
        find_format(None)  # E2M1 has no dtype either


def test_formats_as_wide_as_float64():
    double = NumberFormat("fp64", 11, 52, 1023, torch.finfo(torch.float64).max)
    narrow = NumberFormat("E11M10", 11, 10, 1023, 2.0**1023)
    x = torch.tensor([1e-305, -2.5e-308, 5e-324, 3e-320, 1e300, 0.3], dtype=torch.float64)
    assert torch.equal(round_values(x, double), x)
    expected = [
        math.copysign(round(Fraction(abs(v)) / q) * q, v)
        for v in x.tolist()
        for q in [Fraction(2) ** (max(math.frexp(v)[1] - 1, -1022) - 10)]
    ]
    assert round_values(x, narrow).tolist() == expected


def test_a_format_of_ones_own():
    own = NumberFormat("E3M0", 3, 0, 4, 8.0)
    x = torch.linspace(-10, 10, 1001, dtype=torch.float64)
    values = set(round_values(x, own).abs().tolist())
    assert values == {0, 0.125, 0.25, 0.5, 1, 2, 4, 8}
    with pytest.raises(ArgumentError):
        NumberFormat("E0", 0, 3, 1, 1.0)
    with pytest.raises(ArgumentError):
        NumberFormat("wrong", 4, 3, 7, 449.0)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        (torch.ones(2, dtype=torch.int64), ArgumentTypeError),
        (torch.ones(2, dtype=torch.bool), ArgumentTypeError),
        (torch.eye(2).to_sparse(), UnsupportedError),
        (1.0, ArgumentTypeError),
    ],
)
def test_bad_values(values, error):
    with pytest.raises(error):
        advise_formats(values)
    with pytest.raises(error):
        simulate_format(values, forward=E4M3)


def test_what_is_no_format_is_refused_by_name():
    with pytest.raises(ArgumentTypeError, match="find_format"):
        round_values(torch.ones(2), "E4M3")
    with pytest.raises(ArgumentTypeError, match="element"):
        ScaledFormat("x", "E4M3")


def test_the_documented_table_is_that_of_the_code():
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
    rows = dict(re.findall(r"^\| `([^`]+)`[^|]*\| (.+) \|$", page, re.MULTILINE))
    superscripts = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")

    def number(text):
        power = re.fullmatch(r"2(⁻\S+)", text)
        return 2.0 ** int(power[1].translate(superscripts)) if power else float(Fraction(text))

    for known in FORMATS:
        bits, largest, normal, smallest, has, _ = rows[known.name].split(" | ")
        assert int(bits) == known.bits
        assert number(largest) == pytest.approx(known.largest, rel=1e-3)
        assert (number(normal), number(smallest)) == (known.smallest_normal, known.smallest)
        assert ("infinities" in has, "no negative zero" in has) == (
            known.infinite,
            not known.signed_zero,
        )
    assert all(f"`{known.name}`" in page for known in SCALED_FORMATS)
