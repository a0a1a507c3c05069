"""What happens inside of a tracked block: other trackers, copies, failures, phases, turns."""

import contextlib
import copy
import io
import json
import pickle
from collections import defaultdict
from typing import Any

import pytest
import torch
from tests.tracking.models import sequential
from torch import nn

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.tracking import Tracker
from pullback.tracking.watch._rounds import Rounds


def hooks_of(model: nn.Module) -> list[Any]:
    return [
        hook
        for part in model.modules()
        for hook in (*part._forward_hooks.values(), *part._forward_pre_hooks.values())
    ]


def test_one_pattern_may_be_a_string() -> None:
    model = sequential()
    with Tracker(model, names="3*") as tracker:
        model(torch.randn(4, 5))
    assert {key.name for key in tracker.totals()} == {"3", "3.0"}
    with pytest.raises(ArgumentTypeError):
        Tracker(model, names=[0])  # pyrefly: ignore


@pytest.mark.parametrize("names", [3, b"0", [1], True])
def test_names_that_are_no_patterns_are_refused(names: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="Names are patterns"):
        Tracker(sequential(), names=names)


def test_a_forward_set_inside_stays() -> None:
    model = sequential()
    with Tracker(model):
        layer = model[0]
        old = layer.forward
        layer.forward = lambda x: 2 * old(x)  # type: ignore[method-assign]
        doubled = layer(torch.ones(1, 5))
    assert torch.equal(model[0](torch.ones(1, 5)), doubled)
    assert not any("forward" in vars(part) for part in model[1:].modules())


@pytest.mark.parametrize("inner_first", [True, False])
def test_trackers_share_a_scaler(inner_first: bool) -> None:
    model = sequential()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)

    def step() -> None:
        scaler.scale(model(torch.randn(4, 5)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    trackers = [Tracker(model, scaler=scaler) for _ in range(2)]
    for tracker in trackers:
        tracker.__enter__()
    step()
    first, second = reversed(trackers) if inner_first else trackers
    first.__exit__(None, None, None)
    step()
    second.__exit__(None, None, None)
    step()
    assert (first.steps, second.steps) == (1, 2)
    assert "update" not in vars(scaler)


def test_a_scaler_with_an_update_of_its_own_gets_it_back() -> None:
    scaler = torch.amp.GradScaler("cpu")
    scaler.update = mine = lambda: None  # type: ignore[method-assign, assignment]
    with Tracker(sequential(), scaler=scaler):
        scaler.update()
    assert scaler.update is mine


def test_a_failing_enter_leaves_nothing(tmp_path: Any) -> None:
    model = sequential()

    def choose(name: str, module: nn.Module) -> bool:
        if name == "3":
            raise ValueError(name)
        return True

    for names, error in ((choose, ValueError), ("nothing", ArgumentError)):
        with pytest.raises(error), Tracker(model, names=names, jsonl=tmp_path / "run.jsonl"):
            pass
        assert not hooks_of(model)
        assert not any("forward" in vars(part) for part in model.modules())


def test_evaluation_without_an_optimizer_stays_small() -> None:
    model = sequential()
    with Tracker(model) as tracker, torch.no_grad():
        for _ in range(300):
            model(torch.randn(2, 5))
        counted = sum(map(len, tracker._store._visits.values()))
    assert counted <= 64 * 6
    assert tracker.total("0").count == 300 * 2 * 7


def test_evaluation_is_kept_apart_from_training(tmp_path: Any) -> None:
    model = sequential()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Tracker(model, jsonl=tmp_path / "run.jsonl") as tracker:
        for _ in range(2):
            model.train()
            model(torch.randn(4, 5)).sum().backward()
            optimizer.step()
            model.eval()
            model(torch.full((3, 5), 100.0)).sum().backward()
    assert tracker.total("0").count == tracker.total("0", "backward").count == 2 * 4 * 7
    for direction in ("forward", "backward"):
        assert tracker.total("0", direction, phase="evaluation").count == 2 * 3 * 7
    assert "evaluation" in tracker.table()
    keys = {key.phase for key in tracker.totals()}
    assert keys == {"training", "evaluation"}
    lines = (tmp_path / "run.jsonl").read_text().splitlines()
    assert {json.loads(line).get("phase") for line in lines[1:]} == keys
    alone = sequential().eval()
    with Tracker(alone) as tracker:
        alone(torch.randn(1, 5))
    assert tracker.total("0").count == 7


def test_optimizers_that_take_turns_are_both_seen() -> None:
    one, two = nn.Linear(3, 3), nn.Linear(3, 3)
    model = nn.ModuleDict({"one": one, "two": two})
    optimizers = {
        "one": torch.optim.SGD(one.parameters()),
        "two": torch.optim.SGD(two.parameters()),
    }
    with Tracker(model, every=2) as tracker:
        for _ in range(8):
            for name, optimizer in optimizers.items():
                model[name](torch.ones(1, 3)).sum().backward()
                optimizer.step()
    counts = [tracker.total(name).count // 3 for name in optimizers]
    assert counts == [4, 4] or counts == [5, 4] or counts == [4, 3], counts


def test_rounds_forget_who_does_not_come_back() -> None:
    class One:
        pass

    one, other = One(), One()
    rounds = Rounds()
    for _ in range(3):
        rounds.end(one)
        rounds.end(other)
    before = rounds.number
    for _ in range(300):
        rounds.end(one)
    assert rounds.number > before + 200


def test_copies_made_inside_carry_nothing() -> None:
    model = sequential()
    with Tracker(model):
        twin = copy.deepcopy(model)
        buffer = io.BytesIO()
        torch.save(model, buffer)
        pickled = pickle.dumps(model)
    assert b"pullback" not in pickled
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    x = torch.randn(2, 5)
    for other in (twin, loaded):
        assert torch.equal(other(x), model(x))
    assert not hooks_of(twin)  # those of a copy take themselves off
    assert not hooks_of(model)


class Defaults(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        found = defaultdict(list)
        found["y"] = self.layer(x)
        return found


def test_a_defaultdict_under_torch_func() -> None:
    model = Defaults()
    x = torch.randn(3)
    with Tracker(model) as tracker:
        got = torch.func.grad(lambda t: model(t)["y"].sum())(x)
        kept = torch.vmap(lambda t: model(t)["y"])(torch.randn(2, 3))
    torch.testing.assert_close(got, model.layer.weight.sum(0))
    assert kept.shape == (2, 3)
    assert tracker.total("(root)[y]").count == 9


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part, self.fails = nn.Linear(3, 3), True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.part(x)
        if self.fails:
            raise ValueError("half way")
        return y


def test_after_a_forward_that_raised_parts_begin_passes_again() -> None:
    model = Failing()
    with Tracker(model) as tracker:
        with contextlib.suppress(ValueError):
            model(torch.ones(1, 3))
        assert not tracker._store.inside
        for _ in range(3):
            model.part(torch.ones(1, 3))
    # The first belongs to the pass that failed; each of the others begins one.
    assert tracker.total("part", call=1).count == 3
    assert tracker.total("part", call=0).count == 9
