"""`track` under each transform."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.tracking import Key, Record, Statistics, track


def close(one: Statistics, values: torch.Tensor) -> bool:
    other = Statistics.of(values)
    return one.count == other.count and abs(one.scale - other.scale) <= 1e-6 * other.scale


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_values_and_gradients_pass_unchanged(x: torch.Tensor) -> None:
    record = Record("x")
    x.requires_grad_()
    y = track(x, record)
    assert torch.equal(y, x)
    assert y.data_ptr() == x.data_ptr()
    (gradient,) = torch.autograd.grad(y.sin().sum(), x)
    assert torch.equal(gradient, x.cos())
    assert close(record.total("forward"), x)
    assert close(record.total("backward"), x.cos())


def test_each_use_is_a_call_of_its_own(x: torch.Tensor) -> None:
    record = Record("x")
    x.requires_grad_()
    (track(track(x, record) * 2, record) * 3).sum().backward()
    for call, (value, gradient) in enumerate([(x, 6.0), (2 * x, 3.0)]):
        assert close(record.total("forward", call=call), value)
        assert record.total("backward", call=call).mean == gradient


def test_second_order_is_kept_apart(x: torch.Tensor) -> None:
    record = Record("x")
    x.requires_grad_()
    (first,) = torch.autograd.grad((track(x, record) ** 3).sum(), x, create_graph=True)
    first.square().sum().backward()
    assert close(record.total("backward"), 3 * x**2)
    assert close(record.total("backward", order=2), 2 * 3 * x**2)
    assert close(record.total("backward", visit=1), 6 * x**2 * 6 * x)
    assert torch.allclose(x.grad, 36 * x**3)


def test_grad_vjp_and_hessian(x: torch.Tensor) -> None:
    record = Record("x")

    def f(x: torch.Tensor) -> torch.Tensor:
        return track(x, record).sin().sum()

    assert torch.allclose(torch.func.grad(f)(x), x.cos())
    assert close(record.total("backward"), x.cos())
    hessian = torch.func.hessian(f)(x[0])
    assert torch.allclose(hessian, torch.diag(-x[0].sin()))


def test_jvp_records_the_tangent_and_no_gradient(x: torch.Tensor) -> None:
    record = Record("x")
    value, tangent = torch.func.jvp(lambda x: track(x, record).sin(), (x,), (2 * x,))
    assert torch.allclose(tangent, 2 * x * x.cos())
    assert {(key.direction, key.order) for key in record.totals()} == {
        ("forward", 0),
        ("tangent", 1),
    }
    assert close(record.total("tangent"), 2 * x)
    assert torch.equal(value, x.sin())


@pytest.mark.parametrize("dimension", [0, 1])
def test_vmap_measures_the_whole_batch(x: torch.Tensor, dimension: int) -> None:
    record = Record("x")
    gradient = torch.func.vmap(
        torch.func.grad(lambda x: track(x, record).sin().sum()), in_dims=dimension
    )(x)
    assert torch.allclose(gradient, x.movedim(dimension, 0).cos())
    assert close(record.total("forward"), x)
    assert close(record.total("backward"), x.cos())


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_equals_eager_with_one_graph(backend: str) -> None:
    eager, compiled = Record("x", every=3), Record("x", every=3)
    counter = CompileCounterWithBackend(backend)

    def f(x: torch.Tensor, record: Record) -> torch.Tensor:
        return track(track(x, record).sin(), record).sum()

    g = torch.compile(lambda x: f(x, compiled), backend=counter, fullgraph=True)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        a = torch.randn(17, generator=generator, requires_grad=True)
        b = a.detach().clone().requires_grad_()
        f(a, eager).backward()
        g(b).backward()
        assert torch.allclose(a.grad, b.grad, atol=1e-6)
        eager.step()
        compiled.step()
    assert counter.frame_count == 1
    ours, theirs = eager.totals(), compiled.totals()
    assert (
        set(ours)
        == set(theirs)
        == {Key("x", c, d, o) for c in (0, 1) for d, o in (("forward", 0), ("backward", 1))}
    )
    for key, total in ours.items():
        assert total.count == 7 * 17
        assert theirs[key].scale == pytest.approx(total.scale, rel=1e-6)


def test_integers_pass_and_are_measured() -> None:
    record = Record("ids")
    assert torch.equal(track(torch.arange(4), record), torch.arange(4))
    assert record.total().mean == 1.5


@pytest.mark.parametrize(
    "x", [torch.empty(0), torch.tensor(3.0), torch.full((3,), torch.nan), torch.tensor([1j])]
)
def test_odd_tensors_have_gradients(x: torch.Tensor) -> None:
    record = Record("x")
    x = x.clone().requires_grad_()
    track(x, record).abs().sum().backward()
    assert record.total("forward").count == record.total("backward").count


def test_steps_and_cadence() -> None:
    record = Record("x", every=2)
    for value in range(5):
        track(torch.full((2,), float(value)), record)
        record.step()
    assert record.total().count == 6
    assert record.total().mean == 2.0
    (series,) = record.run().series
    assert series.points.steps.tolist() == [0, 2, 4]


def test_bad_arguments_are_refused() -> None:
    record = Record("x")
    with pytest.raises(ArgumentTypeError):
        track([1.0], record)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError):
        track(torch.ones(1), "x")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="sparse"):
        track(torch.eye(2).to_sparse(), record)
    for bad in (
        {"name": ""},
        {"name": "x", "every": 0},
        {"name": "x", "every": True},
        {"name": "x", "history": 0},
    ):
        with pytest.raises(ArgumentError):
            Record(**bad)
    with pytest.raises(ArgumentError, match="recorded"):
        record.total("backward")


def test_a_gradient_in_place_after_track_is_refused_by_torch() -> None:
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="inplace"):
        track(x * 2, Record("x")).add_(1)
