"""`annotate` shows the right scales and leaves everything as it was."""

import contextlib
import io
import re

import pytest
import torch
from torch import nn
from torch.nn import functional

from pullback import gradients
from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.gradients import ScaleGradient, scale_gradient
from pullback.tracking import Tracker, annotate

SCALE = re.compile(r"\(-> ([^,]+), <- ([^)]+)\)")


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.second = nn.Linear(7, 3)

    def forward(self, x):
        return self.second(functional.relu(self.first(x)))


def quietly(model, *inputs, **keywords):
    return annotate(model, *inputs, file=io.StringIO(), **keywords)


def scales_of(text, name):
    [line] = [line for line in text.splitlines() if re.match(rf"\s*{name}\b.* = ", line)]
    return SCALE.search(line).groups()


def rms(values):
    return float(values.detach().float().square().mean().sqrt())


def std(values):
    return float(values.detach().float().std(correction=0))


@pytest.mark.parametrize("scale", [rms, std])
def test_the_scales_are_those_of_autograd(scale):
    torch.manual_seed(0)
    model, x, g = Perceptron(), torch.randn(11, 5), torch.randn(11, 3)
    text = quietly(model, x, cotangent=g, statistic="scale" if scale is rms else "std")
    leaf = x.clone().requires_grad_()
    hidden = model.first(leaf)
    active = functional.relu(hidden)
    output = model.second(active)
    values = {
        "first_weight": model.first.weight,
        "first_bias": model.first.bias,
        "linear": hidden,
        "relu": active,
        "second_weight": model.second.weight,
        "linear_1": output,
    }
    gradients = torch.autograd.grad(output, list(values.values()), g)
    for (name, value), gradient in zip(values.items(), gradients, strict=True):
        expected = (f"{scale(value):.3}", f"{scale(gradient):.3}")
        assert scales_of(text, name) == expected
    head = text.splitlines()[0]
    (gradient,) = torch.autograd.grad(model(leaf), leaf, g)
    assert head.startswith("def forward(self, x):")
    assert SCALE.search(head).groups() == (f"{scale(x):.3}", f"{scale(gradient):.3}")


def test_a_scale_means_what_it_means_to_a_tracker():
    model, x = Perceptron(), torch.randn(11, 5)
    with Tracker(model) as tracker:
        model(x)
    assert scales_of(quietly(model, x), "linear")[0] == f"{tracker.total('first').scale:.3}"
    with pytest.raises(ArgumentError, match="as statistic"):
        quietly(model, x, statistic="size")


def test_nothing_is_disturbed():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout())
    x = torch.randn(6, 4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    data, state = x.clone(), torch.get_rng_state()
    quietly(model, x)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, data)
    assert not x.requires_grad
    assert x.grad is None
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    for parameter in model.parameters():
        assert parameter.grad is None
        assert not parameter._backward_hooks
    assert not any(module._forward_hooks for module in model.modules())


def test_a_failing_model_is_left_as_it_was():
    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            self.count.add_(1)
            return x @ torch.ones(99, 99)

    model = Failing()
    with pytest.raises(RuntimeError):
        quietly(model, torch.ones(2, 3))
    assert model.count.item() == 0


def test_in_place_operations_keep_their_order():
    class InPlace(nn.Module):
        def forward(self, x):
            y = x * 2
            y.add_(1)
            return y * y

    x = torch.tensor([1.0, 2.0, 4.0])
    text = quietly(InPlace(), x, cotangent=torch.ones(3))
    assert scales_of(text, "mul") == (f"{rms(2 * x):.3}", f"{rms(4 * x + 2):.3}")
    assert scales_of(text, "mul_1")[0] == f"{rms((2 * x + 1) ** 2):.3}"


def test_outputs_of_any_structure():
    class Several(nn.Module):
        def forward(self, x):
            return {"a": x * 2, "b": (x.sum(), x.argmax())}

    text = quietly(Several(), torch.randn(5))
    assert "n/a" not in scales_of(text, "mul")
    with pytest.raises(ArgumentError, match="cotangent does not fit"):
        quietly(Several(), torch.randn(5), cotangent=torch.randn(5))


def test_what_has_no_gradient_says_so():
    class Half(nn.Module):
        def forward(self, x, index):
            unused = x.detach() * 3
            return x[index], unused

    text = quietly(Half(), torch.randn(5), torch.tensor([1, 2]))
    assert scales_of(text, "mul")[1] == "n/a"
    assert "index" in text


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(0),
        torch.zeros(1),
        torch.full((3,), torch.nan),
        torch.tensor([1.0, torch.inf]),
        torch.ones(3, dtype=torch.complex64),
        torch.ones(3, dtype=torch.bfloat16),
        torch.arange(3),
    ],
    ids=["empty", "one", "nan", "inf", "complex", "bfloat16", "integer"],
)
def test_odd_data(x):
    class Plus(nn.Module):
        def forward(self, x):
            return x + 1

    text = quietly(Plus(), x)
    assert "add = x + 1" in text


def test_half_precision_is_measured_in_float32():
    class Same(nn.Module):
        def forward(self, x):
            return x * 1

    x = torch.linspace(100, 101, 64, dtype=torch.float64).to(torch.bfloat16)
    assert scales_of(quietly(Same(), x, statistic="std"), "mul")[0] == f"{std(x):.3}"


