import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzzing import examples
from tests.tracking.models import Around

from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.tracking import Statistics, Tracker, read_run
from pullback.tracking.measure._cpu import measure_cpu
from pullback.tracking.measure._dispatch import measure
from pullback.tracking.measure._layout import WIDTH
from pullback.tracking.measure._reference import measure_reference

numbers = st.lists(
    st.one_of(
        st.floats(width=32),
        st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-42, -1e-45, 3e38]),
    ),
    max_size=60,
)


def assert_close(one: Statistics, other: Statistics) -> None:
    a, b = one.to_row(), other.to_row()
    scale = np.maximum(np.abs(b), 1e-300)
    scale[1] = max(scale[1], abs(b[3]))  # a mean is known to the size of what was added
    scale[2] = max(scale[2], b[0] * b[3] ** 2)
    with np.errstate(invalid="ignore"):
        wrong = ~((a == b) | (np.abs(a - b) <= 1e-9 * scale))
    assert not wrong.any(), (np.flatnonzero(wrong), a[wrong], b[wrong])


@given(numbers, numbers)
@settings(max_examples=examples(150), deadline=None)
def test_merging_equals_measuring_together(first: list[float], second: list[float]) -> None:
    a, b = torch.tensor(first, dtype=torch.float32), torch.tensor(second, dtype=torch.float32)
    assert_close(Statistics.of(a).merge(Statistics.of(b)), Statistics.of(torch.cat([a, b])))


@pytest.mark.parametrize("values", [[], [math.nan], [math.inf, -math.inf, math.nan]], ids=str)
def test_without_a_finite_element_there_is_no_mean_and_no_maximum(values: list[float]) -> None:
    none = Statistics.of(torch.tensor(values))
    for size in (none.mean, none.mean_abs, none.max_abs, none.std, none.scale):
        assert math.isnan(size)
    assert Statistics.from_dict(json.loads(json.dumps(none.to_dict()))) == none
    assert Statistics.from_row(none.to_row()) == none == none.merge(Statistics(0))
    some = Statistics.of(torch.tensor([-2.0, 1.0]))
    for both in (none.merge(some), some.merge(none)):
        assert (both.mean, both.mean_abs, both.max_abs) == (-0.5, 1.5, 2.0)
        assert both.count == len(values) + 2


@given(numbers)
@settings(max_examples=examples(150), deadline=None)
def test_the_kernel_equals_the_reference(values: list[float]) -> None:
    for dtype in (torch.float32, torch.float64):
        x = torch.tensor(values, dtype=dtype)
        row = np.empty(WIDTH)
        for factor in (1.0, 2.0**-5, 0.3):
            measure_cpu(x, row, factor)
            expected = Statistics.from_row(measure_reference(x, factor).numpy())
            assert_close(Statistics.from_row(row), expected)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4095, 4096, 4097, 20011])
@pytest.mark.parametrize("special", [(), (math.nan,), (math.inf, -math.inf, 1e-41, 0.0)])
def test_every_block_size(size: int, special: tuple[float, ...]) -> None:
    x = torch.randn(size, generator=torch.Generator().manual_seed(size)).exp()
    x[: len(special)] = torch.tensor(special)[:size]
    assert_close(
        Statistics.from_row(measure(x)), Statistics.from_row(measure(x, backend="reference"))
    )


def _spread(octaves: float, size: int, top: int = 0) -> torch.Tensor:
    """Numbers of either sign, their exponents spread evenly over so many octaves below 2^top."""
    generator = torch.Generator().manual_seed(0)
    exponents = torch.rand(size, generator=generator, dtype=torch.float64) * -octaves
    signs = torch.randint(2, (size,), generator=generator) * 2 - 1
    return (signs * (exponents + top).exp2()).float()


