"""Nothing overwrites: calls, microbatches, recomputation, orders and visits are kept apart."""

from collections.abc import Callable

import pytest
import torch
from tests.tracking.models import Tied, loss_of, sequential, train
from tests.versions import needs_torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pullback.tracking import Key, Record, Tracker, track
from pullback.tracking.watch import _store


def test_tied_modules_number_their_calls() -> None:
    model = Tied()
    x = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    values, gradients = [], []
    model.layer.register_forward_hook(lambda m, i, o: values.append(o))
    with Tracker(model) as tracker:
        output = model(x)
        for value in values:
            value.retain_grad()
        output.sum().backward()
    gradients = [value.grad for value in values]
    for call in range(3):
        assert tracker.total("layer", call=call).mean == pytest.approx(
            values[call].mean().item(), abs=1e-7
        )
        found = tracker.total("layer", "backward", call=call)
        assert found.mean == pytest.approx(gradients[call].mean().item(), rel=1e-5)


def test_microbatches_are_numbered_and_merged() -> None:
    model = sequential()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Tracker(model, every=2) as tracker:
        for _ in range(4):
            for _ in range(3):
                model(torch.randn(2, 5)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        (series,) = [s for s in tracker.run().series if s.key == Key("0", 0, "backward", 1)]
    assert list(zip(series.points.steps, series.points.microbatches, strict=True)) == [
        (step, batch) for step in (0, 2) for batch in range(3)
    ]
    assert series.total.count == 6 * 2 * 7


def test_a_gradient_belongs_to_the_microbatch_of_its_value() -> None:
    model = sequential()
    with Tracker(model) as tracker:
        losses = [model(torch.randn(2, 5)).sum() for _ in range(2)]
        losses[0].backward()
        losses[1].backward()
        seen = [
            (one.key.direction, one.place.microbatch)
            for one in tracker.latest()
            if one.key.name == "0"
        ]
    assert seen == [("forward", 0), ("forward", 1), ("backward", 0), ("backward", 1)]


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def body(x: torch.Tensor) -> torch.Tensor:
            return self.second(torch.sin(self.first(x)))

        return checkpoint(body, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_is_marked(reentrant: bool) -> None:
    model = Checkpointed(reentrant)
    with Tracker(model) as tracker:
        model(torch.randn(2, 5, requires_grad=True)).square().sum().backward()
    totals = tracker.totals()
    first = totals[Key("first")]
    assert totals[Key("first", recomputed=True)] == first
    assert tracker.total("first", recomputed=True) == first
    gradients = [key for key in totals if key.name == "first" and key.direction == "backward"]
    assert gradients == [Key("first", 0, "backward", 1, recomputed=reentrant)]


@needs_torch("2.8", "a way to ask which hooks pack what is saved")
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_tracked_value_has_the_gradient_of_its_own_pass(reentrant: bool) -> None:
    """Non-reentrant checkpointing computes values again; the graph stays that of the first pass."""
    record, x = Record("h"), torch.ones(3, requires_grad=True)

    def body(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: track(x * factor, record).sin()

    y = x
    for factor in (2.0, 3.0):
        y = checkpoint(body(factor), y, use_reentrant=reentrant)
    y.sum().backward()
    assert x.grad is not None
    # What is computed again is numbered by itself, and the last region is the first one then.
    first = record.total("backward", call=int(reentrant), recomputed=reentrant)
    assert first.mean == pytest.approx(float(x.grad.mean()) / 2)
    assert {key.recomputed for key in record.totals() if key.order} == {reentrant}
    assert record.total("forward").mean == pytest.approx(2.0)


def test_second_order_passes_are_kept_apart() -> None:
    model = sequential()
    x = torch.randn(2, 5, requires_grad=True)
    with Tracker(model) as tracker:
        (gradient,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        gradient.square().sum().backward()
    orders = {(key.order, key.visit) for key in tracker.totals() if key.name == "0"}
    assert orders == {(0, 0), (1, 0), (1, 1), (2, 0)}


def test_a_retained_graph_is_visited_twice() -> None:
    model = sequential()
    loss = None
    with Tracker(model) as tracker:
        loss = model(torch.randn(2, 5)).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    totals = tracker.totals()
    assert totals[Key("0", 0, "backward", 1)] == totals[Key("0", 0, "backward", 1, visit=1)]


def test_visits_are_counted_over_many_microbatches() -> None:
    model = nn.Linear(3, 2)
    with Tracker(model) as tracker:
        outputs = [model(torch.randn(1, 3)) for _ in range(100)]  # an episode, say
        sum(output[:, 0].sum() for output in outputs).backward(retain_graph=True)
        sum(2 * output[:, 1].sum() for output in outputs).backward()
    for visit in (0, 1):
        found = tracker.total("(root)", "backward", visit=visit)
        assert (found.count, found.mean) == (200, 0.5 * (visit + 1))


def test_what_visits_are_counted_of_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_store, "VISITS", 10)
    model = sequential().eval()
    with Tracker(model) as tracker:
        for _ in range(20):
            model(torch.randn(1, 5)).sum().backward()
        assert 0 < sum(map(len, tracker._store._visits.values())) <= 10
    assert tracker.total("0").count == 20 * 7


def test_a_container_shares_the_row_of_its_last_module() -> None:
    model = sequential()
    with Tracker(model) as tracker:
        train(model, 3)
    for direction in ("forward", "backward"):
        assert tracker.total("3.0", direction) == tracker.total("(root)", direction)


def test_a_history_is_a_ring_of_four_bytes_a_point() -> None:
    model = nn.Sequential(*(nn.Identity() for _ in range(199)))
    with Tracker(model, history=20) as tracker:
        for _ in range(24):
            model(torch.ones(2, requires_grad=True) * 2).sum().backward()
            tracker.step()
    assert len({key.name for key in tracker.totals()}) == 200
    assert tracker.history_bytes <= 4 * 10**4  # values and gradients of 200 tensors x 20 steps
    assert tracker.run().dropped == 4
    (series,) = [s for s in tracker.run().series if s.key == Key("5")]
    assert series.points.steps.tolist() == list(range(4, 24))
    assert series.total.count == 48
    assert series.points.scale.tolist() == [1.0] * 20


def test_a_moment_that_comes_in_parts_takes_one_place_of_the_history() -> None:
    model = nn.Linear(3, 3)
    with Tracker(model, history=12) as tracker:
        for _ in range(5):
            sum(model(torch.ones(1, 3)).sum() for _ in range(4)).backward()
            tracker.step()
    assert [len(each.points) for each in tracker.run().series] == [12, 12]


def test_a_buffer_that_runs_full_loses_nothing() -> None:
    model = nn.Sequential(*(nn.Identity() for _ in range(700)))
    with Tracker(model) as tracker:
        model(torch.ones(2, requires_grad=True) * 2).sum().backward()
    totals = tracker.totals()
    assert len(totals) == 1402
    assert {total.count for total in totals.values()} == {2}
    assert [each.key for each in tracker.latest()] == list(totals)


def test_the_latest_step_is_whole_though_it_was_read_before_its_end() -> None:
    model = sequential()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Tracker(model) as tracker:
        for step in range(2):
            loss = model(torch.randn(2, 5)).sum()
            assert {each.key.direction for each in tracker.latest()} == {"forward"}
            loss.backward()
            optimizer.step()
            assert [each.key for each in tracker.latest()] == list(tracker.totals())
            assert {each.place.step for each in tracker.latest()} == {step}


def test_two_optimizers_end_one_step() -> None:
    model = sequential()
    halves = [torch.optim.SGD(model[i].parameters(), lr=0.1) for i in (0, 2)]
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with Tracker(model) as tracker:
        for _ in range(3):
            loss_of(model(torch.randn(2, 5))).backward()
            other.step()
            for optimizer in halves:
                optimizer.step()
    assert tracker.steps == 3
