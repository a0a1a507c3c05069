"""Recordings that were altered, modules with a forward of their own, and copies of what records."""

import copy
import json
import pickle
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fuzzing import examples
from torch import nn

from pullback.errors import (
    ArgumentError,
    ArgumentTypeError,
    PullbackError,
    RecordingError,
    UnsupportedError,
)
from pullback.tracking import Record, Tracker, diagnose, diff, read_run, track
from pullback.tracking.report._html import write_html
from pullback.tracking.report._rows import render_table
from pullback.tracking.sinks import JsonLines, WeightsAndBiases

WRONG = [
    None,
    True,
    -1,
    1.5,
    10**400,
    float("inf"),
    float("nan"),
    "x",
    "\0",
    [],
    {},
    [[]],
    -(2**60),
]


def lines_of(path: Path) -> list[str]:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    with Tracker(model, jsonl=path, measures={"mean": lambda x: x.mean()}) as tracker:
        for value in (1.0, torch.nan):
            model(torch.full((2, 4), value)).sum().backward()
            tracker.step()
    lines = path.read_text().splitlines()
    tracker.to_jsonl(path)
    return [*lines, *path.read_text().splitlines()[1:]]


def alter(lines: list[str], chance: random.Random) -> list[str]:
    """The lines with one field of one of them wrong, missing, or the line no object."""
    number = chance.randrange(len(lines))
    line = json.loads(lines[number])
    holder = line
    while True:
        name = chance.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        if isinstance(holder[name], dict | list) and holder[name] and chance.random() < 0.7:
            holder = holder[name]
            continue
        break
    if chance.random() < 0.2:
        del holder[name]
    else:
        holder[name] = chance.choice(WRONG)
    altered = json.dumps(line) if chance.random() < 0.95 else chance.choice(["[" * 100_000, "7"])
    return [*lines[:number], altered, *lines[number + 1 :]]


def test_an_altered_recording_is_refused_or_reported(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "whole.jsonl")
    whole = read_run(tmp_path / "whole.jsonl")
    seed = random.randrange(1 << 30)
    chance, refused = random.Random(seed), 0
    for case in range(examples(100)):
        path = tmp_path / "altered.jsonl"
        altered = alter(lines, chance)
        path.write_text("\n".join(altered) + "\n")
        try:
            run = read_run(path)
        except RecordingError:
            refused += 1
            continue
        try:
            diagnose(run), render_table(run), diff(whole, run), diff(run, whole)
            write_html(run, tmp_path / "page.html")
        except PullbackError:
            pass
        except Exception as error:
            changed = [new for new, old in zip(altered, lines, strict=True) if new != old]
            raise AssertionError(f"seed {seed}, case {case}: {error!r} of {changed}") from error
    assert refused > examples(20)


@pytest.mark.parametrize("field", ["mean", "mean_abs", "m2"])
@pytest.mark.parametrize("value", ["inf", 1e308, "nan"])
def test_statistics_that_cannot_be_are_merged_without_a_warning(
    tmp_path: Path, field: str, value: object
) -> None:
    lines = lines_of(tmp_path / "whole.jsonl")
    number = next(n for n, line in enumerate(lines) if json.loads(line)["kind"] == "seen")
    altered = {**json.loads(lines[number]), field: value}
    path = tmp_path / "altered.jsonl"
    path.write_text("\n".join([*lines[:number], json.dumps(altered), *lines[number:]]) + "\n")
    read_run(path)


def test_a_path_that_none_can_be() -> None:
    with pytest.raises(RecordingError):
        read_run("a\0b")


@pytest.mark.parametrize("history", [2.5, True, 0, "3"])
def test_a_history_is_a_whole_number(history: object) -> None:
    with pytest.raises(ArgumentError, match="history"):
        Tracker(nn.Linear(2, 2), history=history)  # type: ignore[arg-type]


def test_a_tracker_inside_itself_is_refused() -> None:
    hooks = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
    before = len(hooks)
    tracker = Tracker(nn.Linear(2, 2))
    with tracker, pytest.raises(UnsupportedError, match="once"), tracker:
        pass
    assert len(hooks) == before


