import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tracking.models import sequential, train
from torch import nn

from pullback.errors import ArgumentError
from pullback.tracking import Tracker, diagnose, diff, read_run
from pullback.tracking.report._rows import render_table


class Chain(nn.Module):
    """Ten layers, any of which can be told to spoil its value or its gradient at a step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(10))
        self.spoil: tuple[int, str, float] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            x = torch.tanh(layer(x))
            if self.spoil and self.spoil[:2] == (index, "backward"):
                x.register_hook(
                    lambda gradient, bad=self.spoil[2]: gradient.index_fill(
                        0, torch.tensor([0]), bad
                    )
                )
        return x


@pytest.mark.parametrize("case", range(50))
def test_each_injected_infinity_is_named(case: int) -> None:
    generator = torch.Generator().manual_seed(case)
    layer, step = (int(torch.randint(n, (1,), generator=generator)) for n in (10, 3))
    direction = ("forward", "backward")[case % 2]
    layer = layer % 9 if direction == "backward" else layer  # the last tanh is the model's output
    bad = (math.inf, -math.inf, math.nan)[case % 3]
    model = Chain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Tracker(model) as tracker:
        for now in range(4):
            if now == step and direction == "forward":
                with torch.no_grad():
                    model.layers[layer].bias[0] = bad
            model.spoil = (layer, direction, bad) if now == step else None
            optimizer.zero_grad()
            model(torch.randn(3, 6, generator=generator)).sum().backward()
            optimizer.step()
    first = tracker.run().first_nonfinite
    assert first is not None, f"case {case}"
    found = (first.key.name, first.key.direction, first.place.step)
    assert found == (f"layers.{layer}", direction, step), f"case {case}"
    worst = tracker.diagnose()[0]
    assert (worst.problem, worst.key.name) == ("non-finite", f"layers.{layer}")
    before = [key.name for key, _ in tracker.run().predecessors]
    if direction == "forward" and layer:
        assert before[-1] == f"layers.{layer - 1}"
    if direction == "backward":
        assert before[-1] == f"layers.{layer + 1}"


def findings(model: nn.Module, steps: int = 12, **options: Any) -> set[tuple[str, str, str]]:
    with Tracker(model) as tracker:
        train(model, steps, **options)
    return {(one.problem, one.key.name, one.key.direction) for one in diagnose(tracker.run())}


def test_a_healthy_model_has_no_findings() -> None:
    assert findings(sequential()) == set()


def test_dead_layers() -> None:
    model = sequential()
    with torch.no_grad():
        model[0].bias.fill_(-100.0)
    found = findings(model)
    assert ("dead", "1", "forward") in found
    assert ("no gradient", "0", "backward") in found


def test_saturated_layers() -> None:
    model = sequential()
    with torch.no_grad():
        model[2].weight.mul_(1000.0)
    assert ("saturated", "3.0", "forward") in findings(model)


class Priced(nn.Module):
    """Returns its loss, as Hugging Face's models do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
        y = self.layer(x)
        return {"loss": scale * (1 + 1e-3 * y.square().mean()), "y": y}


@pytest.mark.parametrize("history", [1000, 10])
@pytest.mark.parametrize("fall", [0.999, 0.9])
def test_a_loss_is_no_layer(fall: float, history: int) -> None:
    model = Priced()
    with Tracker(model, history=history) as tracker:
        for step in range(40):
            model(torch.randn(4, 8), fall**step)["loss"].backward()
            tracker.step()
    loss = tracker.total("(root)[loss]")
    assert loss.mean_abs > 0.9 * loss.max_abs or loss.max_abs > 8 * loss.min_abs
    assert not [each for each in tracker.diagnose() if each.key.name == "(root)[loss]"]


