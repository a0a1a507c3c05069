"""What a tracker measures on request: parameters, functions, statistics of one's own; and sinks."""

import contextlib
import copy
import json
import math
import pickle
import sys
import threading

import numpy as np
import pytest
import torch
from tests.tracking.models import Around, sequential
from torch import nn
from torch.utils.checkpoint import checkpoint

from pullback.errors import ArgumentError, ArgumentTypeError, MissingExtraError, UnsupportedError
from pullback.tracking import Statistics, Tracker, channel_maximum, simulate_format
from pullback.tracking.sinks import JsonLines, TensorBoard, WeightsAndBiases


def rms(values):
    return values.detach().double().square().mean().sqrt().item()


def test_parameters_at_each_step():
    model, plain = sequential(), sequential()
    plain.load_state_dict(model.state_dict())
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.01) for each in (model, plain)]
    data = [torch.randn(4, 5) for _ in range(3)]
    seen = []
    weight = model[0].weight
    with Tracker(model, parameters=True) as tracker:
        for x in data:
            optimizers[0].zero_grad()
            model(x).square().mean().backward()
            before = weight.detach().clone()
            optimizers[0].step()
            seen.append((weight.detach().clone(), weight.grad.clone(), weight.detach() - before))
    for x in data:
        optimizers[1].zero_grad()
        plain(x).square().mean().backward()
        optimizers[1].step()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)
    values, gradients, updates = (torch.stack(part) for part in zip(*seen, strict=True))
    assert tracker.total("0.weight").scale == pytest.approx(rms(values))
    assert tracker.total("0.weight", "backward").scale == pytest.approx(rms(gradients))
    assert tracker.total("0.weight[update]").scale == pytest.approx(rms(updates))
    last = {each.key.name: each.statistics for each in tracker.latest()}
    state = optimizers[0].state[weight]
    assert last["0.weight[exp_avg]"].scale == pytest.approx(rms(state["exp_avg"]))
    assert "0.weight[step]" not in last
    ratio = tracker.update_ratios()["0.weight"]
    assert ratio == pytest.approx(rms(updates) / rms(values))
    assert "0.weight[update]" in tracker.table()


