"""Tracking and number formats on a card say what they say on the CPU."""

import copy

import pytest
import torch
from tests.gpu.helpers import waiting_is_an_error
from tests.tracking.models import sequential

from pullback.tracking import Tracker, simulate_format
from pullback.tracking.formats import FORMATS, SCALED_FORMATS

EVERY_BFLOAT16 = torch.arange(65536).to(torch.int16).view(torch.bfloat16)


@pytest.mark.parametrize("known", [*FORMATS, *SCALED_FORMATS], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("overflow", ["saturate", "cast"])
def test_every_bfloat16_pattern_rounds_as_on_the_cpu(known, dtype, overflow):
    values = EVERY_BFLOAT16.to(dtype).reshape(256, 256)
    expected = simulate_format(values, forward=known, overflow=overflow)
    got = simulate_format(values.cuda(), forward=known, overflow=overflow)
    torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(
        got.signbit().cpu()[~got.isnan().cpu()], expected.signbit()[~expected.isnan()]
    )


def train(model, device, steps=3, **options):
    torch.manual_seed(0)
    batches = [torch.randn(8, 5) for _ in range(steps)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Tracker(model, **options) as tracker:
        for batch in batches:
            optimizer.zero_grad()
            model(batch.to(device)).square().sum().backward()
            optimizer.step()
    return tracker


@pytest.mark.parametrize(
    "options", [{}, {"blocks": "mxfp8"}, {"blocks": "nvfp4"}, {"blocks": 32}], ids=str
)
def test_a_run_on_a_card_is_that_on_the_cpu(options):
    model = sequential().double()
    there = copy.deepcopy(model).cuda()
    expected = train(model, "cpu", **options).totals()
    got = train(there, "cuda", **options).totals()
    assert got.keys() == expected.keys()
    for key, total in expected.items():
        assert got[key].count == total.count
        numbers = [(one.mean, one.std, one.mean_abs, one.max_abs) for one in (got[key], total)]
        torch.testing.assert_close(*numbers, rtol=1e-9, atol=1e-12, msg=str(key))


def test_a_step_waits_for_the_card_no_more_than_without():
    model = sequential().cuda()
    batch = torch.randn(8, 5, device="cuda")
    with Tracker(model):
        model(batch).sum().backward()
        with waiting_is_an_error():
            model(batch).sum().backward()
