"""What newer versions of torch offer the author of a Function."""

import weakref

import pytest
import torch
from tests.tensor.cases import Combined, PublishedCube, Split
from tests.versions import needs_torch

import pullback
from pullback.errors import DefinitionError


def rules():
    class Boxed:
        boxed_grads_call = True

        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y, x + y

        @staticmethod
        def backward(ctx, cotangents):
            x, y = ctx.saved_tensors
            product, total = cotangents
            cotangents.clear()  # the point of it: to free each as soon as it is used
            return product * y + total, product * x + total

    return dict(vars(Boxed))


@needs_torch("2.13", "cotangents in a list (boxed_grads_call)")
@pytest.mark.parametrize("base", ["written", "completed"])
def test_backward_gets_its_cotangents_in_one_list(base):
    body = {name: rule for name, rule in rules().items() if not name.startswith("__")}
    if base == "written":
        function = type("Boxed", (pullback.Function,), body)
    else:
        function = pullback.complete(type("Boxed", (torch.autograd.Function,), body))
    x, y = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (2.0, 3.0))
    product, total = function.apply(x, y)
    assert torch.autograd.grad(product + 2 * total, (x, y)) == (5.0, 4.0)
    both = torch.func.grad(lambda x, y: sum(function.apply(x, y)), argnums=(0, 1))
    assert both(x.detach(), y.detach()) == (4.0, 3.0)
    second = torch.func.grad(lambda x: torch.func.grad(lambda y: function.apply(x, y)[0])(x))
    assert second(x.detach()) == 1.0


def clears(base):
    class Clears(base):
        clear_saved_tensors_on_access = True

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, cotangent):
            (x,) = ctx.saved_tensors
            saved, double = weakref.ref(x), 2 * x
            del x
            if not torch.is_grad_enabled():
                assert saved() is None
            return cotangent * double

    return Clears


@needs_torch("2.11", "saved tensors that are read once (clear_saved_tensors_on_access)")
@pytest.mark.parametrize("how", ["written", "completed"])
def test_what_backward_has_read_and_let_go_is_freed(how):
    published = clears(torch.autograd.Function)
    function = clears(pullback.Function) if how == "written" else pullback.complete(published)
    x = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    y = function.apply(x.clone())  # which nothing else holds
    assert torch.autograd.grad(y, x, retain_graph=True) == (6.0,)
    with pytest.raises(RuntimeError, match="accessed once"):
        y.backward()
    (slope,) = torch.autograd.grad(function.apply(x), x, create_graph=True)
    assert torch.autograd.grad(slope, x) == (2.0,)


def declares(base):
    class Declares(base):
        @staticmethod
        def forward(x):
            return x * 2, "no tensor", x + 1

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.set_output_grad_dtype(torch.float32, None, torch.bfloat16)

        @staticmethod
        def backward(ctx, first, _, second):
            assert ctx.input_grad_buffers == (None,)
            assert first is None or first.dtype == torch.float32
            assert second is None or second.dtype == torch.bfloat16
            return first * 2 + second

    return Declares


@needs_torch("2.15", "gradient dtypes (set_output_grad_dtype) and input_grad_buffers")
@pytest.mark.parametrize("how", ["written", "completed"])
def test_backward_gets_the_gradient_dtypes_that_it_declares(how):
    published = declares(torch.autograd.Function)
    function = declares(pullback.Function) if how == "written" else pullback.complete(published)
    x = torch.tensor([1.0, 2.0], dtype=torch.bfloat16, requires_grad=True)
    fine = torch.tensor([1.0 + 2**-12, 3.0])  # which bfloat16 would round

    def pulled(apply):
        first, _, second = apply(x)
        return torch.autograd.grad((first, second), x, (fine, torch.ones_like(second)))[0]

    assert torch.equal(pulled(function.apply), pulled(published.apply))
    total = torch.func.grad(lambda x: sum(y.sum() for y in function.apply(x)[::2]))
    assert torch.equal(total(x.detach()), torch.full((2,), 3.0, dtype=torch.bfloat16))
    each = torch.func.vmap(torch.func.grad(lambda x: function.apply(x)[0]))
    assert torch.equal(each(x.detach()), torch.full((2,), 2.0, dtype=torch.bfloat16))


