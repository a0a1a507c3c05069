"""Format advice: exact counts equal a brute-force cast; bounds from a histogram hold them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzzing import examples
from tests.tracking.models import Around
from tests.tracking.test_formats import EVERY_BFLOAT16, brute_force, table_of

from pullback.errors import ArgumentError, UnsupportedError
from pullback.internal.torch import FakeTensorMode
from pullback.tracking.formats import (
    E2M1,
    E4M3,
    E5M2,
    FLOAT16,
    FORMATS,
    advise_formats,
    advise_from_exponents,
    find_format,
)

each_format = pytest.mark.parametrize("known", FORMATS, ids=str)


def histogram(values):
    values = values.double()
    magnitudes = values[values.isfinite() & (values != 0)].abs()
    exponents, counts = (torch.frexp(magnitudes).exponent - 1).unique(return_counts=True)
    zeros = int((values == 0).sum())
    return dict(zip(exponents.tolist(), counts.tolist(), strict=True)), zeros, magnitudes


@each_format
def test_counts_over_all_bfloat16_patterns_equal_a_brute_force_cast(known):
    advice = advise_formats(EVERY_BFLOAT16)[known.name]
    finite = EVERY_BFLOAT16[EVERY_BFLOAT16.isfinite()]
    rounded, over = brute_force(finite, known)
    assert advice.count == len(finite) == 65280
    assert advice.nonzero == 65278
    assert advice.overflow == advice.overflow_at_most == int(over.sum())
    assert (
        advice.underflow == advice.underflow_at_most == int(((rounded == 0) & (finite != 0)).sum())
    )
    nonzero = rounded != 0
    below = finite.double().abs() < known.smallest_normal
    assert advice.subnormal == int((nonzero & below).sum())
    if known.dtype is not None and known is not E4M3:  # whose cast saturates in torch 2.13
        cast = finite.to(known.dtype).double()
        assert advice.overflow == int((~cast.isfinite()).sum())
    if known.dtype is not None:
        cast = finite.to(known.dtype).double()
        assert advice.underflow == int(((cast == 0) & (finite != 0)).sum())


@each_format
def test_the_histogram_of_all_bfloat16_patterns_holds_the_counts(known):
    exponents, zeros, _ = histogram(EVERY_BFLOAT16)
    bounds = advise_from_exponents(exponents, zeros)[known.name]
    exact = advise_formats(EVERY_BFLOAT16)[known.name]
    assert (bounds.count, bounds.nonzero) == (exact.count, exact.nonzero)
    assert bounds.overflow <= exact.overflow <= bounds.overflow_at_most
    assert bounds.underflow <= exact.underflow <= bounds.underflow_at_most
    # Only the bin that a limit cuts is in doubt: 128 mantissas of two signs.
    assert bounds.overflow_at_most - bounds.overflow <= 256
    assert bounds.underflow_at_most - bounds.underflow <= 256


@given(
    seed=st.integers(0, 10_000),
    size=st.integers(0, 20),
    centre=st.integers(-20, 20),
    spread=st.integers(0, 15),
    known=st.sampled_from([known for known in FORMATS if known.bits < 16] + [FLOAT16]),
)
@settings(max_examples=examples(15), deadline=None)
def test_the_best_scale_is_found_by_trying_all(seed, size, centre, spread, known):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(size, generator=generator, dtype=torch.float64)
    values = values * 2.0 ** torch.randint(centre - spread, centre + spread + 1, (size,))
    advice = advise_formats(values, [known])[known.name]

    def lost(shift):
        scaled = values * 2.0**shift
        rounded, away = brute_force(scaled, known)
        zero = (rounded == 0) & (values != 0)
        subnormal = (scaled.abs() < known.smallest_normal) & ~zero & (values != 0)
        return int((away | zero).sum()), int(subnormal.sum())

    assert advice.lost_at_best == lost(math.log2(advice.best_scale))[0]
    best = min(range(-110, 111), key=lambda shift: (*lost(shift), abs(shift)))
    found = math.log2(advice.best_scale)
    assert (*lost(found), abs(found)) == (*lost(best), abs(best)), (found, best)
    exponents, zeros, magnitudes = histogram(values)
    bounds = advise_from_exponents(exponents, zeros, [known])[known.name]
    assert bounds.overflow <= advice.overflow <= bounds.overflow_at_most
    assert bounds.underflow <= advice.underflow <= bounds.underflow_at_most
    if len(magnitudes):
        narrow = advise_from_exponents(
            exponents, zeros, [known],
            largest=float(magnitudes.max()), smallest=float(magnitudes.min()),
        )[known.name]  # fmt: skip
        assert narrow.overflow <= advice.overflow <= narrow.overflow_at_most
        assert narrow.underflow <= advice.underflow <= narrow.underflow_at_most


def test_advice_that_can_be_read():
    values = torch.tensor([0.0, 1e-9, 1.0, 70000.0, torch.nan, torch.inf])
    advice = advise_formats(values)["fp16"]
    assert (advice.count, advice.nonzero) == (4, 3)
    assert (advice.overflow_share, advice.underflow_share) == (0.25, 0.25)
    assert not advice.fits
    assert advise_formats(values)["bf16"].fits
    # Six binades above the smallest subnormal, 2**-9, nothing is lost.
    assert advise_formats(torch.tensor([2.0**-12]))["E4M3"].best_scale == 2.0**6


def test_the_limits_are_those_of_ties_to_even():
    def count(known, value):
        advice = advise_formats(torch.tensor([value], dtype=torch.float64))[known.name]
        return advice.overflow, advice.underflow

    assert count(FLOAT16, 65520.0) == (1, 0)
    assert count(FLOAT16, 65519.99) == (0, 0)
    assert count(E4M3, 464.0) == (0, 0)  # ties to the even 448
    assert count(E4M3, 464.001) == (1, 0)
    assert count(E5M2, 61440.0) == (1, 0)
    assert count(E2M1, 7.0) == (1, 0)
    for known in FORMATS:
        assert count(known, known.smallest / 2) == (0, 1)
        assert count(known, known.smallest / 2 * (1 + 2.0**-30)) == (0, 0)


@pytest.mark.parametrize(
    "values",
    [
        torch.zeros(0),
        torch.zeros(3),
        torch.full((3,), math.nan),
        torch.full((1,), math.inf),
        torch.ones(2, dtype=torch.complex64),
        torch.ones(2).to(torch.float8_e4m3fn),
        torch.ones(2, dtype=torch.float16),
        torch.tensor([5e-324, 1.7e308], dtype=torch.float64),
    ],
    ids=["empty", "zero", "nan", "inf", "complex", "float8", "half", "extreme"],
)
def test_odd_data(values):
    for advice in advise_formats(values).values():
        assert 0 <= advice.overflow_share <= 1
        assert advice.best_scale > 0
        assert advice.lost_at_best <= advice.overflow + advice.underflow


def test_what_cannot_be_read_is_refused():
    x = torch.ones(3)
    with FakeTensorMode():
        fake = torch.ones(3)
    for unreadable in (Around(x), x.to("meta"), fake):
        with pytest.raises(UnsupportedError, match="no elements"):
            advise_formats(unreadable)
    with pytest.raises(UnsupportedError, match="vmap"):
        torch.func.vmap(lambda x: (advise_formats(x), x)[1])(x)


def test_counts_that_make_no_sense():
    with pytest.raises(ArgumentError):
        advise_from_exponents({0: -1})
    with pytest.raises(ArgumentError):
        advise_from_exponents({}, zeros=-1)
    assert advise_from_exponents({})["E4M3"].count == 0


def test_formats_by_name():
    values = torch.tensor([1e-6, 1.0, 1000.0])
    expected = {"E4M3": advise_formats(values)["E4M3"]}
    assert advise_formats(values, ["e4m3"]) == expected
    assert advise_formats(values, [torch.float8_e4m3fn]) == expected
    assert advise_from_exponents({0: 1}, formats=["E4M3"])["E4M3"].count == 1
    for call in (advise_formats, lambda x, known: advise_from_exponents({0: 1}, formats=known)):
        with pytest.raises(ArgumentError, match="MXFP8"):
            call(values, [find_format("MXFP8")])


def test_conjugated_values_count_by_parts():
    values = torch.tensor([1.0 + 1000.0j]).conj()
    assert advise_formats(values)["E4M3"].overflow == 1


def test_the_tables_are_whole():
    assert [len(table_of(known)) for known in FORMATS] == [31744, 32640, 127, 128, 124, 128, 8]


@pytest.mark.parametrize("exponent", [-1074, -1000, -901, -776, 776, 901, 1000, 1023])
@pytest.mark.parametrize("known", [E2M1, E4M3, FLOAT16], ids=str)
def test_the_best_scale_reaches_all_of_float64(known, exponent):
    found = advise_formats(torch.tensor([2.0**exponent], dtype=torch.float64), [known])[known.name]
    lost = float(2.0**exponent * found.best_scale > known.largest) or float(
        2.0**exponent * found.best_scale <= known.smallest / 2
    )
    assert found.lost_at_best == lost
    assert not lost or exponent == -1074  # no power of two in float64 brings that near enough
