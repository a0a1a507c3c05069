"""Batches that torch makes: of gradients by is_grads_batched, of examples and models by vmap."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.tracking.models import sequential
from torch import nn
from torch.autograd.functional import hessian, jacobian
from torch.func import functional_call, stack_module_state, vmap

from pullback.compat.unit_scaling import ScalePair, ScaleTracker
from pullback.tracking import Record, Tracker, channel_maximum, track

Function = Callable[[torch.Tensor], torch.Tensor]


def mapped(f: Function, x: torch.Tensor) -> Any:
    y = f(x)
    return vmap(lambda v: torch.autograd.grad(y, x, v, retain_graph=True)[0])(
        torch.ones(3, 6, 2).double()
    )


BATCHES: dict[str, Callable[[Function, torch.Tensor], Any]] = {
    "is_grads_batched": lambda f, x: torch.autograd.grad(
        f(x), x, torch.ones(3, 6, 2).double(), is_grads_batched=True
    )[0],
    "jacobian": lambda f, x: jacobian(f, x, vectorize=True),
    "jacobian forward": lambda f, x: jacobian(f, x, vectorize=True, strategy="forward-mode"),
    "hessian": lambda f, x: hessian(lambda x: f(x).square().sum(), x, vectorize=True),
    "vmap of grad": mapped,
}

COUNTS = {"is_grads_batched": 3 * 12, "vmap of grad": 3 * 12, "jacobian": 12 * 12}
COUNTS["jacobian forward"] = 24 * 12


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(torch.float64)


def inputs() -> torch.Tensor:
    return torch.randn(6, 4, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_tracker_measures_a_batch_of_gradients(model: Any, batch: str, backend: Any) -> None:
    x = inputs()
    expected = BATCHES[batch](model, x)
    measures = {"largest": channel_maximum()}
    with Tracker(model, backend=backend, measures=measures, blocks=4) as tracker:
        found = BATCHES[batch](model, x)
        tracker.step()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    if batch in ("is_grads_batched", "vmap of grad"):
        total = tracker.total("2", "backward")
        assert (total.count, total.mean, total.std) == (3 * 6 * 2, 1.0, 0.0)
    assert tracker.total("2").count == 12


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("way", ["track", "ScaleTracker"])
def test_a_tensor_is_followed_in_a_batch_of_gradients(model: Any, batch: str, way: str) -> None:
    x, record, scales = inputs(), Record("y"), ScalePair()

    def watched(x: torch.Tensor) -> torch.Tensor:
        y = model(x)
        return track(y, record) if way == "track" else ScaleTracker.track(y, scales)

    expected = BATCHES[batch](model, x)
    torch.testing.assert_close(BATCHES[batch](watched, x), expected, rtol=0, atol=0)
    if way == "track" and batch in COUNTS:
        record.flush()
        direction = "tangent" if batch == "jacobian forward" else "backward"
        assert record.total(direction).count == COUNTS[batch]


def test_blocks_of_a_batch_are_those_of_all_its_examples() -> None:
    model, x = sequential(), torch.randn(6, 5)
    with Tracker(model, blocks=4) as plain:
        model(x)
        plain.step()
    with Tracker(model, blocks=4) as tracker:
        vmap(model)(x)
        tracker.step()
    assert str(tracker.advise_blocks()) == str(plain.advise_blocks())
    wanted = {key: errors.nonzero for key, errors in plain.block_errors().items()}
    assert {key: errors.nonzero for key, errors in tracker.block_errors().items()} == wanted


def test_blocks_of_an_ensemble_are_of_all_its_weights() -> None:
    models = [nn.Linear(4, 8), nn.Linear(4, 8)]
    parameters, buffers = stack_module_state(models)
    with Tracker(models[0], blocks=4) as tracker:
        vmap(lambda p, b: functional_call(models[0], (p, b), (torch.ones(4),)))(parameters, buffers)
        tracker.step()
    (weight,) = (found for key, found in tracker.block_errors().items() if key.name.endswith("t"))
    assert weight.nonzero == 64


@pytest.mark.parametrize("functions", [(), ("linear", "relu")])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_statistic_is_under_each_name_of_a_tensor(functions: Any, direction: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    measures = {"largest": channel_maximum()}
    with Tracker(model, measures=measures, functions=functions) as tracker:
        for _ in range(2):
            model(torch.randn(5, 4)).sum().backward()
            tracker.step()
    called = [f"{number}/{name}" for number, name in enumerate(functions)]
    for name in ["0", "1", "(root)", *called]:
        assert tracker.total(name, direction).count == 80
        assert len(tracker.measured(name, "largest", direction)) == 2
    last, outer = (tracker.measured(name, "largest", direction) for name in ("1", "(root)"))
    assert {place: found.tolist() for place, found in last.items()} == {
        place: found.tolist() for place, found in outer.items()
    }