def test_a_copy_of_a_record_has_seen_nothing() -> None:
    record = Record("hidden", every=2, history=7)
    track(torch.ones(3), record)
    for made in (copy.deepcopy(record), pickle.loads(pickle.dumps(record))):
        assert (made.name, made.totals()) == ("hidden", {})
        track(torch.ones(5), made)
        assert made.total("forward").count == 5
    assert record.total("forward").count == 3


def test_a_statistic_of_ones_own_is_of_the_moment() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    x = torch.randn(2, 4)
    with Tracker(model, measures={"first": lambda values: values.flatten()[:4]}) as tracker:
        model(x)
        tracker.step()
    (first,) = tracker.measured("0", "first").values()
    assert first.tolist() == model[0](x)[0].double().tolist()


def test_lines_are_json_whatever_was_measured(tmp_path: Path) -> None:
    model = nn.Identity()
    sink = JsonLines(tmp_path / "a.jsonl")
    values = torch.tensor([torch.nan, torch.inf, 1.0])
    measures = {"mean": lambda x: x.mean(), "all": lambda x: x}
    with Tracker(model, measures=measures, sinks=[sink]) as tracker:
        model(values)
        tracker.step()

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    (line,) = (tmp_path / "a.jsonl").read_text().splitlines()
    found = json.loads(line, parse_constant=refuse)["measures"]
    assert found == {"mean": None, "all": [None, None, 1.0]}


def test_a_step_in_weights_and_biases_has_all_of_its_microbatches() -> None:
    class Log:
        def __init__(self) -> None:
            self.seen: list[dict[str, float]] = []

        def log(self, values: dict[str, float]) -> None:
            self.seen.append(values)

    model, log = nn.Identity(), Log()
    with Tracker(model, sinks=[WeightsAndBiases(log)]) as tracker:
        model(torch.full((3,), 1.0))
        model(torch.full((3,), 100.0))
        tracker.step()
    (values,) = log.seen
    assert values["(root)/forward/max_abs"] == 100
    assert values["(root)/forward/scale"] == pytest.approx((10_001 / 2) ** 0.5)


def test_modules_with_a_forward_of_their_own_that_were_compiled_before() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
    for layer in model:
        layer.forward = lambda x, forward=layer.forward: forward(x)
    own = [layer.__dict__["forward"] for layer in model]
    compiled = torch.compile(model, backend="eager")
    compiled(torch.ones(2, 4))
    with Tracker(compiled) as tracker:
        compiled(torch.ones(2, 4)).sum().backward()
        tracker.step()
        pickled = copy.deepcopy(model[1])
    assert {key.name for key in tracker.totals()} == {"0", "1", "(root)"}
    assert [layer.__dict__["forward"] for layer in model] == own
    assert pickled.__dict__["forward"] is own[1]


def test_a_model_that_holds_its_tracker_is_copied() -> None:
    model: Any = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    with Tracker(model) as tracker:
        model.tracker = tracker
        other = copy.deepcopy(model)
        other(torch.ones(2, 4))
        model(torch.ones(3, 4))
    assert other.tracker is tracker
    assert tracker.total("0").count == 24
    with pytest.raises(UnsupportedError, match="run"):
        pickle.dumps(tracker)
    assert diff(pickle.loads(pickle.dumps(tracker.run())), tracker.run()) == []


def test_scripting_is_refused_while_a_model_is_tracked() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    with Tracker(model), pytest.raises(UnsupportedError, match=r"torch\.jit\.script"):
        torch.jit.script(model)
    with Tracker(model):
        hook = next(iter(model[0]._forward_hooks.values()))
        assert getattr(hook, "__name__", "none") == "none"
    torch.jit.script(model)


def test_a_pattern_that_matches_nothing_is_named_beside_one_that_does() -> None:
    with Tracker(nn.Sequential(nn.Linear(4, 8)), names=["0", "nosuch*"]) as tracker:
        pass
    assert list(tracker.skipped) == ["nosuch*"]


@pytest.mark.parametrize("measures", [{3: abs}, {"a": 3}])
def test_statistics_are_functions_by_name(measures: Any) -> None:
    with pytest.raises(ArgumentTypeError):
        Tracker(nn.Linear(2, 2), measures=measures)
