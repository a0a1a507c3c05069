"""What happens inside of a tracked block: other trackers, copies, failures, phases, turns."""

import contextlib
import copy
import functools
import io
import itertools
import json
import pickle
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tracking.models import sequential
from torch import nn

from pullback.errors import ArgumentError, ArgumentTypeError, RecordingError
from pullback.tracking import Tracker
from pullback.tracking.run._recording import RunWriter
from pullback.tracking.sinks import JsonLines
from pullback.tracking.watch._store import Rounds


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
    with pytest.raises(ArgumentTypeError, match="as names"):
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

    earlier = tmp_path / "run.jsonl"
    earlier.write_text("an earlier run")
    for names, error in ((choose, ValueError), ("nothing", ArgumentError)):
        with pytest.raises(error), Tracker(model, names=names, jsonl=earlier):
            pass
        assert earlier.read_text() == "an earlier run"
        assert not hooks_of(model)
        assert not any("forward" in vars(part) for part in model.modules())


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Any) -> None:
    model, scaler = sequential(), torch.amp.GradScaler("cpu")
    tracker = Tracker(model, jsonl=tmp_path / "no" / "a.jsonl", functions="relu", scaler=scaler)
    with pytest.raises(RecordingError), tracker:
        pass
    assert not hooks_of(model)
    assert not any("forward" in vars(part) for part in model.modules())
    assert "update" not in vars(scaler)


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


def saved(model: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    assert b"pullback" not in buffer.getvalue()
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "EMA": lambda model: torch.optim.swa_utils.AveragedModel(model).module,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "saved": saved,
}


@pytest.mark.parametrize("made", COPIES.values(), ids=COPIES.keys())
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("users", [False, True])
def test_a_copy_made_inside_is_a_plain_model(made: Any, own: bool, users: bool) -> None:
    model = sequential()
    if own:
        model[0].forward = functools.partial(nn.Linear.forward, model[0])
    if users:
        model[1].register_forward_hook(_user, with_kwargs=True, always_call=True)
        model[1].register_forward_pre_hook(_user)
    before = [set(vars(part)) for part in model.modules()]
    x = torch.randn(2, 5)
    with Tracker(model, functions="relu", parameters=True), Tracker(model[0]):
        model(x)
        twin = made(model)
        assert [set(vars(part)) for part in twin.modules()] == before
        assert hooks_of(twin) == [_user, _user] * users
        assert torch.equal(twin(x), model(x))
    assert [set(vars(part)) for part in model.modules()] == before
    assert hooks_of(model) == [_user, _user] * users


def _user(*_: Any) -> None:
    """A hook of the user's own."""


def test_trackers_that_end_in_any_order_leave_plain_copies() -> None:
    model = sequential()
    plain = set(vars(model))
    first, second = Tracker(model), Tracker(model)
    first.__enter__()
    with second:
        first.__exit__(None, None, None)
        assert set(vars(copy.deepcopy(model))) == plain
    assert set(vars(model)) == plain


def test_the_copy_of_a_module_that_copies_itself_lets_go_of_its_hooks() -> None:
    model = torch.fx.symbolic_trace(sequential())
    x = torch.randn(2, 5)
    with Tracker(model):
        twin = copy.deepcopy(model)
        assert torch.equal(twin(x), model(x))
    assert not hooks_of(twin)
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


def tracked_steps(model: nn.Module, **options: Any) -> Tracker:
    with Tracker(model, **options) as tracker:
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            tracker.step()
    return tracker


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is always full")
@pytest.mark.parametrize("how", ["jsonl", "sink"])
def test_a_full_disk_does_not_end_the_training(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, full = nn.Linear(2, 2), Path("/dev/full")
    if how == "jsonl":  # full later, not when it is opened
        opened = lambda self, path, *_: JsonLines.__init__(self, path, "run")  # noqa: E731
        monkeypatch.setattr(RunWriter, "__init__", opened)
        made: dict[str, Any] = {"jsonl": full}
    else:
        made = {"sinks": [JsonLines(full)]}
    with pytest.warns(UserWarning, match="not written"):
        tracker = tracked_steps(model, **made)
    assert tracker.total("(root)").count == 6
    for write in (tracker.to_jsonl, tracker.to_html):
        with pytest.raises(RecordingError, match="cannot be written"):
            write(full)
    with pytest.raises(RecordingError, match="cannot be written"):
        JsonLines(full).write(tracker.latest())


class Closing:
    def __init__(self, fails: bool) -> None:
        self.fails, self.closed = fails, False

    def write(self, observations: Any) -> None:
        pass

    def close(self) -> None:
        self.closed = True
        if self.fails:
            raise ValueError("a sink that fails")


def test_a_sink_that_fails_to_close_leaves_the_others_closed(tmp_path: Path) -> None:
    model, sinks, path = nn.Linear(2, 2), [Closing(True), Closing(False)], tmp_path / "run.jsonl"
    with pytest.raises(ValueError, match="a sink that fails"):
        tracked_steps(model, sinks=sinks, jsonl=path)
    assert [sink.closed for sink in sinks] == [True, True]
    assert '"kind":"total"' in path.read_text()


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_trackers_left_in_any_order_leave_nothing(own: bool, order: tuple[int, ...]) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    if own:
        model[1].forward = lambda x: x + 1
    before = [dict(vars(module)) for module in model.modules()]
    trackers = [Tracker(model) for _ in range(3)]
    for tracker in trackers:
        tracker.__enter__()
    for number in order:
        model(torch.ones(2, 3))
        trackers[number].__exit__(None, None, None)
    assert [dict(vars(module)) for module in model.modules()] == before
    counts = [tracker.total("1").count for tracker in trackers]
    assert counts == [6 * (order.index(number) + 1) for number in range(3)]


@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp", "vmap grad"])
def test_functions_are_seen_under_torch_func(transform: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.ReLU(inplace=True))
    x = torch.randn(3, 4)

    def gradient(x: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda x: model(x).sum())(x)

    def run() -> Any:
        if transform == "jvp":
            return torch.func.jvp(model, (x,), (x,))
        mapped = {"grad": gradient, "vmap": torch.vmap(model), "vmap grad": torch.vmap(gradient)}
        return mapped[transform](x)

    expected = run()
    with Tracker(model, names="(root)", functions=["tanh", "relu*"]) as tracker:
        found = run()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert tracker.total("1/tanh").count == 12
    backward = {key.name for key in tracker.totals() if key.direction == "backward"}
    assert ("1/tanh" in backward) == ("grad" in transform)
    assert "in place" in tracker.skipped["3/relu"]