@pytest.mark.parametrize("size", [7, 4096, 9001])
@pytest.mark.parametrize(
    "make",
    [
        lambda size: _spread(10, size) * 3e38,  # squares beyond float32
        lambda size: _spread(10, size) * 1e-37,  # squares below it; some subnormal
        lambda size: torch.full((size,), 2.0**-149),  # the smallest subnormal only
        lambda size: torch.full((size,), -(2.0**-126)),  # the smallest normal only
        lambda size: _spread(30.9, size),  # the widest block that is counted in one window
        lambda size: _spread(31.1, size),
        lambda size: _spread(148, size),  # every window, and subnormals below the last
        lambda size: _spread(270, size, top=127),  # fields above a window must not wrap into it
        lambda size: _spread(2, size).relu(),
        torch.zeros,
        lambda size: torch.where(torch.arange(size) % 1000 == 3, 1e-30, _spread(3, size)),
        lambda size: 1e4 + 1e-2 * _spread(3, size),  # a mean far from zero
        lambda size: torch.full((size,), 0.1),  # no variance at all
    ],
    ids=[
        "huge",
        "tiny",
        "smallest",
        "normal",
        "window",
        "windows",
        "all",
        "both ends",
        "relu",
        "zeros",
        "outliers",
        "shifted",
        "constant",
    ],
)
def test_every_range_of_exponents(make: Callable[[int], torch.Tensor], size: int) -> None:
    x = make(size)
    found, exact = Statistics.from_row(measure(x)), Statistics.of(x.double())
    assert_close(found, exact)
    assert found.exponents == exact.exponents
    assert found.zeros == int((x == 0).sum())
    assert found.std == pytest.approx(float(x.double().std(correction=0)), rel=1e-9, abs=1e-12)


@given(
    st.lists(st.integers(0, 2**32 - 1), max_size=40),
    st.integers(0, 2**32 - 1),
    st.integers(0, 5000),
)
@settings(max_examples=examples(100), deadline=None)
def test_any_bit_pattern_in_a_long_array(patterns: list[int], other: int, size: int) -> None:
    bits = np.full(len(patterns) + size, other, np.uint32)
    bits[: len(patterns)] = patterns
    x = torch.from_numpy(bits.view(np.float32))
    assert_close(
        Statistics.from_row(measure(x)), Statistics.from_row(measure(x, backend="reference"))
    )


def test_all_bfloat16_patterns_are_counted_by_exponent() -> None:
    x = torch.arange(65536).to(torch.int32).to(torch.uint16).view(torch.bfloat16)
    found = Statistics.of(x)
    wide = x.double()
    finite = wide[wide.isfinite() & (wide != 0)].abs()
    exponents, counts = torch.log2(finite).floor().unique(return_counts=True)
    assert found.exponents == dict(zip(exponents.long().tolist(), counts.tolist(), strict=True))
    assert (found.count, found.zeros, found.nans) == (65536, 2, int(wide.isnan().sum()))
    assert (found.positive_infinities, found.negative_infinities) == (1, 1)
    assert found.max_abs == finite.max()
    assert found.min_abs == finite.min()


def test_moments_of_bfloat16_are_wider_than_it() -> None:
    x = (torch.randn(100003, generator=torch.Generator().manual_seed(0)) * 3 + 100).bfloat16()
    found, exact = Statistics.of(x), x.double()
    assert abs(found.std - exact.std(correction=0)) < 1e-4
    assert abs(found.mean - exact.mean()) < 1e-6


