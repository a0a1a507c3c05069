"""What a caller hands over besides tensors stays the caller's: modules and callables."""

from types import SimpleNamespace

import pytest
import torch
from tests.specimens._specimen import normal
from torch.autograd import Function

from pullback.conformance import Verdict, check
from pullback.conformance.clauses import CLAUSES

pytestmark = pytest.mark.usefixtures("no_edits")

CHEAP = [c.id for c in CLAUSES if c.id not in ("compile", "compositions", "cuda-graph")]


class AgainInBackward(Function):
    """Runs a module again in backward; its parameters are handed over too, as checkpoints do."""

    @staticmethod
    def forward(ctx, module, x, *parameters):
        ctx.module = module
        ctx.save_for_backward(x, *parameters)
        with torch.no_grad():
            return module(x).tanh()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, cotangent):
        x, *parameters = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = ctx.module(x).tanh()
        return None, *torch.autograd.grad(y, (x, *parameters), cotangent)


def called_by(module):
    return lambda x: module(x).clone()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("hand", [lambda module: module, called_by, lambda module: module.forward])
def test_a_module_among_the_arguments_is_left_as_it_was(hand):
    module = torch.nn.Linear(3, 2).double()
    before = [parameter.detach().clone() for parameter in module.parameters()]
    given = hand(module)
    report = check(AgainInBackward, given, normal(4, 3), *module.parameters(), clauses=CHEAP)
    for parameter, value in zip(module.parameters(), before, strict=True):
        assert torch.equal(parameter, value)
    assert report.ok, report
    assert report["leak"].verdict is Verdict.HOLDS


WEIGHT = torch.full((3,), 0.5, dtype=torch.float64, requires_grad=True)


def scaled(x):
    return x * WEIGHT


def scaled_by(weight):
    return lambda x: x * weight


@pytest.mark.parametrize("kind", ["global", "closure", "object"])
def test_a_parameter_that_a_callable_reaches_by_itself_stays_the_one_it_reaches(kind):
    scale = {"global": scaled, "closure": scaled_by(WEIGHT), "object": Scale(WEIGHT)}[kind]
    report = check(AgainInBackward, scale, normal(4, 3), WEIGHT, clauses=CHEAP)
    assert torch.equal(WEIGHT, torch.full((3,), 0.5, dtype=torch.float64))
    assert report.ok, report
    assert report["derivative"].verdict is Verdict.HOLDS


class Scale:
    def __init__(self, weight):
        self.weight = weight

    def __call__(self, x):
        return x * self.weight