def test_the_first_step_is_not_told_where_moments_are_gone(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    trackers = []
    for history in (5, 100):
        with Tracker(model, history=history, jsonl=tmp_path / "live.jsonl") as tracker:
            for step in range(30):
                model(torch.full((2, 3), math.nan if step in {3, 28} else 1.0))
                tracker.step()
        trackers.append(tracker)
        assert read_run(tmp_path / "live.jsonl").dropped == 0  # it has every step
    for tracker, later in zip(trackers, (None, 3), strict=True):
        tracker.to_jsonl(tmp_path / "run.jsonl")
        for run in (tracker.run(), read_run(tmp_path / "run.jsonl")):
            first, *others = diagnose(run)
            assert first.step == 3
            assert [each.step for each in others] == [later]  # it was said to be 28
            assert run.dropped == (0 if later else 25)


def test_what_stays_while_others_move_does_not_drift() -> None:
    kept, *falling = model = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
    with Tracker(model) as tracker:
        for step in range(30):
            x = torch.randn(2, 4)
            (kept(x).sum() + 0.8**step * sum(one(x).sum() for one in falling)).backward()
            tracker.step()
    assert (
        not tracker.diagnose()
    )  # "its scale shrank by 2^0.0, steadily", with a warning of numpy's


def test_drifting_layers() -> None:
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    free = nn.Parameter(torch.ones(1))
    model.register_parameter("free", free)

    def grow() -> None:
        with torch.no_grad():
            model[0].weight.mul_(1.5)
            model[0].bias.mul_(1.5)

    optimizer = torch.optim.SGD([free], lr=0.0)
    with Tracker(model) as tracker:
        for _ in range(14):
            model(torch.ones(3, 5))
            free.grad = torch.zeros(1)
            optimizer.step()
            grow()
    found = {(one.problem, one.key.name) for one in tracker.diagnose()}
    assert ("drifting", "0") in found


def test_updates_and_states_that_shrink_with_the_loss_do_not_drift() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    *others, bias = model.parameters()
    optimizer = torch.optim.AdamW([{"params": others}, {"params": [bias]}], lr=1e-2)
    with Tracker(model, parameters=True) as tracker:
        for _ in range(40):
            optimizer.zero_grad()
            model(torch.randn(64, 16)).square().mean().backward()
            optimizer.step()
            optimizer.param_groups[1]["lr"] *= 0.8  # this one comes to rest by itself
    updates = [series for series in tracker.run().series if series.key.name.endswith("[update]")]
    assert all(series.points.scale[-1] < series.points.scale[0] - 2 for series in updates)
    found = {one.key.name for one in tracker.diagnose()} - {"2", "(root)"}
    assert found == {"2.bias[update]"}


def test_diff_finds_what_moved() -> None:
    runs = []
    for factor in (1.0, 1.0, 8.0):
        model = sequential()
        with torch.no_grad():
            model[2].weight.mul_(factor)
        with Tracker(model) as tracker:
            train(model, 2)
        runs.append(tracker.run())
    assert diff(runs[0], runs[1], 0.0) == []
    changes = diff(runs[0], runs[2], 1.0)
    assert ("2", "forward") in {(one.key.name, one.key.direction) for one in changes}
    assert all(abs(one.octaves) > 1.0 for one in changes)
    assert [abs(one.octaves) for one in changes] == sorted(
        (abs(one.octaves) for one in changes), reverse=True
    )
    with pytest.raises(ArgumentError):
        diff(runs[0], runs[1], -1.0)
    with pytest.raises(ArgumentError):
        diff(runs[0], runs[1], math.nan)


def test_diff_counts_what_is_not_finite() -> None:
    runs = []
    for value in (1.0, math.inf):
        model = nn.Identity()
        with Tracker(model) as tracker:
            model(torch.tensor([0.0, value]))
        runs.append(tracker.run())
    (change,) = diff(*runs)
    assert str(change) == "(root) [forward]: 0.7071 -> 0; non-finite values 0 -> 1"


def test_diff_tells_what_only_one_run_has() -> None:
    model = sequential()
    with Tracker(model, names=["0"]) as one:
        train(model, 1)
    with Tracker(model, names=["2"]) as other:
        train(model, 1)
    changes = diff(one.run(), other.run())
    assert len(changes) == 4
    assert all(math.isinf(change.octaves) for change in changes)


@pytest.mark.parametrize(
    ("first", "second"),
    [(1e300, 1e200), (1e-300, 1e-200), (1.0, 1e300), (1e-300, 1.0), (1.5e308, 5e-324)],
)
def test_diff_sees_what_float64_has_no_squares_of(first: float, second: float) -> None:
    runs = []
    for value in (first, second, second):
        model = nn.Identity()
        with Tracker(model) as tracker:
            model(torch.full((3,), value, dtype=torch.float64))
            tracker.step()
        runs.append(tracker.run())
    (change,) = diff(runs[0], runs[1])
    assert change.octaves == pytest.approx(math.log2(second) - math.log2(first))
    assert f"{first:.4g} -> {second:.4g}" in str(change)
    assert diff(runs[1], runs[2], 0.0) == []


def test_a_line_of_the_table_stays_one_line() -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"a\nb": x, "c\x1b[31m": x + 1, "é": x + 2}

    model = Odd()
    with Tracker(model) as tracker:
        model(torch.ones(3))
    names = [line.split()[0] for line in tracker.table().splitlines()[2:]]
    assert names == [r"(root)[a\nb]", r"(root)[c\x1b[31m]", "(root)[é]"]
    assert tracker.total("(root)[a\nb]").count == 3  # its name is as it was


