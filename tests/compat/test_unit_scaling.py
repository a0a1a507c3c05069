"""The names of unit-scaling 0.3.5 give its results, recorded from it on torch 2.13."""

import copy
import dataclasses
import json
import math
import pickle
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from pullback.compat import unit_scaling as us
from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError

RECORDED = json.loads((Path(__file__).parent / "unit_scaling_0_3_5.json").read_text())


class Embedding(nn.Module):
    def __init__(self, count, width):
        super().__init__()
        self.emb = nn.Embedding(count, width)
        self.linear = nn.Linear(width, width // 2)

    def forward(self, idxs):
        x = self.emb(idxs)
        _x = x.flatten(start_dim=0, end_dim=-1)
        x = _x.view(x.shape)
        y = self.linear(x)
        scores = functional.softmax(y, dim=-1)
        top_idx = torch.argmax(scores, dim=-1)
        top_idx = torch.unsqueeze(top_idx, -1)
        top_score_x = torch.gather(x, -1, top_idx)
        top_score_x += torch.ones_like(top_score_x)
        return top_score_x, top_idx


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(6, 8)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(8, 4)

    def forward(self, x):
        return self.fc2(self.relu(self.fc1(x)))


def dump(graph):
    table = []
    for node in graph.nodes:
        metrics = node.meta.get("metrics")
        target = node.target if isinstance(node.target, str) else node.target.__name__
        numbers = [
            None if data is None else list(vars(data).values())
            for data in (metrics and metrics.fwd, metrics and metrics.bwd)
        ]
        name = node.meta.get("clean_name", node.name)
        meta = [node.meta.get(key) for key in ("requires_grad", "outputs_float_tensor")]
        table.append([name, node.op, target, *meta, *numbers])
    return table


def assert_recorded(graph, name):
    expected = RECORDED[name]
    got = dump(graph)
    assert [row[:5] for row in got] == [row[:5] for row in expected]
    for mine, theirs in zip(got, expected, strict=True):
        for one, other in zip(mine[5:], theirs[5:], strict=True):
            assert one == (None if other is None else pytest.approx(other, abs=2e-6))


@pytest.fixture(scope="module")
def embedding_graph():
    torch.manual_seed(0)
    model = Embedding(64, 16)
    indices = torch.randint(0, 64, (8, 5))
    tracked = us.track_scales(model)
    assert len(tracked.scales_graph().nodes) == RECORDED["empty"] == 0
    output, _ = tracked(indices)
    assert_recorded(tracked.scales_graph(), "fwd")
    output.square().sum().backward()
    return tracked.scales_graph()


@pytest.fixture
def perceptron():
    torch.manual_seed(1)
    model = Perceptron()
    return model, torch.randn(10, 6).requires_grad_(), torch.randn(10, 4)


def test_the_tracked_graph(embedding_graph):
    assert_recorded(embedding_graph, "graph")


def test_pruning(embedding_graph):
    before = dump(embedding_graph)
    assert_recorded(us.prune_non_float_tensors(embedding_graph), "nonfloat")
    same = us.prune_same_scale_tensors(embedding_graph)
    assert_recorded(same, "same")
    assert_recorded(us.prune_same_scale_tensors(same, rtol=2**-4), "same2")
    selected = us.prune_selected_nodes(embedding_graph, [functional.softmax, torch.gather])
    assert_recorded(selected, "sel")
    assert dump(embedding_graph) == before


def test_pruning_what_was_not_tracked():
    graph = torch.fx.symbolic_trace(nn.ReLU()).graph
    for prune in (us.prune_non_float_tensors, us.prune_same_scale_tensors):
        with pytest.raises(ArgumentError, match="carries no metrics"):
            prune(graph)


def test_a_perceptron(perceptron):
    model, x, _ = perceptron
    tracked = us.track_scales(model)
    tracked(x).sum().backward()
    assert_recorded(tracked.scales_graph(), "mlp")
    assert model.fc1.weight.grad is None
    assert tracked.fc1.weight.grad is not None
    assert not tracked.fc1.weight._backward_hooks


@pytest.mark.parametrize(
    ("name", "keywords"),
    [
        ("analyse", {}),
        ("analyse_noleaf", {"detached": True}),
        ("analyse_shallow", {"recurse_modules": False}),
    ],
)
def test_analyse_module(perceptron, name, keywords):
    model, x, g = perceptron
    if keywords.pop("detached", False):
        x = x.detach()
    text = us.analyse_module(model, x, g, syntax_highlight=False, **keywords)
    assert text == RECORDED[name]
    assert model.fc1.weight.grad is None
    coloured = us.analyse_module(model, x, g, **keywords)
    assert "\x1b[" in coloured


@pytest.mark.parametrize("gather", [tuple, list])
def test_inputs_in_a_tuple_or_a_list(perceptron, gather):
    model, x, g = perceptron
    text = us.analyse_module(model, gather([x]), g, syntax_highlight=False)
    assert text == RECORDED["analyse"]


def test_scale_tracker(perceptron):
    _, x, _ = perceptron
    pair = us.ScalePair()
    assert str(pair) == "(-> n/a, <- n/a)"
    us.ScaleTracker.track(x, pair).backward(torch.arange(60.0).reshape(10, 6))
    forward, backward, text = RECORDED["pair"]
    assert (pair.forward, pair.backward) == pytest.approx((forward, backward), rel=1e-6)
    assert str(pair) == text
    again = us.ScalePair()
    us.ScaleTracker.apply(x, again)
    assert again.forward == pair.forward
    assert again.backward is None


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_scale_tracker_under_transforms():
    x = torch.randn(7)
    pair = us.ScalePair()
    torch.testing.assert_close(
        torch.func.grad(lambda t: (us.ScaleTracker.track(t, pair) ** 2).sum())(x), 2 * x
    )
    assert pair.forward == pytest.approx(float(x.std()))
    assert pair.backward == pytest.approx(float((2 * x).std()))
    pair = us.ScalePair()
    tangent = torch.func.jvp(lambda t: us.ScaleTracker.track(t, pair), (x,), (x,))[1]
    assert torch.equal(tangent, x)
    assert pair.backward is None  # there was no gradient


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_under_vmap_the_scale_is_that_of_the_whole_batch():
    x = torch.randn(3, 4)
    pair = us.ScalePair()
    assert torch.equal(torch.vmap(lambda t: us.ScaleTracker.track(t, pair))(x), x)
    assert pair.forward == pytest.approx(float(x.std()))
    cubes = torch.func.grad(lambda t: (us.ScaleTracker.track(t, pair) ** 3).sum())
    for dims in (0, 1):
        pair = us.ScalePair()
        torch.testing.assert_close(torch.vmap(cubes, dims, dims)(x), 3 * x**2)
        assert pair.forward == pytest.approx(float(x.std()))
        assert pair.backward == pytest.approx(float((3 * x**2).std()))
    pair = us.ScalePair()
    nested = torch.vmap(torch.vmap(cubes))(x.expand(2, 3, 4))
    torch.testing.assert_close(nested, (3 * x**2).expand(2, 3, 4))
    assert pair.backward == pytest.approx(float((3 * x.expand(2, 3, 4) ** 2).std()))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # Dynamo's own doing
def test_scale_tracker_is_compiled_whole():
    def loss(t, pair):
        return (us.ScaleTracker.track(t, pair) ** 3).sum()

    torch._dynamo.reset()
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for size in (5, 5, 7):
        x = torch.randn(size, requires_grad=True)
        pair = us.ScalePair()
        compiled(x, pair).backward()
        torch.testing.assert_close(x.grad, 3 * x.detach() ** 2)
        assert pair.forward == pytest.approx(float(x.detach().std()))
        assert pair.backward == pytest.approx(float(x.grad.std()))


def test_a_scale_tracker_with_rules_of_its_own():
    seen = []

    class Loud(us.ScaleTracker):
        @staticmethod
        def backward(ctx, t):
            seen.append(ctx.scale_tracker)
            gradient, *nothing = us.ScaleTracker.backward(ctx, t)
            return 2 * gradient, *nothing

    x, pair = torch.randn(5), us.ScalePair()
    x.requires_grad_()
    Loud.apply(x, pair).square().sum().backward()
    torch.testing.assert_close(x.grad, 4 * x.detach())
    assert pair.backward == pytest.approx(float((2 * x.detach()).std()))
    assert seen == [pair]
    with pytest.raises(UnsupportedError, match="Forward mode of Loud"):
        torch.func.jvp(lambda t: Loud.apply(t, pair), (x.detach(),), (x.detach(),))


def test_a_pair_is_a_dataclass():
    pair = us.ScalePair()
    us.ScaleTracker.track(torch.randn(5, requires_grad=True), pair).sum().backward()
    for twin in (copy.copy(pair), copy.deepcopy(pair), pickle.loads(pickle.dumps(pair))):
        assert twin == pair
        us.ScaleTracker.track(torch.ones(3), twin)
        assert twin != pair
    assert dataclasses.asdict(pair) == {"forward": pair.forward, "backward": pair.backward}
    assert dataclasses.replace(pair, forward=1.0).backward == pair.backward
    with pytest.raises(ArgumentTypeError):
        us.ScaleTracker.track(torch.ones(3), None)


def test_scale_tracker_with_odd_data():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in (torch.ones(1), torch.ones(0), torch.full((3,), math.nan)):
            pair = us.ScalePair()
            us.ScaleTracker.track(x.requires_grad_(), pair).sum().backward()
            assert math.isnan(pair.forward)
    pair = us.ScalePair()
    us.ScaleTracker.track(torch.tensor([1 + 1j, -1 - 1j]), pair)
    assert pair.forward == pytest.approx(2.0)
    half = torch.linspace(100, 101, 64).bfloat16()
    us.ScaleTracker.track(half, pair)
    assert pair.forward == float(half.float().std())
    for bad in (torch.arange(3), None):
        with pytest.raises(ArgumentTypeError):
            us.ScaleTracker.track(bad, pair)


def test_scales():
    x = torch.randn(2**6, requires_grad=True)
    g = torch.randn(2**6)
    y = us.scale_fwd(x, 3.5)
    assert torch.equal(y, x * 3.5)
    assert torch.equal(torch.autograd.grad(y, x, g)[0], g)
    y = us.scale_bwd(x, 3.5)
    assert torch.equal(y, x)
    assert torch.equal(torch.autograd.grad(y, x, g)[0], g * 3.5)


def test_a_small_scale_in_half_precision():
    x = torch.ones(3, dtype=torch.float16, requires_grad=True)
    us.scale_bwd(x, 1e-9).backward(torch.full((3,), 4096.0, dtype=torch.float16))
    assert (x.grad > 0).all()


def test_scales_are_kept_by_symbolic_tracing():
    class Scaled(nn.Module):
        def forward(self, x):
            return us.scale_bwd(us.scale_fwd(x, 2.0), 3.0)

    traced = torch.fx.symbolic_trace(Scaled())
    targets = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    assert targets == [us.scale_fwd, us.scale_bwd]
    x = torch.ones(2, requires_grad=True)
    traced(x).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


def test_metrics():
    metrics = us.Metrics(torch.tensor([1.0, -3.0, 0.0]))
    assert metrics.bwd is None
    metrics.set_bwd(torch.full((2,), 2.0))
    assert vars(metrics.bwd) == {
        "mean_abs": 2.0, "abs_mean": 2.0, "std": 0.0, "abs_max": 2.0, "abs_min": 2.0, "numel": 2,
    }  # fmt: skip
    assert metrics.fwd.mean_abs == pytest.approx(4 / 3)
    assert metrics.fwd.std == pytest.approx(float(torch.tensor([1.0, -3.0, 0.0]).std()))
    empty = us.Metrics(torch.zeros(0)).fwd
    assert empty.numel == 0
    assert math.isnan(empty.abs_max)
    assert "fwd: Metrics.Data(" in str(metrics)


def test_the_names_are_whole():
    names = {
        "FPFormat", "Metrics", "ScalePair", "ScaleTracker",
        "analyse_module", "plot", "prune_non_float_tensors",
        "prune_same_scale_tensors", "prune_selected_nodes", "scale_bwd", "scale_fwd",
        "simulate_fp8", "track_scales",
    }  # fmt: skip
    assert names <= set(us.__all__)
    assert not hasattr(us, "simulate_format")  # of that name there is tracking's alone
    for name in us.__all__:
        assert getattr(us, name).__doc__