class Through(Function):
    """A product with a weight that its argument reaches by itself."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        return x * weight()

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.weight(), None


def made_of_a_closure(weight):
    return lambda: weight


class Holder:
    def __init__(self, weight):
        self.weight = weight

    def __call__(self):
        return self.weight


@pytest.mark.parametrize("made", [made_of_a_closure, Holder])
def test_a_tensor_that_an_argument_held_before_is_no_leak_of_the_call(made):
    report = check(Through, normal(3), made(torch.ones(3).double() * 2), clauses=CHEAP)
    assert report.ok, report
    assert report["saved"].verdict is report["hooks"].verdict is Verdict.HOLDS


def test_a_tensor_that_the_checked_callable_held_before_is_no_leak_of_the_call():
    weight = torch.ones(3).double() * 2

    def product(x):
        return Through.apply(x, lambda: weight)

    report = check(product, normal(3), clauses=["saved", "hooks"])
    assert report["saved"].verdict is report["hooks"].verdict is Verdict.HOLDS


class OfAGrid(Function):
    """Its context holds views of what an argument held."""

    @staticmethod
    def forward(ctx, x, grid):
        ctx.plan = SimpleNamespace(rows=grid.counts[1], few=grid.counts[:1])
        assert len(x) == ctx.plan.rows
        return 2 * x

    @staticmethod
    def backward(ctx, cotangent):
        return 2 * cotangent, None


def test_a_view_of_what_an_argument_held_is_no_leak_of_the_call():
    grid = SimpleNamespace(counts=torch.tensor([4, 3]))
    report = check(OfAGrid, normal(3), grid, clauses=["saved", "hooks"])
    assert report["saved"].verdict is report["hooks"].verdict is Verdict.HOLDS


class Stashes(Function):
    """Keeps what forward computed on an argument."""

    @staticmethod
    def forward(ctx, x, holder):
        ctx.holder = holder
        holder.slope = x.cos()
        return x.sin()

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.holder.slope, None


@pytest.mark.parametrize("runs", [0, 1])
def test_what_forward_put_on_an_argument_is_seen(runs):
    holder = SimpleNamespace()
    for _ in range(runs):
        Stashes.apply(normal(3), holder)
    report = check(Stashes, normal(3), holder, clauses=["saved", "hooks"])
    assert report["saved"].verdict is report["hooks"].verdict is Verdict.BROKEN


class LateSlope(Function):
    """Asks its argument for the slope, in backward alone."""

    @staticmethod
    def forward(ctx, x, slope):
        ctx.save_for_backward(x)
        ctx.slope = slope
        return x * x

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return ctx.slope(x) * cotangent, None


class OwnSlope(LateSlope):
    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return torch.cat([2 * x[:1], 2 * x[1:]]) * cotangent, None


def by_rows(x):
    return torch.cat([2 * x[:1], 2 * x[1:]])


def test_a_size_that_the_callers_function_does_not_take_is_no_fault_of_the_checked_one():
    report = check(LateSlope, normal(3), by_rows, clauses="layout")
    assert report["layout"].verdict is Verdict.HOLDS
    report = check(OwnSlope, normal(3), by_rows, clauses="layout")
    assert report["layout"].verdict is Verdict.CRASHES


class OverBatches(Function):
    """A sum over batches of data, a list of dicts, which torch does not look into."""

    @staticmethod
    def forward(ctx, x, batches):
        ctx.save_for_backward(sum(batch["x"] for batch in batches))
        return x * ctx.to_save[0]

    @staticmethod
    def backward(ctx, cotangent):
        return ctx.saved_tensors[0] * cotangent, None


@pytest.mark.parametrize(("marked", "expected"), [(False, Verdict.SKIPPED), (True, Verdict.BROKEN)])
def test_nested_data_that_nobody_marked_is_a_constant(marked, expected):
    batches = [{"x": normal(3, seed=seed).detach().requires_grad_(marked)} for seed in (2, 3)]
    report = check(OverBatches, normal(3), batches, clauses="structure")
    assert report["structure"].verdict is expected


class SwapsWeights(AgainInBackward):
    """The gradients of two parameters of one shape change places."""

    @staticmethod
    def backward(ctx, cotangent):
        none, x, first, second, *others = AgainInBackward.backward(ctx, cotangent)
        return none, x, second, first, *others


class AddsItself(Function):
    """Backward adds to the gradients of parameters by itself, as a reentrant checkpoint does."""

    @staticmethod
    def forward(ctx, module, x, *parameters):
        ctx.module, ctx.count = module, len(parameters)
        ctx.save_for_backward(x)
        return module(x).detach()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, cotangent):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            torch.autograd.backward(ctx.module(x), cotangent)
        return None, x.grad, *[None] * ctx.count


def test_a_parameter_that_gets_its_gradient_by_another_way_is_a_constant():
    module = Layers()
    report = check(AddsItself, module, normal(4, 3), *module.parameters(), clauses="derivative")
    assert report["derivative"].verdict is Verdict.HOLDS


def two_layers(x, first, second):
    return (x @ first).sin() @ second


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = (
            torch.nn.Parameter(normal(3, 3, seed=seed).detach()) for seed in (5, 6)
        )

    def forward(self, x):
        return two_layers(x, self.first, self.second)


@pytest.mark.parametrize("hand", [lambda module: module, called_by, lambda module: module.forward])
def test_the_gradients_of_parameters_that_a_module_reads_itself_are_judged(hand):
    module = Layers()
    before = [parameter.detach().clone() for parameter in module.parameters()]
    given = (hand(module), normal(4, 3), *module.parameters())
    right = check(AgainInBackward, *given, clauses="derivative")
    assert right["derivative"].detail.startswith("Backward agrees with finite differences for 3 of")
    assert right.constants == ()
    wrong = check(SwapsWeights, *given, clauses="derivative")["derivative"]
    assert wrong.verdict is Verdict.BROKEN
    assert "args[2]" in wrong.detail
    assert "Got is the gradient of args[3]" in wrong.detail
    for parameter, value in zip(module.parameters(), before, strict=True):
        assert torch.equal(parameter, value)