@needs_torch("2.14", "gradient dtypes (set_output_grad_dtype)")
@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacrev])
def test_another_number_of_gradient_dtypes_is_refused(transform):
    class Short(pullback.Function):
        @staticmethod
        def forward(x):
            return x * 2, x + 1

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.set_output_grad_dtype(torch.float32)

        @staticmethod
        def backward(ctx, first, second):
            return first * 2 + second

    with pytest.raises(DefinitionError, match="another number of outputs"):
        transform(lambda x: Short.apply(x)[0].sum())(torch.ones(3))


@needs_torch("2.14", "gradient dtypes (set_output_grad_dtype)")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["written", "completed"])
def test_gradient_dtypes_that_no_graph_takes_run_outside_of_it(how):
    body = {k: v for k, v in vars(declares(torch.autograd.Function)).items() if k[0] != "_"}
    body["backward"] = staticmethod(lambda ctx, first, _, second: first * 2 + second)
    published = type("Declares", (torch.autograd.Function,), body)
    function = published if how == "completed" else type("Declares", (pullback.Function,), body)
    function = pullback.complete(function) if how == "completed" else function
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: sum(function.apply(x)[::2]).sum(), backend="aot_eager")
    for _ in range(2):
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        compiled(x).backward()
        assert torch.equal(x.grad, torch.full((2,), 3.0))


@needs_torch("2.15", "input_grad_buffers")
@pytest.mark.parametrize("how", ["written", "completed"])
def test_gradients_are_added_to_buffers_and_returned_where_they_are_differentiated(how):
    seen = []

    class Product(pullback.Function if how == "written" else torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor, y):
            ctx.save_for_backward(x, y)
            ctx.factor = factor
            return x * y * factor

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            gradients = [g * y * ctx.factor, None, g * x * ctx.factor]
            for place, buffer in enumerate(ctx.input_grad_buffers):
                seen.append(buffer is not None)
                if buffer is not None:
                    buffer.add_(gradients[place])
                    gradients[place] = None
            return tuple(gradients)

    function = pullback.complete(Product)
    x, y = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (2.0, 3.0))
    z = function.apply(x, 2.0, y) + x.sin() * y  # the sine goes first
    assert torch.autograd.grad(z, (x, y), retain_graph=True) == (6 + x.cos() * 3, 4 + x.sin())
    assert seen == [True, False, True]
    first = torch.autograd.grad(z, x, create_graph=True)[0]
    assert torch.autograd.grad(first + x, (x, y)) == (1 - x.sin() * 3, 2 + x.cos())
    assert seen[3:6] == [False] * 3


@pytest.mark.sampled(3)
@pytest.mark.parametrize("way", ["split", "combined", "completed"])
@pytest.mark.parametrize("transform", ["none", "grad", "jvp", "vmap"])
def test_a_function_that_dynamo_does_not_look_into_applies_it(way, transform):
    """`nonstrict_trace`: the call is one operation to Dynamo, and AOTAutograd traces its inside."""
    function = {
        "split": Split,
        "combined": Combined,
        "completed": pullback.complete(PublishedCube),
    }[way]
    nonstrict_trace = getattr(torch.compiler, "nonstrict_trace", torch._dynamo.nonstrict_trace)

    def inside(x):
        def apply(x):
            return function.apply(x * 1.0).sin()

        if transform == "grad":
            return torch.func.grad(lambda x: apply(x).sum())(x)
        if transform == "jvp":
            return torch.func.jvp(apply, (x,), (torch.ones_like(x),))[1]
        return torch.vmap(apply)(x) if transform == "vmap" else apply(x)

    traced = nonstrict_trace(inside)
    x = torch.linspace(0.2, 1, 5, dtype=torch.float64).requires_grad_()
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: 2 * traced(x), fullgraph=True, backend="aot_eager")
    found, expected = compiled(x), 2 * inside(x)
    torch.testing.assert_close(found, expected)
    slopes = [torch.autograd.grad(y.sum(), x)[0] for y in (found, expected)]
    torch.testing.assert_close(*slopes)
