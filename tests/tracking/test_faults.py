"""Odd data and accidents: right statistics or a clear word, and nothing recorded is lost."""

import json
import signal
import textwrap
from pathlib import Path

import pytest
import torch
from tests.copies import run_python
from tests.tracking.models import same_bits, sequential, train
from torch import nn

from pullback.tracking import Statistics, Tracker, read_run

ODD = {
    "empty": torch.empty(0, 3),
    "single": torch.tensor(2.5),
    "complex": torch.tensor([1 + 2j, -3j]),
    "nan": torch.full((4,), torch.nan),
    "infinite": torch.tensor([torch.inf, -torch.inf, 1.0]),
    "zeros": torch.zeros(5),
    "float8_e4m3fn": torch.tensor([1.0, -2.0, 448.0]).to(torch.float8_e4m3fn),
    "float8_e5m2": torch.tensor([1.0, -2.0, torch.inf]).to(torch.float8_e5m2),
    "float8_e4m3fnuz": torch.tensor([0.5, -240.0]).to(torch.float8_e4m3fnuz),
    "bfloat16": torch.tensor([3.0, 1e-40]).bfloat16(),
}


class Odd(nn.Module):
    """A trainable layer beside a dictionary of tensors of every odd kind."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.odd = nn.Linear(5, 7), OddOutputs()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.odd()
        return self.layer(x)


class OddOutputs(nn.Module):
    def forward(self) -> dict[str, torch.Tensor]:
        # Indices and masks have no scale: a tracker passes over them, `track` measures them.
        passed_over = {"indices": torch.arange(-3, 9), "mask": torch.tensor([True, False])}
        return {name: values.clone() for name, values in ODD.items()} | passed_over


def test_odd_outputs_are_measured_and_training_goes_on(tmp_path: Path) -> None:
    model = Odd()
    with Tracker(model, jsonl=tmp_path / "odd.jsonl") as tracker:
        tracked = train(model, 3)
    assert same_bits(tracked, train(Odd(), 3))
    assert tracker.skipped == {}
    assert not {"odd[indices]", "odd[mask]"} & {key.name for key in tracker.totals()}
    for name, values in ODD.items():
        total, once = tracker.total(f"odd[{name}]"), Statistics.of(values)
        assert total.count == 3 * once.count
        assert (total.zeros, total.nans) == (3 * once.zeros, 3 * once.nans)
        assert total.positive_infinities == 3 * once.positive_infinities
        assert (total.max_abs, total.min_abs) == (once.max_abs, once.min_abs)
        assert total.exponents == {e: 3 * n for e, n in once.exponents.items()}
    assert len(read_run(tmp_path / "odd.jsonl").series) == len(tracker.run().series)
    tracker.to_html(tmp_path / "odd.html")
    assert tracker.table()


def test_odd_gradients_are_measured() -> None:
    class Spoil(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, cotangent):
            spoilt = cotangent.clone()
            spoilt[0] = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, 1e-42, 3e38, 1.0])
            return spoilt

    model = nn.Linear(5, 7)
    with Tracker(model) as tracker:
        Spoil.apply(model(torch.ones(2, 5))).sum().backward()
    total = tracker.total("(root)", "backward")
    assert (total.count, total.nans, total.zeros) == (14, 1, 1)
    assert (total.positive_infinities, total.negative_infinities) == (1, 1)
    assert (total.max_abs, total.min_abs) == pytest.approx((3e38, 1e-42), rel=1e-3)


def test_a_forward_that_raises_half_way_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "half.jsonl"
    model = sequential()
    with Tracker(model, jsonl=path) as tracker:
        train(model, 2)
        handle = model[2].register_forward_pre_hook(_raise)
        with pytest.raises(ValueError, match="half-way"):
            model(torch.ones(4, 5))
        handle.remove()
        train(model, 1)
    run = read_run(path)
    (first,) = [one for one in run.series if (one.key.name, one.key.order) == ("0", 0)]
    assert first.total.count == 4 * 28  # the value that was seen before the error is kept too
    assert first.points.steps.tolist() == [0, 1, 2, 2]
    assert [one.total for one in run.series] == [one.total for one in tracker.run().series]


def _raise(module: nn.Module, inputs: object) -> None:
    raise ValueError("half-way")


def test_a_module_that_comes_while_it_is_watched_is_named() -> None:
    model = sequential()
    with Tracker(model, names=["0", "2", "4*"]) as tracker:
        model(torch.ones(2, 5))
        model[0] = nn.Linear(5, 7)
        model.append(nn.Sequential(nn.Linear(7, 7)))
        model(torch.ones(2, 5))
    assert set(tracker.skipped) == {"0", "4", "4.0"}
    assert "came while the model was watched" in tracker.skipped["0"]
    assert tracker.total("0").count == 14
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_hooks_removed_by_somebody_else_are_named(tmp_path: Path) -> None:
    model = sequential()
    with Tracker(model, jsonl=tmp_path / "hooks.jsonl") as tracker:
        model(torch.ones(2, 5))
        for module in (model, model[0]):
            module._forward_hooks.clear()
            module._forward_pre_hooks.clear()
        model(torch.ones(2, 5))
    assert tracker.total("0").count == 14
    # Without the hook that begins a pass the second one is a second call, not a microbatch.
    assert sum(t.count for key, t in tracker.totals().items() if key.name == "2") == 28
    assert set(tracker.skipped) == {"(root)", "0"}
    assert "somebody else removed its hook" in tracker.skipped["0"]
    assert set(read_run(tmp_path / "hooks.jsonl").skipped) == {"(root)", "0"}
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_process_that_is_killed_leaves_every_step_that_ended(tmp_path: Path) -> None:
    path = tmp_path / "killed.jsonl"
    program = f"""
        import os, signal
        from tests.tracking.models import sequential, train
        from pullback.tracking import Tracker

        ended = iter(range(1, 10))

        def after():
            if next(ended) == 3:
                os.kill(os.getpid(), signal.SIGKILL)

        model = sequential()
        with Tracker(model, jsonl={str(path)!r}):
            train(model, 5, after=after)
    """
    done = run_python("-c", textwrap.dedent(program))
    assert done.returncode == -signal.SIGKILL
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    steps = [line["step"] for line in lines if line["kind"] == "seen" and line["name"] == "0"]
    assert steps == [0, 0, 1, 1, 2, 2]
    assert len(read_run(path).series) == 12
