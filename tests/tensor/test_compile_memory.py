"""Compiled, a Function whose rules keep tensors for the next call: windows, filters, masks.

What is kept must never be a tensor of the compiler, without values. In one graph it works where
torch's own does.
"""

import concurrent.futures
import contextlib
import functools
import gc
import types

import pytest
import torch
from tests.tensor.hidden.judge import leak
from tests.versions import needs_torch

import pullback

pytestmark = [pytest.mark.sampled(23), pytest.mark.filterwarnings("ignore")]


def window(size):
    return torch.arange(1.0, size + 1)


def in_a_dict(kept):
    def find(size):
        if size not in kept:
            kept[size] = window(size)
        return kept[size]

    return find


def in_a_list():
    kept = []

    def find(size):
        if not kept:
            kept.append(window(size))
        return kept[0]

    return find


def in_a_default(size, kept={}):  # noqa: B006 - what is tried
    if size not in kept:
        kept[size] = window(size)
    return kept[size]


def in_an_attribute():
    def find(size):
        if not hasattr(find, "kept"):
            find.kept = window(size)
        return find.kept

    return find


def in_a_cell():
    kept = None

    def find(size):
        nonlocal kept
        if kept is None:
            kept = window(size)
        return kept

    return find


def in_a_namespace(names, ask=getattr, tell=setattr):
    def find(size):
        if ask(names, "kept", None) is None:
            tell(names, "kept", window(size))
        return names.kept

    return find


class Windows:
    """Keeps a window on itself."""

    kept = None

    def __call__(self, size):
        if self.kept is None:
            self.kept = window(size)
        return self.kept


class Cached:
    """Keeps a window as a property that is computed once."""

    @functools.cached_property
    def kept(self):
        return window(3)

    def __call__(self, size):
        return self.kept


GLOBAL = None


def in_a_global(size):
    global GLOBAL  # noqa: PLW0603 - what is tried
    if GLOBAL is None:
        GLOBAL = window(size)
    return GLOBAL


def fresh_global():
    global GLOBAL  # noqa: PLW0603
    GLOBAL = None
    return in_a_global


def fresh_default():
    in_a_default.__defaults__[0].clear()
    return in_a_default


def far(find):
    def nearer(size):
        return find(size)

    return nearer


PLACES = {
    "dict": lambda: in_a_dict({}),
    "dict with a tensor": lambda: in_a_dict({0: torch.ones(2)}),
    "dict with a number": lambda: in_a_dict({0: 1.0}),
    "list": in_a_list,
    "default": fresh_default,
    "attribute of a function": in_an_attribute,
    "cell": in_a_cell,
    "global": fresh_global,
    "namespace": lambda: in_a_namespace(types.SimpleNamespace(kept=None)),
    "class": lambda: in_a_namespace(type("Names", (), {"kept": None})),
    "object": Windows,
    "property": Cached,
    "lru_cache": lambda: functools.lru_cache(window),
    "cache, a call away": lambda: far(functools.cache(window)),
    "cache of a caller": lambda: functools.cache(far(functools.cache(window))),
}


