"""What cannot go into a graph whole runs outside of it, or is refused by name with ``fullgraph``.

A rule reads numbers of a tensor, leaves torch or branches on values. Without ``fullgraph``, torch
ends the graph before such a Function as it is published; so it does before a completed one.
"""

import ctypes
import io

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import pullback
from pullback.errors import PullbackError

pytestmark = [pytest.mark.sampled(20), pytest.mark.filterwarnings("ignore")]


def copied_by_c(x):
    y = torch.empty_like(x)
    ctypes.memmove(y.data_ptr(), x.data_ptr(), x.numel() * x.element_size())
    return y


def in_numpy(x):
    array = np.asarray(x.detach())
    return torch.from_numpy(array * array.sum())


# Each gives x times the sum of x, in its own way.
READS = {
    "float": lambda x: x * float(x.sum()),
    "item": lambda x: x * x.sum().item(),
    "tolist": lambda x: x * sum(x.tolist()),
    "branch": lambda x: x * x.sum() if x.sum() > 0 else x,
    "nonzero": lambda x: x * x[x > -1].sum(),
    "save": lambda x: (torch.save(x, io.BytesIO()), x * x.sum())[1],
    "data_ptr": lambda x: x * x.sum() if x.data_ptr() else x,
    "ctypes": lambda x: copied_by_c(x * x.sum()),
    "numpy": lambda x: torch.from_numpy(x.detach().numpy() * x.detach().numpy().sum()),
    "asarray": in_numpy,
    "str": lambda x: x * x.sum() if str(x) else x,
    "new": lambda x: torch.tensor(x.tolist(), dtype=x.dtype) * x.sum(),
    "equal": lambda x: x * x.sum() if torch.equal(x, x) else x,
    "unique": lambda x: x * x.sum() + 0 * torch.unique(x).sum(),
}


