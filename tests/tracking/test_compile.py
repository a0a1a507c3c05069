"""Compiled models: no graph breaks, one graph, the numbers of eager code."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.tracking.models import HuggingFaceStyle, Tied, sequential, train
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

from pullback.compat.unit_scaling import ScalePair, ScaleTracker
from pullback.tracking import Record, Tracker, track

pytestmark = pytest.mark.sampled(5)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compare(one: Tracker, other: Tracker) -> None:
    ours, theirs = one.totals(), other.totals()
    assert set(ours) == set(theirs)
    for key, total in ours.items():
        assert theirs[key].count == total.count
        assert theirs[key].scale == pytest.approx(total.scale, rel=1e-6)


@pytest.mark.parametrize("make", [sequential, Tied, HuggingFaceStyle])
@pytest.mark.parametrize("first", ["tracker", "compiler"])
def test_one_graph_over_twenty_steps_with_changing_cadence(make: Any, first: str) -> None:
    eager, compiled = make(), make()
    with Tracker(eager, every=3) as plain:
        expected = train(eager)
    counter = CompileCounterWithBackend("aot_eager")
    called = torch.compile(compiled, backend=counter, fullgraph=True)
    before = 0
    if first == "compiler":
        called(torch.ones(4, 5))
        before = counter.frame_count
    with Tracker(called, every=3) as tracker:
        found = train(compiled, called=called)
    assert counter.frame_count - before == 1
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(expected, found, strict=True))
    compare(plain, tracker)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.head = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(checkpoint(self.body, x, use_reentrant=False))


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("wants", [False, True])
def test_what_is_checkpointed_is_measured_once(backend: str, wants: bool) -> None:
    torch.manual_seed(0)
    model, x = Checkpointed(), torch.randn(5, 4, requires_grad=wants)
    plain = nn.Sequential(*model.body, model.head)
    plain(x).sum().backward()
    expected = [each.grad.clone() for each in model.parameters()]  # type: ignore[union-attr]
    model.zero_grad()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    with Tracker(compiled) as tracker:
        compiled(x).sum().backward()
        tracker.step()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    assert not [key for key in tracker.totals() if key.recomputed or key.visit]
    for name, count in {"body.0": 40, "body": 10, "head": 5, "(root)": 5}.items():
        assert tracker.total(name).count == tracker.total(name, "backward").count == count


@pytest.mark.parametrize("way", ["track", "ScaleTracker"])
def test_a_tensor_is_followed_within_a_checkpoint(way: str) -> None:
    layer, record, scales = nn.Linear(4, 4), Record("h"), ScalePair()

    def part(x: torch.Tensor) -> torch.Tensor:
        y = layer(x)
        y = track(y, record) if way == "track" else ScaleTracker.track(y, scales)
        return y.square()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def loss(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(part, x, use_reentrant=False).sum()

    x = torch.randn(5, 4)
    loss(x).backward()
    record.step()
    if way == "track":
        assert record.total("backward").mean_abs == pytest.approx(2 * record.total().mean_abs)
    else:
        assert scales.forward is not None
        assert scales.backward == pytest.approx(2 * scales.forward)


@pytest.mark.slow
def test_inductor() -> None:
    eager, compiled = sequential(), sequential()
    with Tracker(eager) as plain:
        train(eager, 4)
    with Tracker(compiled) as tracker:
        train(compiled, 4, called=torch.compile(compiled, fullgraph=True))
    compare(plain, tracker)


@pytest.mark.slow
def test_after_tracking_the_old_code_is_used_again() -> None:
    model = sequential()
    counter = CompileCounterWithBackend("aot_eager")
    called = torch.compile(model, backend=counter, fullgraph=True)
    train(model, 2, called=called)
    once = counter.frame_count
    with Tracker(model):
        train(model, 2, called=called)
    assert counter.frame_count == once + 1
    train(model, 2, called=called)
    assert counter.frame_count == once + 1


# Dynamo reads .grad of every tensor that enters a graph, and torch warns of that for a non-leaf.
looks_at_gradients = pytest.mark.filterwarnings("ignore:The .grad attribute")


@pytest.mark.slow
@looks_at_gradients
def test_a_graph_break_loses_nothing() -> None:
    class Breaking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.one, self.two = nn.Linear(5, 5), nn.Linear(5, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.one(x)
            torch._dynamo.graph_break()
            return self.two(x)

    eager, compiled = Breaking(), Breaking()
    with Tracker(eager) as plain:
        train(eager, 3)
    with Tracker(compiled) as tracker:
        train(compiled, 3, called=torch.compile(compiled, backend="aot_eager"))
    compare(plain, tracker)


@looks_at_gradients
def test_only_a_part_is_compiled() -> None:
    eager, compiled = sequential(), sequential()
    with Tracker(eager) as plain:
        train(eager, 3)
    compiled[2].compile(backend="aot_eager")
    with Tracker(compiled) as tracker:
        train(compiled, 3)
    compare(plain, tracker)


def steps_of(model: nn.Module, part: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """One step of training, of which a part is compiled as its recipes say."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def end() -> None:
        if part == "scaled":
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad()

    ended = torch.compile(end, backend="aot_eager") if part == "optimizer" else end

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        (scaler.scale(loss) if part == "scaled" else loss).backward()
        ended()
        return loss.detach()

    whole = part in {"whole", "scaled"}
    run = torch.compile(step, backend="aot_eager") if whole else step
    run.scaler = scaler if part == "scaled" else None  # type: ignore[attr-defined]
    return run


@looks_at_gradients
@pytest.mark.filterwarnings("ignore:Profiler")
@pytest.mark.parametrize("part", ["optimizer", "whole", "scaled"])
def test_a_compiled_step(part: str) -> None:
    losses, trackers = [], []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(5, 3)
        step: Any = steps_of(model, part if compiled or part == "scaled" else "none")
        data = [torch.randn(4, 5) for _ in range(4)]
        with Tracker(model, parameters=True, scaler=step.scaler) as tracker:
            losses.append([step(x).item() for x in data])
        trackers.append(tracker)
    assert losses[0] == pytest.approx(losses[1])
    assert [each.steps for each in trackers] == [4, 4]
    compare(*trackers)
    assert trackers[1].total("weight[update]").count == 60