@pytest.mark.parametrize(
    "x",
    [
        torch.empty(0),
        torch.empty(3, 0, 2, dtype=torch.float64),
        torch.tensor(2.5),
        torch.arange(-3, 9),
        torch.tensor([True, False, True]),
        torch.tensor([1 + 2j, -3j]),
        torch.full((7,), math.nan),
        torch.full((7,), -math.inf),
        torch.tensor([1.0, -2.0, 448.0]).to(torch.float8_e4m3fn),
        torch.tensor([1.0, -2.0, math.inf]).to(torch.float8_e5m2),
        torch.randn(4, 6, generator=torch.Generator().manual_seed(1)).t()[::2],
        torch.randn(3, 1, generator=torch.Generator().manual_seed(2)).expand(3, 5),
        torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(3)).movedim(0, 2),
        torch.conj(torch.tensor([1 + 2j, 3 - 1j])),
    ],
    ids=lambda x: f"{x.dtype}-{tuple(x.shape)}-{tuple(x.stride())}",
)
def test_any_data_is_measured(x: torch.Tensor) -> None:
    real = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    values = real.double().reshape(-1)
    finite = values[values.isfinite()]
    found = Statistics.of(x)
    assert found.count == values.numel()
    assert found.finite == finite.numel()
    assert found.nans == int(values.isnan().sum())
    if finite.numel():
        assert found.mean == pytest.approx(float(finite.mean()), rel=1e-9, abs=1e-9)
        assert found.std == pytest.approx(float(finite.std(correction=0)), rel=1e-9, abs=1e-9)
        assert found.scale == pytest.approx(float(finite.square().mean().sqrt()), rel=1e-9)
    else:
        assert math.isnan(found.std)
        assert math.isnan(found.scale)


@pytest.mark.parametrize(
    ("x", "error"),
    [
        (torch.eye(3).to_sparse(), UnsupportedError),
        (torch.empty(3, device="meta"), UnsupportedError),
        (Around(torch.ones(3)), UnsupportedError),
        ([1.0], ArgumentTypeError),
        (None, ArgumentTypeError),
    ],
    ids=["sparse", "meta", "around", "list", "none"],
)
def test_what_cannot_be_measured_is_refused(x: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        Statistics.of(x)  # type: ignore[arg-type]


def test_within_a_gradient_of_torch_func_it_is_measured_and_within_vmap_refused() -> None:
    x, found = torch.randn(3, 4), []
    torch.func.grad(lambda x: (found.append(Statistics.of(x)), x.sum())[1])(x)
    assert found == [Statistics.of(x)]
    with pytest.raises(UnsupportedError, match="vmap"):
        torch.func.vmap(lambda x: (Statistics.of(x), x)[1])(x)


def test_round_trip_through_json_fields() -> None:
    found = Statistics.of(torch.tensor([1.0, -0.25, 0.0, math.inf, math.nan]))
    assert Statistics.from_dict(found.to_dict()) == found
    assert Statistics.from_dict(Statistics(0).to_dict()) == Statistics(0)


@pytest.mark.parametrize(
    "damage", [{"count": "many"}, {"mean": None}, {"exponents": 3}, {"count": 0}]
)
def test_damaged_fields_are_refused(damage: dict[str, object]) -> None:
    fields = Statistics.of(torch.ones(3)).to_dict() | {"nans": 1} | damage
    with pytest.raises(ArgumentError):
        Statistics.from_dict(fields)


def test_a_kernel_asked_for_runs_or_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="triton"):
        measure(torch.ones(2), backend="triton")
    with pytest.raises(ArgumentError):
        measure(torch.ones(2), backend="fast")  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [[1e200, -3e200], [1e308] * 3, [1e-200, 3e-200], [1e150, 0.0]])
def test_moments_that_float64_does_not_hold_are_not_known(
    values: list[float], tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    for found in (Statistics.of(x), Statistics.of(x).merge(Statistics.of(torch.ones(2)))):
        assert math.isnan(found.std)
        assert math.isnan(found.scale)
    assert Statistics.of(x).max_abs == max(map(abs, values))
    model, path = torch.nn.Identity(), tmp_path / "run.jsonl"
    with Tracker(model, jsonl=path) as tracker:
        for _ in range(2):
            model(x)
            tracker.step()
    for kind in ("seen", "total"):
        assert kind in path.read_text()
    assert math.isnan(read_run(path).series[0].total.std)
    tracker.to_jsonl(path)
    assert math.isnan(read_run(path).series[0].total.scale)
    tracker.to_html(tmp_path / "run.html")
    assert tracker.table()
    tracker.diagnose()
    assert not [str(each.message) for each in recwarn.list]