def in_forward(read, base):
    class Reads(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return read(x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * x.sum() + (g * x).sum()

    return Reads


def in_backward(read, base):
    class Reads(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x.sum()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * (read(x) / x)[0] + (g * x).sum()

    return Reads


def make(name, side, way):
    write = in_forward if side == "forward" else in_backward
    if way == "Function":
        return write(READS[name], pullback.Function)
    return pullback.complete(write(READS[name], torch.autograd.Function))


def gradient(function, *, compiled, fullgraph=False, backend="aot_eager"):
    x = torch.linspace(0.2, 1, 5, dtype=torch.float64).requires_grad_()

    def f(x):
        return function.apply(x * 1.0).sin()

    if compiled:
        torch._dynamo.reset()
        f = torch.compile(f, fullgraph=fullgraph, backend=backend)
    return torch.autograd.grad(f(x).sum(), x)[0]


CASES = [
    (name, side, way)
    for name in READS
    for side in ("forward", "backward")
    for way in ("Function", "complete")
]


@pytest.mark.parametrize(("name", "side", "way"), CASES)
def test_the_graph_ends_before_what_cannot_go_into_it(name, side, way):
    function = make(name, side, way)
    found = gradient(function, compiled=True)
    torch.testing.assert_close(found, gradient(function, compiled=False))


@pytest.mark.parametrize(("name", "side", "way"), CASES[1:])
def test_in_one_graph_it_is_right_or_refused_by_name(name, side, way):
    function = make(name, side, way)
    try:
        found = gradient(function, compiled=True, fullgraph=True)
    except (torch._dynamo.exc.Unsupported, PullbackError):
        return
    torch.testing.assert_close(found, gradient(function, compiled=False))


# Each gives its argument itself, which torch 2.11 then returns from a traced forward twice.
SAME = {
    "contiguous": lambda y: y.contiguous(),
    "to": lambda y: y.to(y.dtype),
    "as_tensor": torch.as_tensor,
    "from_numpy": lambda y: torch.from_numpy(np.asarray(y.detach()) * 1),
    "in place": lambda y: y.mul_(1),
    "pair": lambda y: (y.contiguous(), y.mul_(1)),
    "marked": lambda y: (y.contiguous(), (y + 1).contiguous()),
}
SCALE = torch.tensor(3.0, dtype=torch.float64)


def returns_what_it_was_given(same, base, *, split):
    def compute(x):
        return SAME[same](x * x.sum() * SCALE)  # a global tensor: Dynamo traces the rules

    def keep(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        if same == "marked":
            ctx.mark_non_differentiable(output[1])

    def backward(ctx, *cotangents):
        (x,) = ctx.saved_tensors
        g = cotangents[0] if same == "marked" else sum(cotangents)
        return SCALE * (g * x.sum() + (g * x).sum())

    def forward(ctx, x):
        output = compute(x)
        keep(ctx, (x,), output)
        return output

    rules = {"forward": forward, "backward": backward}
    if split:
        rules |= {"forward": compute, "setup_context": keep}
    return type("Same", (base,), {name: staticmethod(rule) for name, rule in rules.items()})


@pytest.mark.parametrize("fullgraph", [True, False], ids=["fullgraph", "breaks"])
@pytest.mark.parametrize("split", [True, False], ids=["split", "combined"])
@pytest.mark.parametrize("same", SAME)
def test_an_output_that_is_what_an_operation_was_given_keeps_its_gradient(same, split, fullgraph):
    function = returns_what_it_was_given(same, pullback.Function, split=split)

    def outputs(x):
        return function.apply(x * 1.0)

    x = torch.linspace(0.2, 1, 5, dtype=torch.float64).requires_grad_()
    torch._dynamo.reset()
    compiled = torch.compile(outputs, fullgraph=fullgraph, backend="aot_eager")
    try:
        found = compiled(x)
    except (torch._dynamo.exc.Unsupported, PullbackError):
        assert fullgraph
        return
    expected = outputs(x)
    found, expected = pytree.tree_leaves(found), pytree.tree_leaves(expected)
    assert [y.requires_grad for y in found] == [y.requires_grad for y in expected]
    slopes = [torch.autograd.grad(y[0].sin().sum(), x)[0] for y in (found, expected)]
    torch.testing.assert_close(*slopes)


TRANSFORMED = [
    (name, way, fullgraph)
    for fullgraph in (True, False)
    for way in ("Function", "complete")
    for name in READS
]


@pytest.mark.parametrize(("name", "way", "fullgraph"), TRANSFORMED)
def test_a_backward_below_a_transform_is_right_or_refused_by_name(name, way, fullgraph):
    function = make(name, "backward", way)
    x = torch.linspace(0.2, 1, 5, dtype=torch.float64)
    slope = torch.func.grad(lambda x: function.apply(x).sin().sum())
    torch._dynamo.reset()
    try:
        found = torch.compile(slope, fullgraph=fullgraph, backend="aot_eager")(x)
    except (torch._dynamo.exc.Unsupported, PullbackError):
        assert fullgraph
        return
    except torch._dynamo.exc.BackendCompilerFailed as error:
        assert fullgraph
        assert "UnsupportedError" in str(error)  # noqa: PT017 - one of three ways to end
        return
    torch.testing.assert_close(found, slope(x))


def test_a_function_compiled_by_itself_does_not_call_itself_for_ever():
    function = make("float", "forward", "complete")
    x = torch.linspace(0.2, 1, 5, dtype=torch.float64).requires_grad_()
    torch._dynamo.reset()
    y = torch.compile(function.apply, backend="eager")(x)
    (found,) = torch.autograd.grad(y.sum(), x)
    (expected,) = torch.autograd.grad(function.apply(x).sum(), x)
    torch.testing.assert_close(found, expected)


class Kept(torch.autograd.Function):
    """Its backward writes down what it saw."""

    seen: list[torch.Tensor] = []  # noqa: RUF012 - what is written to outside

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        Kept.seen.append(g)
        return g * 2


def test_what_is_tried_leaves_no_trace():
    Kept.seen.clear()
    torch._dynamo.reset()
    x = torch.ones(3, requires_grad=True)
    y = torch.compile(pullback.complete(Kept).apply, backend="eager")(x)
    assert Kept.seen == []
    y.sum().backward()
    assert [type(g) for g in Kept.seen] == [torch.Tensor]
    assert torch.equal(Kept.seen[0], torch.ones(3))
    assert torch.equal(x.grad, torch.full((3,), 2.0))


def test_a_rule_that_is_compiled_itself_goes_into_one_graph():
    published = in_forward(lambda x: x * x.sum(), torch.autograd.Function)
    published.forward = staticmethod(torch.compile(published.forward, backend="aot_eager"))
    function = pullback.complete(published)
    found = gradient(function, compiled=True, fullgraph=True)
    torch.testing.assert_close(found, gradient(published, compiled=False))


@pytest.mark.parametrize("base", [torch.autograd.Function, pullback.Function])
def test_an_error_of_a_rule_that_is_traced_is_the_error_of_the_program(base):
    class Wrong(base):
        @staticmethod
        def forward(ctx, x):
            ctx.unheard_of(x)
            return x * 2, "a text, so that Dynamo traces the rules"

        @staticmethod
        def backward(ctx, g, _):
            return g * 2

    function = pullback.complete(Wrong)
    torch._dynamo.reset()
    with pytest.raises(AttributeError, match="unheard_of"):
        torch.compile(lambda x: function.apply(x)[0], backend="eager")(
            torch.ones(2, requires_grad=True)
        )


class CompiledForward(torch.autograd.Function):
    """A straight-through estimator whose forward alone is compiled."""

    @staticmethod
    @torch.compile(backend="eager")
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g.clone()


def test_a_transform_of_a_rule_that_is_compiled_itself_keeps_its_backward_or_is_refused():
    apply = pullback.complete(CompiledForward).apply
    x = torch.linspace(0.2, 1, 5, dtype=torch.float64)
    transforms = (
        torch.func.grad(lambda x: apply(x).sum()),
        torch.vmap(torch.func.grad(apply)),
        lambda x: torch.func.jvp(apply, (x,), (torch.ones_like(x),))[1],
    )
    for transformed in transforms:
        torch._dynamo.reset()
        assert torch.equal(transformed(x), torch.ones_like(x))
        try:
            found = torch.compile(transformed, fullgraph=True, backend="aot_eager")(x)
        except torch._dynamo.exc.Unsupported as error:
            assert "is refused" in str(error)  # noqa: PT017 - one of two ways to end
            continue
        assert torch.equal(found, torch.ones_like(x))