def test_the_table_has_a_line_for_each_tensor() -> None:
    model = sequential()
    with Tracker(model) as tracker:
        train(model, 2)
    lines = render_table(tracker.run()).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["0", "1", "2", "3.0", "3", "(root)"]
    assert len({len(line) for line in lines}) == 1


def test_advice_bounds_what_a_cast_loses() -> None:
    model = sequential()
    with Tracker(model) as tracker:
        train(model, 3)
    gradients = []
    twin = sequential()
    twin[2].register_forward_hook(lambda m, i, o: o.register_hook(gradients.append) and None)
    train(twin, 3)
    values = torch.cat([gradient.reshape(-1) for gradient in gradients])
    for name, dtype in (
        ("fp16", torch.float16),
        ("E5M2", torch.float8_e5m2),
        ("E4M3", torch.float8_e4m3fn),
    ):
        advice = tracker.advise("2", "backward")[name]
        lost = int(((values.to(dtype).float() == 0) & (values != 0)).sum())
        assert advice.underflow <= lost <= advice.underflow_at_most
    with pytest.raises(ArgumentError):
        tracker.advise("nothing")


class Normed(nn.Module):
    """A block with a layer norm, whose weight is near one and whose bias begins at zero."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.norm, self.down = nn.Linear(16, 64), nn.LayerNorm(64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.norm(self.up(x))))


def trained(steps: int = 12) -> Tracker:
    model = Normed()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with Tracker(model, parameters=True) as tracker:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(32, 16)).square().mean().backward()
            optimizer.step()
    return tracker


def test_parameters_are_no_activations(tmp_path: Path) -> None:
    tracker = trained()
    tracker.to_jsonl(tmp_path / "run.jsonl")
    for run in (tracker.run(), read_run(tmp_path / "run.jsonl")):
        sources = {series.key.source for series in run.series}
        assert sources == {"module", "parameter", "state", "update"}
        assert not diagnose(run), diagnose(run)


def test_the_optimizer_is_no_layer_and_does_not_stretch_the_axis(tmp_path: Path) -> None:
    tracker = trained()
    tracker.to_html(tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text()
    assert (
        "3 layers with their gradients, 6 parameters, 6 updates, 12 states of the optimizer" in page
    )
    rows = json.loads(page.split('id="data">')[1].split("</script>")[0])["rows"]
    groups = [row.get("group", "layers") for row in rows]
    assert [groups.count(group) for group in ("layers", "parameters", "updates", "states")] == [
        3,
        6,
        6,
        12,
    ]