def test_it_prints(capsys):
    text = annotate(nn.ReLU(), torch.randn(3))
    assert capsys.readouterr().out == text + "\n"


def test_it_is_the_example_of_unit_scaling():
    # The lines that analyse_module of unit-scaling 0.3.5 prints for this model, without scales.
    text = quietly(Perceptron(), torch.randn(4, 5))
    lines = [line.split(";")[0].split(":  ")[0].strip() for line in text.splitlines()]
    assert lines[1:] == [
        "first_weight = self.first.weight",
        "first_bias = self.first.bias",
        "linear = torch._C._nn.linear(x, first_weight, first_bias)",
        "relu = torch.nn.functional.relu(linear, inplace = False)",
        "second_weight = self.second.weight",
        "second_bias = self.second.bias",
        "linear_1 = torch._C._nn.linear(relu, second_weight, second_bias)",
        "return linear_1",
    ]


def test_refusals():
    class Branching(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(UnsupportedError, match="cannot trace Branching"):
        quietly(Branching(), torch.ones(3))
    with pytest.raises(ArgumentTypeError):
        quietly(torch.relu, torch.ones(3))


class Quoted(nn.Module):
    def forward(self, x: "torch.Tensor", *rest: "torch.Tensor | None") -> "torch.Tensor":
        return x.tanh()


class Unknown(nn.Module):
    def forward(self, x: "NoSuchType") -> "torch.Tensor":  # noqa: F821 - a checker's name
        return x.tanh()


class Plain(nn.Module):
    def forward(self, x: torch.Tensor, *rest: torch.Tensor | None) -> torch.Tensor:
        return x.tanh()


def test_annotations_that_are_text_are_printed_as_types():
    x = torch.randn(4)
    assert quietly(Quoted(), x) == quietly(Plain(), x)
    assert "def forward(self, x : torch.Tensor, *rest" in quietly(Quoted(), x)
    assert quietly(Unknown(), x).startswith("def forward(self, x):")


class Counting(nn.Module):
    """Assigns to what it holds in each pass, as running statistics and caches do."""

    def __init__(self, *, branches=False):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(4))
        self.seen = []
        self.branches = branches

    def forward(self, x):
        self.steps += 1
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach() + torch.ones(4)
        self.last = self.linear(x)
        self.seen.append(self.last)
        return -self.last if self.branches and self.last.sum() > 0 else self.last


@pytest.mark.parametrize("branches", [False, True])
def test_what_a_forward_assigns_is_put_back(branches):
    model = nn.Sequential(Counting(branches=branches))
    names, buffers = list(vars(model[0])), dict(model.named_buffers())
    refused = pytest.raises(UnsupportedError) if branches else contextlib.nullcontext()
    with refused:
        quietly(model, torch.randn(2, 4))
    assert (list(vars(model)), list(vars(model[0]))) == (list(vars(nn.Sequential())), names)
    assert all(buffer is buffers[name] for name, buffer in model.named_buffers())
    assert not any(buffer.any() for buffer in model.buffers())
    assert model[0].seen == []
    torch.save(model.state_dict(), io.BytesIO())


def test_a_model_that_holds_what_an_earlier_forward_gave():
    class Holds(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            self.last = self.layer(x)
            return self.last.relu()

    model, x = Holds(), torch.randn(3, 2)
    model(x)
    last = model.last
    assert "relu" in annotate(model, x)
    assert model.last is last


class Halves(nn.Module):
    """Uses one half of what a layer gives; of the other, the value alone."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 6)

    def forward(self, x):
        used, other = self.layer(x).chunk(2, -1)
        return used * 2 + other.detach()


def test_a_part_without_a_gradient():
    text = quietly(Halves(), torch.randn(3, 4), cotangent=torch.ones(3, 3))
    assert scales_of(text, "getitem")[1] == "2.0"
    assert scales_of(text, "getitem_1")[1] == "n/a"


class InPlace(nn.Module):
    """Changes what a layer of three dimensions gives, which is a view."""

    def __init__(self, inplace):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.inplace = nn.Linear(4, 6), nn.Linear(6, 2), inplace

    def forward(self, x):
        return self.second(functional.relu(self.first(x), inplace=self.inplace))


def test_a_view_that_is_changed_in_place_has_its_gradient():
    x = torch.randn(2, 3, 4)
    found = [scales_of(quietly(InPlace(inplace), x), "linear") for inplace in (False, True)]
    assert found[0] == found[1]
    assert found[0][1] != "n/a"


class Shaped(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.small = nn.Linear(4, 4), ScaleGradient(0.25)

    def forward(self, x):
        return gradients.scale_gradient(self.small(scale_gradient(self.layer(x), 0.5)), 2.0)


def test_what_shapes_a_gradient_stays_one_line():
    model, x, g = Shaped(), torch.randn(3, 4), torch.randn(3, 4)
    text = quietly(model, x, cotangent=g)
    for name, factor in (("linear", 0.25), ("scale_gradient", 0.5), ("small", 2.0)):
        forward, backward = map(float, scales_of(text, name))
        assert forward == pytest.approx(rms(model.layer(x)), rel=1e-2)
        assert backward == pytest.approx(factor * rms(g), rel=1e-2)
