"""Autocast and loss scaling."""

import pytest
import torch
from tests.tracking.models import sequential

from pullback.tracking import Tracker
from pullback.tracking.formats import NumberFormat, signal_to_noise


def step(
    model: torch.nn.Module,
    x: torch.Tensor,
    scaler: torch.amp.GradScaler,
    optimizer: torch.optim.Optimizer,
) -> None:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(x).float().square().sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def test_values_under_autocast_are_as_they_are() -> None:
    model, x = sequential(), torch.randn(4, 5)
    seen = []
    model[2].register_forward_hook(lambda m, i, o: seen.append(o.detach().double().clone()))
    with Tracker(model) as tracker, torch.autocast("cpu", dtype=torch.bfloat16):
        model(x)
    assert tracker.total("2").std == pytest.approx(seen[0].std(correction=0).item(), abs=1e-9)


@pytest.mark.parametrize("scale", [2.0**10, 1000.0])
def test_the_loss_scale_is_removed_on_request(scale: float) -> None:
    totals = []
    for follow in (False, True):
        model = sequential()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        with Tracker(model, scaler=scaler if follow else None) as tracker:
            step(model, torch.linspace(-1, 1, 20).reshape(4, 5), scaler, optimizer)
        assert "update" not in vars(scaler)
        totals.append(tracker)
    scaled, removed = totals
    for key, total in removed.totals().items():
        by = scale if key.order else 1.0
        assert scaled.totals()[key].scale == pytest.approx(by * total.scale, rel=1e-6)
        assert sum(scaled.totals()[key].exponents.values()) == sum(total.exponents.values())


def test_a_step_that_the_scaler_skips_ends_too() -> None:
    model = sequential()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    with Tracker(model, scaler=scaler) as tracker:
        for value in (1.0, float("inf"), 1.0):
            step(model, torch.full((4, 5), value), scaler, optimizer)
    assert tracker.steps == 3
    (series,) = [s for s in tracker.run().series if (s.key.name, s.key.order) == ("0", 0)]
    assert series.points.steps.tolist() == [0, 1, 2]
    assert series.points.microbatches.tolist() == [0, 0, 0]
    assert tracker.run().first_nonfinite.place.step == 1


@pytest.mark.parametrize("exponent", [-1000, -600, 0, 600, 1000])
def test_the_ratio_of_signal_to_noise_has_no_scale(exponent: int) -> None:
    x = torch.randn(64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wide = NumberFormat("wide", 11, 3, 1023, 2.0**1023)
    expected = signal_to_noise(x, wide)
    assert signal_to_noise(x * 2.0**exponent, wide) == pytest.approx(expected, rel=1e-12)
    assert signal_to_noise(torch.complex(x, x) * 2.0**exponent, wide) == pytest.approx(expected)
    assert signal_to_noise(x[0] * 2.0**exponent, wide) > 20.0  # of one number
