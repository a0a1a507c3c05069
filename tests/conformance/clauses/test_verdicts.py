"""Verdicts that once were false: what is found, what is no fault, and one finding for one cause."""

from collections import deque

import pytest
import torch
from tests.specimens._specimen import normal
from tests.specimens.right.manners import LargerThanMean, NonZero
from tests.specimens.right.smooth import WeightsInside
from tests.specimens.right.stopped import READS_ITS_OUTPUT
from tests.specimens.wrong.calculus import CubeNested, OnceCombined, OnceNumpy, OnceSplit
from torch.autograd import Function

import pullback
from pullback.conformance import Verdict, check
from pullback.conformance.clauses import CLAUSES
from pullback.errors import ArgumentError, ArgumentTypeError

pytestmark = pytest.mark.usefixtures("no_edits")

CHEAP = [c.id for c in CLAUSES if c.id not in ("compile", "compositions", "cuda-graph")]
FAILURES = [
    RuntimeError("element 0 of tensors does not require grad and does not have a grad_fn"),
    NameError("undefined"),
    SystemExit(3),
    NotImplementedError("no backward"),
]


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_a_backward_that_never_runs_is_the_one_finding(error):
    class Never(Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, cotangent):
            raise error

    report = check(Never, normal(3), clauses=CHEAP)
    refused = isinstance(error, NotImplementedError)
    found = {f.clause: f.verdict for f in report if f.verdict not in ("holds", "skipped")}
    assert found == {"derivative": Verdict.LACKING if refused else Verdict.CRASHES}
    assert "backward does not run" in report["deterministic"].detail


def test_nested_inputs_have_a_gradient_for_each_tensor():
    weights = {"w": normal(3, seed=2), "b": [normal(3, seed=3)]}
    assert check(WeightsInside, normal(3), weights, clauses="form")["form"].verdict == "holds"


@pytest.mark.parametrize("function", [OnceCombined, OnceSplit])
def test_completing_what_is_once_differentiable_mends_it(function):
    assert check(function, normal(3), clauses="once")["once"].verdict is Verdict.LACKING
    report = check(pullback.complete(function), normal(3), clauses=["once", "double"])
    assert report.ok
    assert report["double"].verdict is Verdict.HOLDS


@pytest.mark.parametrize("specimen", READS_ITS_OUTPUT, ids=lambda specimen: specimen.id)
def test_a_surrogate_that_reads_its_output_is_right_completed_too(specimen):
    clauses = ["double", "forward", "transforms", "compositions"]
    completed = pullback.complete(specimen.function)
    report = check(completed, *specimen.inputs(), gradient="surrogate", clauses=clauses)
    assert [finding.verdict for finding in report] == [Verdict.HOLDS] * 4


def test_what_completing_cannot_derive_is_lacking():
    report = check(pullback.complete(OnceNumpy), normal(3), clauses=["once", "double"])
    assert report.ok
    assert report["double"].verdict is Verdict.LACKING


def in_a_module(kept):
    module = torch.nn.Linear(2, 2)
    module.kept = kept
    return module


KEPT = {
    "a method made in C": lambda x: x.clone,
    "a deque": lambda x: deque([{"x": x}]),
    "an iterator": lambda x: iter([x]),
    "a chain of iterators": lambda x: zip([1], [x], strict=True),
    "a generator": lambda x: (t for t in [x]),
    "a module": in_a_module,
    "a module in a module": lambda x: torch.nn.Sequential(in_a_module([x])),
}


