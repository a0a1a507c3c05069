"""Where Dynamo cannot trace the rules, a graph that must not end has an operator that runs them."""

import gc

import pytest
import torch
from tests.versions import needs_torch

import pullback
from pullback.errors import UnsupportedError
from pullback.tensor.compiled import _opaque

pytestmark = pytest.mark.filterwarnings("ignore")
SETTING = {"scale": 2.0, "size": 1}


class InNumpy(pullback.Function):
    """x times a setting, with a backward that Dynamo cannot trace."""

    @staticmethod
    def forward(ctx, x):
        return x.repeat(SETTING["size"]) * SETTING["scale"]

    @staticmethod
    def backward(ctx, g):
        text = repr(g.numpy() * SETTING["scale"])
        assert "array" in text
        return torch.from_numpy(g.numpy() * SETTING["scale"])


class InPlace(InNumpy):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(SETTING["scale"])


@pytest.fixture(autouse=True)
def as_before():
    torch._dynamo.reset()
    yield
    SETTING.update(scale=2.0, size=1)
    torch._dynamo.reset()


def compiled(function=InNumpy, backend="aot_eager", **options):
    return torch.compile(lambda x: function.apply(x * 1.0), backend=backend, **options)


@pytest.mark.parametrize(
    "backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]
)
def test_rules_run_when_the_graph_runs_and_read_what_is_so_then(backend):
    run = compiled(backend=backend, fullgraph=True)
    for size, scale in ((2, 2.0), (3, 5.0), (4, 7.0)):
        SETTING["scale"] = scale
        x = torch.ones(size, requires_grad=True)
        y = run(x)
        assert y.tolist() == [scale] * size
        y.sum().backward()
        assert x.grad.tolist() == [scale] * size


def test_the_graph_of_autograd_lives_as_long_as_the_output():
    gc.collect()
    gc.freeze()  # what was made before is looked at no more: with all of torch that takes seconds
    before = len(_opaque._graphs)
    y = compiled(fullgraph=True)(torch.ones(2, requires_grad=True))
    assert len(_opaque._graphs) == before + 1
    del y
    gc.collect()
    assert len(_opaque._graphs) == before


def test_an_output_of_another_shape_than_when_it_was_compiled_is_refused():
    run, x = compiled(fullgraph=True), torch.ones(2, requires_grad=True)
    run(x)
    SETTING["size"] = 2
    with pytest.raises(UnsupportedError, match="InNumpy returns outputs of another form"):
        run(x)


def test_a_change_in_place_is_refused_by_name():
    with pytest.raises(torch._dynamo.exc.Unsupported, match="InPlace"):
        compiled(InPlace, fullgraph=True)(torch.ones(2, requires_grad=True))
    x = torch.ones(2, requires_grad=True)
    y = compiled(InPlace)(x)
    assert y.tolist() == [2.0, 2.0]
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [2.0, 2.0]


def test_where_the_graph_may_end_nothing_is_run_for_it():
    class Counts(InNumpy):
        calls = 0

        @staticmethod
        def forward(ctx, x):
            Counts.calls += 1
            return InNumpy.forward(ctx, x)

    compiled(Counts)(torch.ones(2, requires_grad=True))
    assert Counts.calls == 1


@needs_torch("2.8", "a refusal to export an operator whose name is made at run time")
def test_an_operator_is_not_exported():
    class Module(torch.nn.Module):
        def forward(self, x):
            return InNumpy.apply(x)

    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.export.export(Module(), (torch.ones(2, requires_grad=True),), strict=True)


class Logging(torch.autograd.Function):
    """Multiplies by how often it was applied, of which a list among the arguments has a note."""

    @staticmethod
    def forward(ctx, x, log):
        log.append(x.detach() * 1)
        ctx.count = len(log)
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g * ctx.count, None


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_list_that_forward_changes_is_the_callers_own_or_refused(fullgraph):
    apply, log = pullback.complete(Logging).apply, [torch.zeros(2)]

    @torch.compile(backend="eager", fullgraph=fullgraph)
    def twice(x):
        return apply(x, log) + apply(x, log)

    x = torch.ones(2, requires_grad=True)
    if fullgraph:
        with pytest.raises(torch._dynamo.exc.Unsupported, match="changes an argument in place"):
            twice(x)
        assert len(log) == 1
        return
    twice(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((2,), 5.0))
    assert len(log) == 3