def make(place, way):
    find = PLACES[place]()

    class Windowed(pullback.Function if way == "Function" else torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x * find(x.numel())

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x * find(x.numel()) * g

    return pullback.complete(Windowed) if way == "complete" else Windowed


def step(call):
    x = torch.tensor([0.5, 1.5, 2.5], requires_grad=True)
    y = call(x)
    return y.detach(), torch.autograd.grad(y.square().sum(), x)[0]


def run(function, *, filled, fullgraph):
    """Compiled twice and then eagerly, its memory filled before or not."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: function.apply(x), fullgraph=fullgraph, backend="aot_eager")  # noqa: PLW0108
    calls = [function.apply] if filled else []
    return [step(call) for call in (*calls, compiled, compiled, function.apply)]


CASES = [
    (place, filled, fullgraph)
    for fullgraph in (True, False)
    for filled in (True, False)
    for place in PLACES
]


@pytest.mark.sampled(3)
@pytest.mark.sampled(6)
@pytest.mark.parametrize("way", ["Function", "complete"])
@pytest.mark.parametrize(("place", "filled", "fullgraph"), CASES)
def test_what_rules_keep_is_a_tensor_with_values(place, filled, fullgraph, way):
    expected = step(lambda x: x * x * window(3))
    try:
        found = run(make(place, way), filled=filled, fullgraph=fullgraph)
    except torch._dynamo.exc.Unsupported:
        assert fullgraph
        with pytest.raises(torch._dynamo.exc.Unsupported):  # as published
            run(make(place, "published"), filled=filled, fullgraph=True)
        return
    for values in found:
        torch.testing.assert_close(values, expected)


@pytest.mark.parametrize("way", ["Function", "complete"])
def test_a_refusal_leaves_no_tensor_without_values_behind(way):
    names = types.SimpleNamespace(kept=None)
    PLACES["here"] = lambda: in_a_namespace(names)
    try:
        function = make("here", way)
    finally:
        del PLACES["here"]
    with contextlib.suppress(torch._dynamo.exc.Unsupported):  # torch 2.15 takes it
        run(function, filled=False, fullgraph=True)
    assert type(names.kept) in (type(None), torch.Tensor)
    torch.testing.assert_close(step(function.apply), step(lambda x: x * x * window(3)))


@pytest.mark.parametrize("way", ["Function", "complete"])
@pytest.mark.parametrize("fullgraph", [True, False])
def test_a_refusal_below_forward_mode_leaves_the_dispatch_keys(fullgraph, way):
    # torch fails to print a dual tensor without values, in a frame with a guard among its locals.
    def in_a_buffer(t, buffer=torch.zeros(3)):  # noqa: B008 - what is tried
        return buffer.copy_(t.detach()).clone()

    class Buffered(pullback.Function if way == "Function" else torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(in_a_buffer(x.cos()))
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            (slope,) = ctx.saved_tensors
            return slope * g

    gc.freeze()  # what was made before is looked at no more: with all of torch that takes seconds
    function = pullback.complete(Buffered) if way == "complete" else Buffered
    torch._dynamo.reset()
    jvp = torch.compile(
        lambda x, t: torch.func.jvp(function.apply, (x,), (t,)),
        fullgraph=fullgraph,
        backend="aot_eager",
    )
    x = torch.randn(3)
    with contextlib.suppress(torch._dynamo.exc.Unsupported, pullback.errors.UnsupportedError):
        jvp(x, x)
    gc.collect()
    assert leak() == ""
    found = torch.func.jvp(torch.func.grad(lambda x: x.sin().sum()), (x,), (torch.ones(3),))[1]
    torch.testing.assert_close(found, -x.sin())


@pytest.mark.parametrize("way", ["Function", "complete"])
@pytest.mark.parametrize("fullgraph", [True, False])
def test_a_graph_that_ends_within_forward_mode_leaves_no_level(fullgraph, way):
    # In another thread there is no mode for the tensors of the compiler behind Dynamo.
    def elsewhere(t):
        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            return executor.submit(lambda: t.detach() * 1).result()

    class Total(pullback.Function if way == "Function" else torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x.sum()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return elsewhere(x.sum()) * g + (g * x).sum()

    function = pullback.complete(Total) if way == "complete" else Total
    torch._dynamo.reset()
    jvp = torch.compile(
        lambda x: torch.func.jvp(function.apply, (x,), (x,)),
        fullgraph=fullgraph,
        backend="aot_eager",
    )
    x = torch.randn(3)
    try:
        found = jvp(x)[1]
    except RuntimeError as refusal:  # before torch 2.12 its own cleaning up fails, too
        assert "Total" in f"{refusal}{refusal.__context__}"  # noqa: PT017 - or right
    else:
        torch.testing.assert_close(found, 2 * x * x.sum())
    assert leak() == ""
    found = torch.func.jvp(lambda x: x.sin(), (x,), (x,))[1]
    torch.testing.assert_close(found, x * x.cos())


@needs_torch("2.12", "an end of all levels of a whole Hessian in which an operator raises")
@pytest.mark.parametrize("fullgraph", [True, False])
def test_a_refusal_when_a_graph_runs_leaves_no_level(fullgraph):
    class Clipped(pullback.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x.cos())
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            (slope,) = ctx.saved_tensors
            return slope * g.clamp(-1, 1)  # not linear, which its values alone tell

    torch._dynamo.reset()
    hessian = torch.func.hessian(lambda x: Clipped.apply(x).sum())
    x = torch.randn(3)
    with pytest.raises(pullback.errors.UnsupportedError, match="Clipped"):
        torch.compile(hessian, fullgraph=fullgraph, backend="eager")(x)
    assert leak() == ""


@needs_torch("2.12", "an end of all levels of a whole Hessian in which an operator raises")
def test_a_refusal_when_the_backward_of_a_graph_runs_leaves_no_level():
    class Detached(pullback.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.tanh()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            y = torch.autograd.Variable(y.data)  # stops the gradient: seen only where it has values
            return (1 - y * y) * g

    torch._dynamo.reset()
    hessian = torch.func.hessian(lambda x: Detached.apply(x).square().sum())
    with pytest.raises(pullback.errors.UnsupportedError, match="Detached"):
        torch.compile(hessian, fullgraph=True, backend="eager")(torch.randn(3))
    assert leak() == ""