@pytest.mark.parametrize("keep", KEPT.values(), ids=KEPT.keys())
def test_a_tensor_is_found_wherever_the_context_holds_it(keep):
    class Keeps(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.kept, ctx.other = keep(x), 2 * x.detach().numpy()
            return x * x

        @staticmethod
        def backward(ctx, cotangent):
            return torch.from_numpy(ctx.other) * cotangent

    assert check(Keeps, normal(3), clauses="saved")["saved"].verdict is Verdict.BROKEN


def test_what_holds_no_tensor_is_not_flagged():
    class Keeps(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.kept = [torch.mul, len, "abc".upper, iter([1]), deque([1]), x.shape, range(3)]
            ctx.made = torch.Generator()
            ctx.layer = in_a_module(torch.ones(3))
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, cotangent):
            return 2 * ctx.saved_tensors[0] * cotangent

    assert check(Keeps, normal(3), clauses="saved")["saved"].verdict is Verdict.HOLDS


@pytest.mark.parametrize("kept", [torch.get_rng_state, lambda: torch.ones(3, dtype=torch.uint8)])
def test_the_state_of_a_generator_may_stay_on_the_context(kept):
    class Again(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.state = kept()
            return 2 * x

        @staticmethod
        def backward(ctx, cotangent):
            return 2 * cotangent

    report = check(Again, normal(3), clauses=["saved", "hooks"])
    assert report.ok == (kept is torch.get_rng_state)


class SingleGradient(Function):
    """Two outputs; its gradient is in float32, and torch casts it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x, x.sin()

    @staticmethod
    def backward(ctx, first, second):
        (x,) = ctx.saved_tensors
        return (2 * x * first + x.cos() * second).float()


class SingleProduct(Function):
    """Computes its backward in float32, whatever it is given."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, cotangent):
        x, w = (t.float() for t in ctx.saved_tensors)
        g = cotangent.float()
        return (g @ w.mT).double(), (x.mT @ g).double()


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (SingleGradient, lambda: (normal(5),)),
        (SingleProduct, lambda: (normal(5, 7), normal(7, 3, seed=2))),
    ],
)
def test_a_backward_in_float32_is_no_fault_of_its_numbers(function, inputs):
    clauses = ["derivative", "linear", "double", "alias", "undefined", "layout", "form", "state"]
    report = check(function, *inputs(), clauses=clauses)
    assert not [f for f in report if f.verdict in ("broken", "crashes")], report


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (NonZero, lambda seed: (torch.tensor([1.0, 0, 2, 0, 3 + seed]).requires_grad_(),)),
        (LargerThanMean, lambda seed: (normal(30, seed=seed),)),
    ],
)
def test_outputs_whose_size_depends_on_values_are_compared_where_it_stays(function, inputs, seed):
    clauses = ["derivative", "vmap", "state", "sizes"]
    report = check(function, *inputs(seed), clauses=clauses)
    assert report.ok, report
    assert report["state"].verdict is Verdict.HOLDS


def test_a_shared_state_is_found_beside_a_selection():
    class Shared(LargerThanMean):
        @staticmethod
        def forward(ctx, x):
            Shared.kept = x.abs() > x.abs().mean(), x
            return x[Shared.kept[0]] ** 2

        @staticmethod
        def backward(ctx, cotangent):
            mask, x = Shared.kept
            return torch.zeros_like(x).masked_scatter(mask, 2 * x[mask] * cotangent)

    report = check(Shared, normal(30), clauses="state")
    assert report["state"].verdict is Verdict.BROKEN


class FreesItsGraph(Function):
    """Backward goes once through a graph of torch's own that forward made."""

    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            inner = x.detach().requires_grad_()
            made = inner.sin()
        ctx.save_for_backward(inner, made)
        return made.detach()

    @staticmethod
    def backward(ctx, cotangent):
        inner, made = ctx.saved_tensors
        return torch.autograd.grad(made, inner, cotangent)


def test_a_backward_that_runs_once_is_a_finding_of_retain_alone():
    report = check(FreesItsGraph, normal(3), clauses=CHEAP)
    bad = {finding.clause for finding in report if finding.verdict.is_bad}
    assert bad == {"retain", "double"}, report


class RoughSine(Function):
    """Its slope is a sum that was cut off early."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, cotangent):
        return (1 + 1e-4) * ctx.saved_tensors[0].cos() * cotangent


class BoundedRoot(Function):
    """Its slope stays below a thousand."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sqrt()

    @staticmethod
    def backward(ctx, cotangent):
        return 0.5 * cotangent / ctx.saved_tensors[0].clamp(min=2.5e-7).sqrt()