def test_parameters_around_other_tensors_are_named():
    model = nn.Linear(3, 3)
    model.weight = nn.Parameter(Around(model.weight.detach()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with Tracker(model, parameters=True, blocks=2) as tracker:  # it read at address zero
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        model(torch.ones(1, 3)).detach()
    ours = {"weight", "weight (gradient)", "weight[update]", "weight[momentum_buffer]"}
    assert ours <= set(tracker.skipped)
    assert "Around" in tracker.skipped["weight"]
    assert tracker.total("bias", "backward").mean == 1.0


def test_sparse_gradients_are_named_and_values_are_there():
    model = nn.Embedding(4, 3, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Tracker(model, parameters=True) as tracker:
        model(torch.tensor([1, 2])).sum().backward()
        optimizer.step()
    assert set(tracker.skipped) == {"weight (gradient)"}
    assert tracker.total("weight").count == tracker.total("weight[update]").count == 12


def test_gradients_of_parameters_are_without_the_loss_scale():
    model = nn.Linear(3, 3)
    optimizer, scaler = torch.optim.SGD(model.parameters()), torch.amp.GradScaler("cpu", 1024.0)
    with Tracker(model, scaler=scaler, parameters=["gradient"]) as tracker:
        scaler.scale(model(torch.ones(1, 3)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert tracker.total("weight", "backward").scale == 1.0
    with pytest.raises(UnsupportedError, match="updates"):
        tracker.update_ratios()


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_a_fused_optimizer_leaves_the_loss_scale_in_a_step_that_it_skips(name):
    model = nn.Linear(3, 3)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", 1024.0)
    with Tracker(model, scaler=scaler, parameters=["gradient"]) as tracker:
        for bad in (0.0, math.inf):
            optimizer.zero_grad()
            loss = model(torch.ones(1, 3)).sum() + bad * model.bias[0]
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert tracker.total("weight", "backward").max_abs == 1.0
    assert tracker.total("bias", "backward").positive_infinities == 1


def test_a_tangent_has_no_loss_scale():
    model, x = nn.Linear(3, 3), torch.ones(1, 3)
    optimizer, scaler = torch.optim.SGD(model.parameters()), torch.amp.GradScaler("cpu", 1024.0)
    with Tracker(model, scaler=scaler) as tracker:
        scaler.scale(model(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        _, tangent = torch.func.jvp(model, (x,), (torch.ones_like(x),))
        tracker.step()
    assert tracker.total("(root)", "tangent").scale == pytest.approx(rms(tangent))
    assert tracker.total("(root)", "backward").scale == 1.0


def test_parameters_follow_names_and_cadence_and_their_optimizer():
    model = sequential()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other = torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=0.1)
    with Tracker(model, every=2, names="0", parameters="value") as tracker:
        for _ in range(4):
            model(torch.randn(4, 5)).sum().backward()
            optimizer.step()
            other.step()
    names = {key.name for key in tracker.totals()}
    assert names == {"0", "0.weight", "0.bias"}
    assert tracker.total("0.weight").count == 2 * model[0].weight.numel()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(x + self.inner(x, x, x)[0])


def test_functions_inside_of_modules():
    model, x = Attention(), torch.randn(2, 3, 8)
    expected = model(x)
    functions = ("add", "softmax", "scaled_dot_product*")
    with Tracker(model, functions=functions) as tracker:
        y = model(x)
        y.square().sum().backward()
        outside = x + 1
    assert torch.equal(y, expected)
    totals = {(key.name, key.direction): value for key, value in tracker.totals().items()}
    assert totals["(root)/add", "forward"].count == totals["(root)/add", "backward"].count == 48
    shares = totals["inner/softmax", "forward"]
    assert shares.mean == pytest.approx(1 / 3)
    assert {name for name, _ in totals if "/" in name} == {"(root)/add", "inner/softmax"}
    inner = model.inner(x, x, x)[0]
    assert totals["(root)/add", "forward"].scale == pytest.approx(rms(x + inner), rel=1e-5)
    assert outside.shape == x.shape
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


class Sized(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(32, 32)

    def forward(self, x):
        return self.inner(x).abs()


def test_what_is_computed_to_measure_or_to_round_is_no_function_of_the_model():
    model, x = Sized(), torch.randn(4, 32)
    simulated = simulate_format(model, forward="E4M3", backward="E5M2")
    for each in (model, simulated, simulate_format(model, forward="MXFP8")):
        with Tracker(each, functions=["abs", "resolve_*", "clone"], blocks="nvfp4") as tracker:
            y = each(x)
            y.sum().backward()
        found = {
            (key.name.rpartition("/")[2], key.call) for key in tracker.totals() if "/" in key.name
        }
        assert found == {("abs", 0)}
        name = next(key.name for key in tracker.totals() if key.name.endswith("/abs"))
        assert tracker.total(name).mean == pytest.approx(y.mean().item())


def test_what_blocks_lose_is_measured_as_it_is_in_a_model_that_rounds():
    model, x = Sized(), torch.randn(4, 32)
    with Tracker(model, blocks="nvfp4") as plain:
        model(x)
    with Tracker(simulate_format(model, forward="E4M3"), blocks="nvfp4") as within:
        within._model(x)
    expected = {key.name: each for key, each in plain.block_errors().items()}
    found = {key.name.removeprefix("model."): e for key, e in within.block_errors().items()}
    for name in ("inner.weight", "inner[input]"):
        assert found[name] == expected[name]


def test_an_addition_by_any_name():
    class Adding(nn.Module):
        def forward(self, x):
            y = 1 + x
            y += x
            y = y.add(x)
            return torch.add(y, x).relu()

    with Tracker(Adding(), functions="add") as tracker:
        tracker._model(torch.ones(3))
    assert [tracker.total("(root)/add", call=call).mean for call in range(4)] == [2, 3, 4, 5]


class Falling(nn.Module):
    """Goes on where a hook of its part, which runs before the part does, raises."""

    def __init__(self):
        super().__init__()
        self.part = nn.Linear(3, 3)
        self.part.register_forward_pre_hook(self.fail)

    @staticmethod
    def fail(*_):
        raise ValueError("before the part")

    def forward(self, x):
        for _ in range(2):
            with contextlib.suppress(ValueError):
                self.part(x)
        return torch.relu(x)


def test_functions_after_a_module_that_never_began():
    model = Falling()
    with Tracker(model, functions="relu") as tracker:
        model(torch.ones(3))
    assert tracker.total("(root)/relu").count == 3


def test_functions_beside_a_thread():
    class Waiting(nn.Module):
        def forward(self, x, between=lambda: None):
            between()
            return torch.relu(x)

    model = nn.ModuleList([Waiting(), Waiting()])
    inside, done = threading.Event(), threading.Event()
    other = threading.Thread(target=model[1], args=(torch.ones(3), lambda: wait(inside, done)))

    def wait(told, waited_for):
        told.set()
        assert waited_for.wait(20)

    def start():
        other.start()
        assert inside.wait(20)

    with Tracker(model, functions="relu") as tracker:
        model[0](torch.ones(3), start)
        done.set()
        other.join()
    assert {key.name for key in tracker.totals() if "/" in key.name} == {"0/relu"}


def test_functions_of_a_model_that_is_copied_or_saved():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with Tracker(model, functions="relu") as tracker:
        other, loaded = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        other(torch.ones(3))
        loaded(torch.ones(3))
        model(torch.ones(3))
    assert tracker.total("1/relu").count == 3
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in other.modules())


def test_trackers_of_functions_may_end_in_any_order():
    model = nn.Sequential(nn.ReLU())
    first, second = (Tracker(model, functions="relu") for _ in range(2))
    first.__enter__()
    with second:
        first.__exit__(None, None, None)
        model(torch.ones(3))
    assert second.total("0/relu").count == 3
    assert not any("/" in key.name for key in first.totals())


def test_functions_leave_compiled_code_alone():
    model = nn.Sequential(nn.Linear(3, 3), nn.Softmax(-1))
    torch._dynamo.reset()
    compiled, x = torch.compile(model, backend="eager"), torch.randn(2, 3)
    with Tracker(compiled, functions="softmax") as tracker:
        torch.testing.assert_close(compiled(x), model(x))
    assert tracker.total("0").count > 0


def test_statistics_of_ones_own():
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    measures = {"channels": channel_maximum(), "largest": lambda x: x.max()}
    expected = []
    with Tracker(model, measures=measures, history=2) as tracker:
        for _ in range(3):
            y = model[0](x := torch.randn(4, 5))
            model[1](y).sum().backward()
            expected.append(y.detach().abs().amax(0).numpy())
            optimizer.step()
    found = tracker.measured("0", "channels")
    assert [place.step for place in found] == [1, 2]
    np.testing.assert_allclose(list(found.values()), expected[1:])
    assert tracker.measured("0", "largest", "backward").popitem()[1] == 1.0
    assert tracker.latest()[0].measures["channels"].shape == (7,)
    with pytest.raises(ArgumentError, match="No such statistic"):
        tracker.measured("0", "smallest")
    assert x.shape == (4, 5)


@pytest.mark.parametrize("reentrant", [False, True])
def test_statistics_of_ones_own_where_a_tensor_was_seen(reentrant):
    """In evaluation alone, as a tangent, or where checkpointing computed it again."""
    layer, x = nn.Linear(3, 3), torch.ones(2, 3, requires_grad=True)
    model = nn.ModuleList([layer])
    model.forward = lambda x: checkpoint(layer, x, use_reentrant=reentrant)
    with Tracker(model.eval(), measures={"largest": lambda x: x.max()}) as tracker:
        model(x).sum().backward()
        tracker.step()
        torch.func.jvp(layer, (x.detach(),), (torch.zeros(2, 3),))
    assert next(iter(tracker.measured("0", "largest").values())) == layer(x).max()
    assert list(tracker.measured("0", "largest", "backward").values()) == [1.0]
    assert list(tracker.measured("0", "largest", "tangent").values()) == [0.0]


@pytest.mark.parametrize("shape", [(), (0,), (3,), (0, 3), (2, 0), (2, 3, 4)])
def test_channel_maxima(shape):
    x = torch.randn(shape)
    found = channel_maximum()(x)
    wanted = x.abs()
    for _ in range(x.dim() - 1 if x.numel() else 0):
        wanted = wanted.amax(0)
    if x.numel():
        torch.testing.assert_close(found, wanted)
    assert found.isfinite().all()


def test_bad_requests():
    model = nn.Linear(3, 3)
    for keywords, error in (
        ({"parameters": "speed"}, ArgumentError),
        ({"measures": {"a": 3}}, ArgumentTypeError),
    ):
        with pytest.raises(error):
            Tracker(model, **keywords)
    with (
        pytest.raises(ArgumentError, match="not a real tensor"),
        Tracker(model, measures={"a": lambda x: 3.0}),
    ):
        model(torch.ones(1, 3))


class Writer:
    def __init__(self):
        self.scalars, self.logged = {}, []

    def add_scalar(self, tag, value, step):
        self.scalars[tag, step] = value

    def log(self, values):
        self.logged.append(values)


def test_sinks(tmp_path):
    model = nn.Linear(3, 3)
    writer, run = Writer(), Writer()
    sinks = [JsonLines(tmp_path / "a.jsonl"), TensorBoard(writer), WeightsAndBiases(run)]
    with Tracker(model, sinks=sinks, measures={"largest": lambda x: x.max()}) as tracker:
        for _ in range(2):
            y = model(torch.ones(2, 3))
            y.sum().backward()
            tracker.step()
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [(line["name"], line["direction"], line["step"]) for line in lines[:3]] == [
        ("(root)", "forward", 0), ("(root)", "backward", 0), ("(root)", "forward", 1)
    ]  # fmt: skip
    assert lines[0]["scale"] == pytest.approx(rms(y))
    assert lines[0]["measures"] == {"largest": pytest.approx(y.max().item())}
    again = Statistics.from_dict(lines[0])
    assert again.count == 6
    assert writer.scalars["(root)/forward/scale", 1] == pytest.approx(rms(y))
    assert writer.scalars["(root)/backward/largest", 0] == 1.0
    assert [values["pullback/step"] for values in run.logged] == [0, 1]


def test_a_step_in_parts_is_one_point():
    net = nn.Sequential(*(nn.Linear(2, 2) for _ in range(200)))  # more than a store's buffer holds
    writer, run = Writer(), Writer()
    counted = []
    writer.add_scalar = lambda tag, value, step: counted.append((tag, step))
    with Tracker(net, sinks=[TensorBoard(writer), WeightsAndBiases(run)]) as tracker:
        for _ in range(2):
            for scale in (1.0, 10.0, 100.0):  # microbatches
                net(scale * torch.ones(1, 2)).sum().backward()
            tracker.step()
    assert len(counted) == len(set(counted)) == 2 * 4 * len(tracker.totals())
    assert [values["pullback/step"] for values in run.logged] == [0, 1]
    scale = tracker.total("0").scale  # the two steps are alike
    assert [values["0/forward/scale"] for values in run.logged] == pytest.approx([scale, scale])


def test_sinks_whose_package_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    for make in (lambda: TensorBoard(tmp_path), WeightsAndBiases):
        with pytest.raises(MissingExtraError, match="pip install"):
            make()


def test_a_function_that_nothing_calls_is_said():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with Tracker(model, functions=["softmx", "relu"]) as tracker:
        model(torch.ones(1, 2))
    assert tracker.skipped == {"softmx": "no function of this name was called, compiled code apart"}
    assert tracker.total("1/relu").count == 2
