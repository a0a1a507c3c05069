"""torch.compile(fullgraph=True) reaches as far with our Function as with torch's own."""

import concurrent.futures
import dataclasses
import enum

import pytest
import torch
from tests.tensor.helpers import agree
from tests.versions import needs_torch, refused_before

import pullback
from pullback.errors import PullbackError

# Dynamo's own doing.
pytestmark = [
    pytest.mark.sampled(6),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def both(make):
    own = make(pullback.Function)
    third = pullback.complete(make(torch.autograd.Function))
    return pytest.mark.parametrize("function", [own, third], ids=["Function", "complete"])


def leaf():
    return torch.tensor([0.5, 1.5, 2.5], requires_grad=True)


def same_as_eager(call, backend="aot_eager"):
    """The value and the gradient of a call, eager and compiled."""
    found = []
    for run in (call, torch.compile(call, fullgraph=True, backend=backend)):
        x = leaf()
        y = run(x)
        found.append((y, torch.autograd.grad(y.square().sum(), x)[0]))
    torch.testing.assert_close(found[1], found[0])


SCALE = torch.tensor([1.0, 2.0, 3.0])


def uses_a_global(base):
    class UsesGlobal(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x * SCALE

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x * SCALE * g

    return UsesGlobal


def uses_a_cell(base):
    scale = torch.tensor([1.0, 2.0, 3.0])

    class UsesCell(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x * scale

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x * scale * g

    return UsesCell


@torch.compile(backend="eager")
def squared(x):
    return x * x


def uses_a_compiled_helper(base):
    class UsesCompiled(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return squared(x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x * g

    return UsesCompiled


def uses_a_global_split(base):
    class UsesGlobalSplit(base):
        @staticmethod
        def forward(x):
            return x * x * SCALE

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x * SCALE * g

    return UsesGlobalSplit


MAKERS = [uses_a_global, uses_a_cell, uses_a_compiled_helper, uses_a_global_split]
FUNCTIONS = {
    f"{make.__name__}-{way}": function
    for make in MAKERS
    for way, function in (
        ("Function", make(pullback.Function)),
        ("complete", pullback.complete(make(torch.autograd.Function))),
    )
}


# By the way it is called, the way it is written and by what it reads: each third has all.
READING = [
    pytest.param(name, direct, id=f"{name}-{'apply' if direct else 'lambda'}")
    for direct in (True, False)
    for name in FUNCTIONS
]


SLICE = refused_before("2.10", "an attribute of a slice", match="SliceVariable")


@pytest.mark.parametrize(("name", "direct"), READING)
def test_what_forward_reads_beside_its_arguments(name, direct):
    function = FUNCTIONS[name]
    same_as_eager(function.apply if direct else lambda x: function.apply(x))  # noqa: PLW0108


@pytest.mark.parametrize("way", ["Function", "complete"])
def test_a_global_that_changes_later_is_read_anew(way, monkeypatch):
    function = FUNCTIONS[f"uses_a_global-{way}"]
    run = torch.compile(lambda x: function.apply(x), fullgraph=True, backend="aot_eager")  # noqa: PLW0108
    run(leaf())
    monkeypatch.setitem(globals(), "SCALE", torch.tensor([3.0, 4.0, 5.0]))
    agree(run(leaf()), leaf().detach() ** 2 * SCALE)
    agree(torch.autograd.grad(run(x := leaf()).sum(), x)[0], 2 * x.detach() * SCALE)


class Store:
    scale = SCALE


def reads_an_attribute(base):
    class ReadsAttribute(base):
        @staticmethod
        def forward(ctx, x):
            return x * Store.scale

        @staticmethod
        def backward(ctx, g):
            return g * Store.scale

    return ReadsAttribute


@both(reads_an_attribute)
def test_a_tensor_that_is_found_at_the_call_only_is_followed(function, monkeypatch):
    run = torch.compile(function.apply, fullgraph=True, backend="aot_eager")
    agree(run(leaf()), leaf().detach() * SCALE)
    monkeypatch.setattr(Store, "scale", SCALE + 2)
    agree(run(leaf()), leaf().detach() * (SCALE + 2))


TRANSFORMS = [torch.func.grad, torch.func.hessian, torch.func.jacfwd]
# One after the other: each second has every transform, and either way to write the Function.
TRACED = [(f"uses_a_global-{w}", t) for w in ("Function", "complete") for t in TRANSFORMS]


@pytest.mark.parametrize(("name", "transform"), TRACED)
def test_a_transform_of_what_is_traced_without_one_is_right(name, transform):
    function = FUNCTIONS[name]
    x = leaf().detach()
    scalar = transform(lambda x: function.apply(x).sum())
    for fullgraph in (True, False):
        torch._dynamo.reset()
        agree(torch.compile(scalar, fullgraph=fullgraph, backend="aot_eager")(x), scalar(x))


@dataclasses.dataclass
class Options:
    power: int = 2
    scale: float = 3.0


class Mode(enum.Enum):
    SQUARE = 2
    CUBE = 3


class Plain:
    def __init__(self, power):
        self.power = power


def takes_anything(base):
    class Takes(base):
        @staticmethod
        def forward(ctx, x, option):
            ctx.save_for_backward(x)
            ctx.power = getattr(option, "power", None) or getattr(option, "value", None) or 2
            return x**ctx.power

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return ctx.power * x ** (ctx.power - 1) * g, None

    return Takes


def power_of(options):
    return options.power


def derivative(x, *, options, g):
    return power_of(options) * x ** (power_of(options) - 1) * g


def hands_an_object_on(base):
    class HandsOn(base):
        @staticmethod
        def forward(ctx, x, options):
            ctx.save_for_backward(x)
            ctx.options = options
            return x ** power_of(options)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return derivative(x, options=ctx.options, g=g), None

    return HandsOn


@both(hands_an_object_on)
def test_an_object_that_helpers_look_into(function):
    same_as_eager(lambda x: function.apply(x, Options(3)).sin())


def scale_of(x):
    return getattr(x, "scale", 1.0)


def reads_an_attribute_of_a_tensor(base, read=scale_of):
    class Scales(base):
        @staticmethod
        def forward(ctx, x):
            ctx.scale = read(x)
            return x * ctx.scale

        @staticmethod
        def backward(ctx, g):
            return g * ctx.scale

    return Scales


@both(reads_an_attribute_of_a_tensor)
def test_an_attribute_that_a_helper_of_another_name_reads_off_a_tensor(function):
    scaled = leaf().detach()
    scaled.scale = 3.0
    run = torch.compile(lambda x: function.apply(x), fullgraph=True, backend="aot_eager")  # noqa: PLW0108
    agree(run(scaled), 3 * scaled)
    agree(run(leaf()), leaf())


OPTIONS = {
    "dataclass": Options(),
    "object": Plain(3),
    "enum": Mode.CUBE,
    "string": "text",
    "none": None,
    "dtype": torch.float64,
    "device": torch.device("cpu"),
    "list": [1, 2],
    "dict": {"a": 1},
    "size": torch.Size([3]),
    "slice": slice(0, 2),
    "class": Plain,
    "ellipsis": ...,
}


TAKING = {
    "Function": takes_anything(pullback.Function),
    "complete": pullback.complete(takes_anything(torch.autograd.Function)),
}


@pytest.mark.parametrize(("way", "option"), [(way, option) for way in TAKING for option in OPTIONS])
def test_an_argument_of_any_kind(way, option):
    faulty = option == "slice" and torch.__version__ >= "2.8"  # 2.7 has no such fault
    compare = SLICE(same_as_eager) if faulty else same_as_eager
    compare(lambda x: TAKING[way].apply(x, OPTIONS[option]))


def test_a_helper_that_was_compiled_before():
    function = uses_a_compiled_helper(pullback.Function)
    function.apply(leaf())  # compiles the helper
    same_as_eager(lambda x: function.apply(x).sin())


def saves_a_residual(base):
    class Cube(base):
        @staticmethod
        def forward(ctx, x):
            square = x * x
            ctx.save_for_backward(square)
            ctx.shape = x.shape
            return square * x

        @staticmethod
        def backward(ctx, g):
            (square,) = ctx.saved_tensors
            return (3 * square * g).reshape(ctx.shape)

    return Cube


@both(saves_a_residual)
def test_without_gradients(function):
    x = leaf()
    run = torch.compile(function.apply, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        agree(run(x), function.apply(x))
    agree(run(x.detach()), function.apply(x.detach()))


@both(saves_a_residual)
def test_of_every_size(function):
    run = torch.compile(
        lambda x: function.apply(x).clone(), fullgraph=True, backend="aot_eager", dynamic=True
    )
    for size in (1, 2, 3, 7, 65):
        x = torch.linspace(0.5, 1.5, size, requires_grad=True)
        agree(torch.autograd.grad(run(x).sum(), x)[0], 3 * x.detach() ** 2)


@both(saves_a_residual)
def test_inside_a_module_with_two_uses(function):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, x):
            return function.apply(function.apply(x * self.weight) + 1)

    net = Net()
    same_as_eager(net)


def changes_in_place(base):
    class Double(base):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            x.mul_(2)
            return x  # what an operation in place returns is another tensor to Dynamo

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    return Double


@both(changes_in_place)
def test_in_place_on_an_input_of_the_graph_is_right_or_refused(function):
    x = leaf()
    y = x * 1
    try:
        z = torch.compile(lambda t: function.apply(t).clone(), fullgraph=True, backend="aot_eager")(
            y
        )
        (g,) = torch.autograd.grad(z.sum(), x)
    except (PullbackError, torch._dynamo.exc.TorchDynamoException):
        return
    agree(g, torch.full_like(x, 2))


@needs_torch("2.13", "tracing of changes in place; before, they are refused")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@both(changes_in_place)
def test_in_place_on_what_the_graph_makes_stands_in_one_graph(function, backend):
    def formula(x):
        y, z = x * 2, x * 3
        function.apply(y)
        function.apply(z[:2])
        return (y * z).sum()

    found = []
    for f in (formula, torch.compile(formula, backend=backend, fullgraph=True)):
        x = leaf()
        found.append(torch.autograd.grad(f(x), x)[0])
    agree(found[1], found[0])


@pytest.mark.parametrize("uses", [False, True], ids=["left", "used"])
@both(changes_in_place)
def test_in_place_on_a_view_is_what_it_is_without_a_compiler(function, uses):
    def formula(x):
        y = x * 1
        view = function.apply(y[:2])
        return (y * y).sum() + (view.sum() if uses else 0)

    found = []
    for f in (formula, torch.compile(formula, backend="aot_eager")):
        x = leaf()
        value = f(x)
        found.append((value.detach(), *torch.autograd.grad(value, x)))
    agree(found[1], found[0])


def class_methods(base):
    class ClassMethods(base):
        @classmethod
        def forward(cls, ctx, x, dim, power=power_of):
            ctx.dim, ctx.power = dim, power
            ctx.save_for_backward(x)
            return x ** power(Options(3)) * x.dim()

        @classmethod
        def backward(cls, ctx, g):
            (x,) = ctx.saved_tensors
            number = ctx.power(Options(3))
            return g * number * x ** (number - 1) * g.dim(), None, None

    return ClassMethods


@both(class_methods)
def test_rules_that_are_class_methods_and_take_a_function(function):
    same_as_eager(lambda x: function.apply(x, -1).sin())


def keeps_a_dimension(base):
    class KeepsADimension(base):
        @staticmethod
        def forward(ctx, x, dim):
            ctx.dim = dim
            return x.cumsum(dim) * x.dim()

        @staticmethod
        def backward(ctx, g):
            return g.flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim) * g.dim(), None

    return KeepsADimension


@both(keeps_a_dimension)
def test_a_method_of_tensors_is_no_argument_of_the_same_name(function):
    same_as_eager(lambda x: function.apply(x, -1).sin())


class InText(torch.autograd.Function):
    """The cube; backward reads its input as text, which is of symbols where there are no values."""

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.text = repr(inputs[0].tolist())
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        read = torch.tensor(eval(ctx.text), dtype=x.dtype)
        return 3 * x * read * g


class InAThread(torch.autograd.Function):
    """The exponential; backward hands its output to a thread."""

    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx, g):
        _, y = ctx.saved_tensors
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: y.detach() * 1).result() * g


def twice(f):
    return torch.func.grad(lambda x: torch.func.grad(lambda t: f(t).sum())(x).sum())


LEVELS = needs_torch("2.12", "an end of transforms in a graph that fails, before it an assertion")


@pytest.mark.parametrize("function", [InText, pytest.param(InAThread, marks=LEVELS)])
@pytest.mark.parametrize("transform", [torch.func.jacfwd, torch.func.jacrev, twice])
@pytest.mark.filterwarnings("ignore")
def test_a_transform_in_one_graph_is_right_or_refused_by_name(function, transform):
    x = torch.tensor([0.5, 1.4])
    asked = transform(pullback.complete(function).apply)
    plain = {InText: lambda t: t**3, InAThread: torch.exp}[function]
    try:
        got = torch.compile(asked, fullgraph=True, backend="aot_eager")(x)
    except Exception as error:
        said = f"{type(error).__mro__} {error}"
        assert all(part in said for part in ("Unsupported", function.__name__))
    else:
        torch.testing.assert_close(got, transform(plain)(x))


class Weighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b.sin()

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b.sin(), g * a * b.cos()


def test_a_tensor_that_is_given_twice_as_in_self_attention():
    x = torch.tensor([0.3, -1.2], dtype=torch.float64, requires_grad=True)
    apply = pullback.complete(Weighted).apply

    def run(x):
        h = 2 * x
        return apply(h, h) + apply(x, h) + apply(x, x)

    out = torch.compile(run, backend="aot_eager", fullgraph=True)(x)
    agree(out, run(x))
    agree(torch.autograd.grad(out.sum(), x), torch.autograd.grad(run(x).sum(), x))