@pytest.mark.parametrize(
    ("function", "clause", "said"),
    [(RoughSine, "derivative", "tolerance"), (BoundedRoot, "values", "surrogate")],
)
def test_a_hint_names_what_an_author_may_have_meant(function, clause, said):
    points = normal(5).detach().abs().requires_grad_()
    finding = check(function, points, clauses=clause)[clause]
    assert finding.verdict is Verdict.BROKEN
    assert said in finding.hint
    assert check(function, points, clauses=clause, gradient="surrogate").ok


class RoughSecond(Function):
    """The gradient of its second input, which moves it less, is a little off."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return 10 * x * y.cos()

    @staticmethod
    def backward(ctx, cotangent):
        x, y = ctx.saved_tensors
        return 10 * y.cos() * cotangent, -(10 + 1e-3) * x * y.sin() * cotangent


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(3))
def test_a_derivative_that_is_a_little_off_is_one_finding(seed):
    y = (0.3 * normal(3, seed=5).detach()).requires_grad_()
    clauses = ["derivative", "sizes", "values"]
    report = check(RoughSecond, normal(3), y, clauses=clauses, seed=seed)
    assert [finding.clause for finding in report if finding.verdict.is_bad] == ["derivative"]


class SafeTangent(Function):
    """The hyperbolic tangent, whose output stays a little below one."""

    @staticmethod
    def forward(ctx, x):
        reach = 1 - 4 * torch.finfo(x.dtype).eps
        y = x.tanh().clamp(-reach, reach)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        (y,) = ctx.saved_tensors
        return (1 - y * y) * cotangent


def test_a_slope_that_is_rounding_in_float32_is_no_fault():
    report = check(SafeTangent, normal(3, 5), clauses="values")
    assert report["values"].verdict is Verdict.HOLDS


class FreesItsOutput(Function):
    """Reversible: backward computes the input from the output, and frees that."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.y = y.detach()
        return y

    @staticmethod
    def backward(ctx, cotangent):
        gradient = ctx.y * cotangent
        ctx.y.untyped_storage().resize_(0)
        return gradient


class LessOne(Function):
    """A constant near one, less one: where it is rounded, nearly all digits are lost."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(scale)
        return x * (scale - 1)

    @staticmethod
    def backward(ctx, cotangent):
        (scale,) = ctx.saved_tensors
        return cotangent * (scale - 1), None


def test_a_precision_is_compared_at_constants_that_are_rounded_too():
    near_one = torch.tensor([1.001, 1.002, 1.003, 0.999], dtype=torch.float64)
    report = check(LessOne, normal(3, 4), near_one, clauses="dtype")
    assert report["dtype"].verdict == "holds", f"seed {report.seed}\n{report}"


def test_a_backward_that_frees_its_output_gives_the_same_bits():
    report = check(FreesItsOutput, normal(3), clauses="deterministic")
    assert report["deterministic"].verdict is Verdict.HOLDS


class GoesThroughItsGraph(Function):
    """Forward goes twice through a graph of its own, and saves what it finds."""

    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            inner = x.detach().requires_grad_()
            made = inner.sin()
            (slope,) = torch.autograd.grad(made.sum(), inner, retain_graph=True)
            torch.autograd.grad(made.sum(), inner)
        ctx.save_for_backward(slope)
        return made.detach()

    @staticmethod
    def backward(ctx, cotangent):
        return ctx.saved_tensors[0] * cotangent


def test_what_forward_unpacks_by_itself_is_no_fault_of_backward():
    report = check(GoesThroughItsGraph, normal(3), clauses="checkpoint")
    assert report["checkpoint"].verdict is Verdict.HOLDS


@torch.library.custom_op("pullback_verdicts::sine", mutates_args=())
def sine(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


class RightForward(CubeNested):
    """The tangent is the derivative of a cube, and backward half of it."""

    @staticmethod
    def backward(ctx, cotangent):
        return CubeNested.backward(ctx, cotangent) / 2


class RefusesSums(Function):
    """Wrong, and refuses what cotangents add up to."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        if cotangent.abs().max() > 4:
            raise RecursionError("no convergence")
        return 2 * x**2 * cotangent


