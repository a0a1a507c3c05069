"""`track_scales` where unit-scaling goes wrong, and the picture of its graph."""

import pytest
import torch
from tests.tracking.test_annotate import Halves
from torch import nn

from pullback.compat import unit_scaling as us
from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError


def metrics_of(model):
    return {
        node.meta["clean_name"]: node.meta["metrics"]
        for node in model.scales_graph().nodes
        if "metrics" in node.meta
    }


def test_a_plain_sequential_root_is_tracked():
    model = us.track_scales(nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True)))
    x = torch.randn(2, 3)
    model(x).sum().backward()
    found = metrics_of(model)
    assert len(found) == 5
    assert any(each.fwd.std == pytest.approx(float(x.std())) for each in found.values())
    assert all(metrics.bwd is not None for metrics in found.values())
    assert not x.requires_grad
    assert x.grad is None


def test_many_shapes_and_many_models_are_all_tracked():
    # torch.compile's limit of recompilations is 8.
    for count in range(2):
        model = us.track_scales(nn.Sequential(nn.ReLU()))
        for size in range(1, 11 + count):
            model(torch.randn(size))
            assert {each.fwd.numel for each in metrics_of(model).values()} == {size}


def test_views_changed_in_place_keep_their_base():
    class Row(nn.Module):
        def forward(self, x):
            y = x * 1
            row = y[0]
            row.add_(1)
            return y * 2

    model = us.track_scales(Row())
    x = torch.zeros(2, 3)
    got = model(x)
    assert torch.equal(got, Row()(x))
    got.sum().backward()


def test_results_are_those_of_the_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))
    tracked = us.track_scales(model)
    x = torch.randn(6, 3)
    expected, got = model(x), tracked(x)
    assert torch.equal(got, expected)
    expected.sum().backward()
    got.sum().backward()
    for one, other in zip(model.parameters(), tracked.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    assert torch.equal(model[1].running_mean, tracked[1].running_mean)


def test_without_gradients():
    model = us.track_scales(nn.Sequential(nn.Linear(3, 2)))
    with torch.no_grad():
        model(torch.randn(2, 3))
    assert all(metrics.bwd is None for metrics in metrics_of(model).values())


def test_only_modules():
    with pytest.raises(ArgumentTypeError):
        us.track_scales(torch.relu)


@pytest.fixture(scope="module")
def graph():
    model = us.track_scales(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)))
    model(torch.randn(5, 6)).sum().backward()
    return model.scales_graph()


def test_the_picture(graph):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    axes = us.plot(graph, "demo", metric="standard deviation", xmin=2**-20, xmax=2**10)
    assert axes.get_title() == "demo"
    assert axes.get_xlim() == (2**-20, 2**10)
    assert axes.get_xlabel() == "standard deviation"
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert len(labels) == len(us.prune_same_scale_tensors(graph).nodes) - 1
    assert any("weight" in label for label in labels)
    whole = us.plot(graph, prune_same_scale=False)
    assert len(whole.get_yticklabels()) >= len(labels)
    pyplot.close("all")


def test_a_picture_of_zeros_and_nan():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    class Odd(nn.Module):
        def forward(self, x):
            return (x * 0).sum() + (x * float("nan")).sum()

    model = us.track_scales(Odd())
    model(torch.randn(4)).backward()
    axes = us.plot(model.scales_graph())
    drawn = [x for line in axes.lines if len(line.get_xdata()) for x in line.get_xdata()]
    assert all(x > 0 for x in drawn)
    pyplot.close("all")


def test_bad_arguments_of_the_picture(graph):
    with pytest.raises(ArgumentError, match="no such metric"):
        us.plot(graph, metric="variance")


def test_what_has_no_metrics_is_refused_by_name():
    sparse = torch.ones(2, requires_grad=True).to_sparse()
    for given, kind in ((sparse, UnsupportedError), ("x", ArgumentTypeError)):
        with pytest.raises(kind):
            us.Metrics(given)
        with pytest.raises(kind):
            us.ScaleTracker.apply(given, us.ScalePair())
        with pytest.raises(kind):
            us.FPFormat(4, 3).quantise_bwd(given)
        with pytest.raises(kind):
            us.analyse_module(nn.Identity(), given)
    with pytest.raises(UnsupportedError, match="no elements"):
        us.Metrics(torch.ones(2, device="meta"))
    with pytest.raises(UnsupportedError, match="vmap"):
        torch.func.vmap(lambda x: (us.Metrics(x), x)[1])(torch.ones(2, 3))
    for use in (us.prune_non_float_tensors, us.prune_same_scale_tensors, us.plot):
        with pytest.raises(ArgumentTypeError):
            use("no graph")
    assert us.Metrics(torch.tensor([1, 2])).fwd.mean_abs == 1.5


def test_a_part_without_a_gradient():
    model, x = us.track_scales(Halves()), torch.randn(3, 4)
    model(x).sum().backward()
    backward = [each.bwd for name, each in metrics_of(model).items()]
    assert None in backward
    assert any(each is not None and each.mean_abs == 2 for each in backward)
    assert "<- n/a" in us.analyse_module(Halves(), x, torch.ones(3, 3), syntax_highlight=False)


def test_a_view_that_is_changed_in_place_has_its_gradient():
    found = []
    for inplace in (False, True):  # a layer of three dimensions gives a view
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=inplace), nn.Linear(6, 2))
        model = us.track_scales(plain)
        model(torch.randn(2, 3, 4)).sum().backward()
        found.append([each.bwd for each in metrics_of(model).values()])
    assert None not in found[1]
    assert found[0] == found[1]