def test_whose_gradient_is_wrong_is_told_by_differences():
    report = check(RightForward, normal(4, 3), gradient="exact", clauses="derivative,forward")
    assert report["derivative"].verdict is Verdict.BROKEN
    assert report["forward"].verdict is Verdict.HOLDS
    assert "backward is another" in report["forward"].detail


def test_a_wrong_gradient_is_told_where_other_cotangents_are_refused():
    x = torch.linspace(0.2, 1.0, 64, dtype=torch.float64, requires_grad=True)
    report = check(RefusesSums, x, gradient="exact", clauses="derivative")
    assert report["derivative"].verdict is Verdict.BROKEN, report["derivative"]


def test_an_operator_without_a_gradient_lacks_one():
    report = check(sine, normal(3), clauses=["derivative", "linear", "deterministic"])
    assert report.ok
    assert report["derivative"].verdict is Verdict.LACKING
    assert "register_autograd" in report["derivative"].hint


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"isolate": "yes"}, ArgumentError),
        ({"isolate": 1}, ArgumentError),
        ({"clauses": 3}, ArgumentTypeError),
    ],
)
def test_options_of_another_kind_are_refused_by_name(options, error):
    with pytest.raises(error, match="given"):
        check(NonZero, normal(3), **options)


class CutCube(Function):
    """Right; the second derivative is seen in another light by every second call."""

    calls = 0

    @staticmethod
    def forward(ctx, x, cotangent):
        ctx.save_for_backward(x, cotangent)
        return 3 * x * x * cotangent

    @staticmethod
    def backward(ctx, cotangent):
        x, g = ctx.saved_tensors
        CutCube.calls += 1
        return 6 * x * g * cotangent * (1 + 0.3 * (-1) ** CutCube.calls), 3 * x * x * cotangent


class CubeBySlope(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, cotangent):
        return CutCube.apply(*ctx.saved_tensors, cotangent)


def test_a_second_derivative_that_disagrees_with_itself_accuses_nobody():
    report = check(CubeBySlope, normal(4), clauses="double")
    assert report["double"].verdict is not Verdict.BROKEN


def test_an_operation_that_torch_does_not_differentiate_again_is_a_refusal():
    report = check(torch.nn.functional.hardsigmoid, normal(3, 5), clauses="double")
    assert report["double"].verdict is Verdict.LACKING


def test_zeros_that_stand_for_what_was_not_asked_for_are_no_work_of_backward():
    class Each(Function):
        @staticmethod
        def forward(ctx, x, y):
            return x + y

        @staticmethod
        def backward(ctx, cotangent):
            return tuple(2 * cotangent if needed else None for needed in ctx.needs_input_grad)

    finding = check(Each, normal(3), normal(3), gradient="surrogate", clauses="needs-input-grad")
    assert finding["needs-input-grad"].verdict is Verdict.HOLDS


class Eigenvectors(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        values, vectors = torch.linalg.eigh(a)
        ctx.save_for_backward(values, vectors)
        return vectors

    @staticmethod
    def backward(ctx, g):
        values, vectors = ctx.saved_tensors
        gaps = values.unsqueeze(-2) - values.unsqueeze(-1)
        gaps.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
        return vectors @ (vectors.mT @ g / gaps) @ vectors.mT


def test_another_sign_of_an_eigenvector_in_float32_is_no_loss_of_precision():
    drawn = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0))
    finding = check(Eigenvectors, drawn + drawn.mT, clauses="dtype")["dtype"]
    assert finding.verdict in ("holds", "lacking"), str(finding)


class RefusesWeight(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return x @ weight

    @staticmethod
    def backward(ctx, cotangent):
        if ctx.needs_input_grad[1]:
            raise RuntimeError("the weight is frozen")
        (weight,) = ctx.saved_tensors
        return cotangent @ weight.mT, None


def test_an_unmarked_input_whose_gradient_the_author_refuses_is_a_constant():
    unmarked = (normal(4, 3).detach(), normal(3, 2).detach())
    report = check(RefusesWeight, *unmarked, clauses=["derivative", "linear"])
    assert report.constants == ("args[1]",)
    assert report["derivative"].verdict is Verdict.LACKING
    assert report["linear"].verdict is Verdict.HOLDS
