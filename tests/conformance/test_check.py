"""`check`: what it takes, what it refuses, and that it leaves the process as it was."""

import os
import random
import signal
import sys
import warnings

import numpy as np
import pytest
import torch
from tests.scripts import printed_by
from tests.specimens._specimen import normal
from tests.specimens.estimators import RoundTimesWeight
from tests.specimens.right.edges import ReverseGradient, StraightThrough
from tests.specimens.right.smooth import Cube, Product, composed
from tests.specimens.wrong.calculus import ClipUndeclared, MissingFactor
from tests.specimens.wrong.hidden import NeverRuns
from torch.testing._internal.two_tensor import TwoTensor

import pullback.conformance
from pullback.conformance import Report, Verdict, check
from pullback.conformance.clauses import CLAUSES
from pullback.conformance.probing import _prepare
from pullback.errors import ArgumentError, ArgumentTypeError, BrokenContractError
from pullback.internal import _workers
from pullback.internal.torch import answering

pytestmark = pytest.mark.usefixtures("no_edits")

# The clauses of the contract in its order. It has none for how an operator of torch.library is
# registered, which is no promise of a Function: `registration` stands beside the other machinery.
CONTRACT = """derivative linear double once forward forward-over-forward transforms vmap saved leak
stale mutation cotangent layout form needs-input-grad undefined non-differentiable alias
deterministic state retain checkpoint hooks dtype autocast fake compile sizes values compositions
structure registration cuda-graph first-call rank repeated batch index-width memory reference
distributed"""
CHEAP = [clause.id for clause in CLAUSES if clause.id not in ("compile", "cuda-graph")]
QUICK = ["derivative", "linear", "form"]


@pytest.fixture(scope="module", autouse=True)
def workers_of_this_process():
    """To be apart is asked for here; that a worker is fresh, of `test_isolate`."""
    _workers.prepare_worker("pullback.conformance._worker", False, (), as_copy=True)
    yield
    _workers._servers.clear()


@pytest.fixture(autouse=True)
def nothing_is_loaded_ahead(monkeypatch):
    """A check of all clauses would have a compiler loaded, for a check that ends before."""
    monkeypatch.setattr("pullback.conformance._isolate.prepare_worker", lambda *_: None)


def test_the_table_has_every_clause_of_the_contract_in_order():
    assert [clause.id for clause in CLAUSES] == CONTRACT.split()


def test_public_names_are_sorted_and_exist():
    names = pullback.conformance.__all__
    # Constants, classes, functions, as ruff sorts them.
    assert names == sorted(names, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
    assert all(hasattr(pullback.conformance, name) for name in names)


def test_a_report_has_one_finding_for_each_clause():
    report = check(Cube, normal(3))
    assert [finding.clause for finding in report] == CONTRACT.split()
    assert report.ok
    assert report.function == "tests.specimens.right.smooth:Cube"
    assert report.seconds > 0
    assert report.environment["torch"] == torch.__version__
    assert Report.from_json(report.to_json()) == report


def test_apply_and_the_class_are_the_same_subject():
    assert check(Cube.apply, normal(3), clauses=QUICK).function.endswith(":Cube")


def test_any_callable_is_checked():
    report = check(torch.sin, normal(3), clauses=QUICK)
    assert report["derivative"].verdict is Verdict.HOLDS
    assert report["form"].verdict is Verdict.SKIPPED
    assert check(composed, normal(2, 3), normal(2, 3), clauses=QUICK).ok


def test_keyword_arguments():
    def scaled(x, *, factor):
        return Product.apply(x, factor)

    report = check(scaled, normal(3), kwargs={"factor": normal(3)}, clauses="structure")
    assert report["structure"].verdict is Verdict.HOLDS


def test_the_same_seed_gives_the_same_report():
    first, second = (check(MissingFactor, normal(3), seed=5, clauses=QUICK) for _ in range(2))
    assert first.findings == second.findings
    other = check(MissingFactor, normal(3), seed=6, clauses=QUICK)
    assert other["derivative"].expected != first["derivative"].expected
    assert other["derivative"].seed == 6


def test_a_broken_report_raises():
    report = check(MissingFactor, normal(3), clauses=QUICK)
    with pytest.raises(BrokenContractError, match="derivative") as caught:
        report.raise_if_broken()
    assert "finite differences" in str(caught.value)
    check(Cube, normal(3), clauses=QUICK).raise_if_broken()


def test_a_failing_finding_names_input_values_seed_and_mend():
    finding = check(Product, normal(3), normal(3, seed=2), clauses=QUICK)["derivative"]
    assert finding.verdict is Verdict.HOLDS
    wrong = check(MissingFactor, normal(3), clauses=QUICK)["derivative"]
    text = str(wrong)
    for part in ("args[0]", wrong.expected, wrong.got, "seed:", wrong.hint, "calculus.py:"):
        assert part in text
    assert str(check(MissingFactor, normal(3), clauses=QUICK)).count("\n") > 5


def test_intents_are_declared_or_inferred():
    assert check(ReverseGradient, normal(3), 1.0, clauses=QUICK).inferred is False
    surrogate = check(StraightThrough, normal(3), clauses=QUICK)
    assert (surrogate.gradient, surrogate.inferred) == ("surrogate", True)
    assert surrogate["derivative"].verdict is Verdict.SKIPPED
    clip = check(ClipUndeclared, normal(3), clauses=QUICK)
    assert (clip.gradient, clip["linear"].verdict) == ("nonlinear", Verdict.BROKEN)
    declared = check(ClipUndeclared, normal(3), clauses=QUICK, gradient="nonlinear")
    assert declared["linear"].verdict is Verdict.SKIPPED
    assert declared.ok
    forced = check(StraightThrough, normal(3), clauses=QUICK, gradient="exact")
    assert forced["derivative"].verdict is Verdict.BROKEN


def test_an_integer_function_has_nothing_to_check():
    report = check(torch.sign, torch.arange(3))
    assert report.ok
    assert report["derivative"].verdict is Verdict.SKIPPED


def test_a_none_for_an_input_that_was_not_asked_for_is_a_constant():
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(w)
            return x * w

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * ctx.saved_tensors[0], None

    x, w = torch.randn(3), torch.randn(3)
    report = check(Scale, x, w, clauses=QUICK)
    assert report.ok
    assert "args[1]" in report["derivative"].detail
    asked = check(Scale, x.requires_grad_(), w.requires_grad_(), clauses=QUICK)
    assert asked["derivative"].verdict is Verdict.BROKEN
    assert asked["derivative"].input == "args[1]"


def test_a_backward_that_answers_nothing_is_wrong_not_constant():
    class Lost(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.exp()

        @staticmethod
        def backward(ctx, cotangent):
            return None

    assert check(Lost, torch.randn(3), clauses=QUICK)["derivative"].verdict is Verdict.BROKEN


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        ((3, normal(2)), {}, ArgumentTypeError),
        ((Cube, normal(2)), {"gradient": "right"}, ArgumentError),
        ((Cube, normal(2)), {"clauses": ["derivatives"]}, ArgumentError),
        ((Cube, normal(2)), {"clauses": []}, ArgumentError),
        ((Cube, normal(2)), {"seed": 1.5}, ArgumentError),
        ((Cube, normal(2)), {"timeout": 0}, ArgumentError),
        ((Cube, normal(2)), {"timeout": float("nan")}, ArgumentError),
        ((Cube, normal(2)), {"kwargs": [1]}, ArgumentTypeError),
        ((Cube,), {}, ArgumentError),
        ((Cube, normal(2), normal(2)), {}, ArgumentError),
    ],
)
def test_bad_input_is_refused_by_name(arguments, options, error):
    with pytest.raises(error):
        check(*arguments, **options)


class Rude(torch.autograd.Function):
    """Changes whatever is global."""

    @staticmethod
    def forward(ctx, x):
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        torch.set_default_dtype(torch.float16)
        warnings.warn("noise", stacklevel=1)
        return x * 2

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * 2


def test_the_process_is_left_as_it_was():
    x = normal(3)
    before = x.detach().clone()
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    grad = torch.is_grad_enabled()
    check(Rude, x)
    assert torch.get_default_dtype() == torch.float32
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])
    assert torch.is_grad_enabled() == grad
    assert torch.equal(x, before)
    assert x.grad is None


def test_inputs_are_never_changed_by_the_checked_code():
    from tests.specimens.wrong.memory import NumpyWritesInput

    x = normal(3)
    before = x.detach().clone()
    check(NumpyWritesInput, x, clauses=CHEAP)
    assert torch.equal(x, before)


@pytest.mark.parametrize(
    "mode", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)]
)
def test_the_modes_around_a_check_do_not_matter(mode):
    with mode():
        x = torch.linspace(-1, 1, 4)
        report = check(Cube, x, clauses=[*QUICK, "double", "dtype", "autocast"])
    assert {finding.verdict for finding in report} == {Verdict.HOLDS}


class WrongSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 5 * x * cotangent


def test_a_fixed_point_does_not_pass_for_an_identity():
    report = check(WrongSquare, torch.ones(3, dtype=torch.float64), clauses=QUICK)
    assert report.gradient == "exact"
    assert report["derivative"].verdict is Verdict.BROKEN


class Ruder(Rude):
    """Changes more of what is global."""

    @staticmethod
    def forward(ctx, x):
        os.environ["PULLBACK_RUDE"] = "1"
        os.chdir("/")
        sys.path.insert(0, "/nowhere")
        torch.use_deterministic_algorithms(True)
        torch.set_float32_matmul_precision("medium")
        torch.set_num_threads(1 + torch.get_num_threads() % 2)
        torch.autograd.set_detect_anomaly(True)
        torch.set_flush_denormal(True)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return x * 2


def denormal():
    return (torch.full((1,), 1e-310, dtype=torch.float64) * 0.5).item()


def test_what_else_is_global_is_left_as_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    generator = torch.Generator().manual_seed(5)
    before = (
        os.getcwd(), dict(os.environ), list(sys.path), torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision(),
        torch.is_anomaly_enabled(), generator.get_state().tolist(), denormal(),
        signal.getsignal(signal.SIGINT),
    )  # fmt: skip

    def drawn(x, source):
        return Ruder.apply(x) + torch.rand(x.shape, dtype=x.dtype, generator=source)

    check(drawn, normal(3), generator, clauses=[*QUICK, "deterministic", "state"])
    assert before == (
        os.getcwd(), dict(os.environ), list(sys.path), torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision(),
        torch.is_anomaly_enabled(), generator.get_state().tolist(), denormal(),
        signal.getsignal(signal.SIGINT),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("unusual", "told"),
    [
        (lambda: torch.eye(3).to_mkldnn(), "torch._mkldnn"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
        (lambda: torch.ones(3, device="meta"), "meta"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*prototype|.*beta")
def test_inputs_without_numbers_are_refused_by_name(unusual, told):
    with pytest.raises(ArgumentError, match=told):
        check(Cube, unusual())
    with pytest.raises(ArgumentError, match=told):
        check(Cube, unusual(), isolate=True)


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 10**30])
def test_a_seed_that_torch_cannot_take_is_refused(seed):
    with pytest.raises(ArgumentError, match="seed"):
        check(Cube, normal(3), seed=seed)


@pytest.mark.parametrize("seed", [2**63 - 1, -(2**63), 2**40, -1])
def test_any_other_seed_is_taken(seed):
    assert check(Cube, normal(3), seed=seed, clauses=QUICK).ok


def test_a_backward_that_never_runs_is_one_finding():
    report = check(NeverRuns, normal(3))
    assert [f.clause for f in report.problems] == ["derivative"]
    assert report["derivative"].verdict is Verdict.CRASHES
    said = {f.detail for f in report if f.verdict is Verdict.SKIPPED}
    assert "Plain backward does not run: see derivative." in said
    assert report["mutation"].verdict is Verdict.HOLDS


def test_an_input_that_is_no_step_is_held_to_its_derivative():
    right = check(RoundTimesWeight, normal(9), normal(9, seed=2), clauses="derivative")
    assert right.gradient == "surrogate"
    assert right["derivative"].input == "args[1]"


def test_a_refusal_of_torch_is_one_also_where_calls_are_heard():
    class Combined(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * 2

    with answering(lambda call, cls, args, kwargs: call(cls, *args, **kwargs)):
        pass  # from now on there is a layer over `apply`
    report = check(Combined, torch.ones(3, dtype=torch.float64), clauses=["vmap", "transforms"])
    assert [finding.verdict for finding in report] == ["lacking", "lacking"]


class Replayed(torch.autograd.Function):
    """Runs forward again in backward, with a module's own weights, as reversible blocks do."""

    factor = 1.0

    @staticmethod
    def forward(ctx, module, x, *weights):
        ctx.module, ctx.weights = module, weights
        ctx.save_for_backward(x)
        with torch.no_grad():
            return module(x)

    @staticmethod
    def backward(ctx, cotangent):
        if not torch.autograd._is_checkpoint_valid():
            raise RuntimeError("not compatible with .grad(), please use .backward()")
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.module(x)
        first, *others = torch.autograd.grad(y, [x, *ctx.weights], cotangent)
        return None, first * Replayed.factor, *others


@pytest.mark.parametrize("right", [True, False])
def test_what_takes_backward_alone_with_the_weights_of_a_module_is_checked(right, monkeypatch):
    monkeypatch.setattr(Replayed, "factor", 1.0 if right else 1.5)
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh())
    x = torch.randn(4, 3, requires_grad=True)
    clauses = ["derivative", "linear", "form", "retain"]
    for isolate in (False, True):
        report = check(Replayed, module, x, *module.parameters(), clauses=clauses, isolate=isolate)
        assert report.ok == (right or isolate)  # there the factor is the right one
        assert report["derivative"].verdict in ("holds", "broken")
    assert all(p.grad is None for p in module.parameters())


def test_the_repro_of_what_takes_backward_alone_uses_it(monkeypatch):
    monkeypatch.setattr(Replayed, "factor", 1.5)
    report = check(Replayed, torch.tanh, torch.randn(3, requires_grad=True), clauses="derivative")
    script = report["derivative"].repro
    assert "torch.autograd.backward(" in script
    assert "finite differences" in printed_by(script)


class Buckets:
    """A module of state: a second call fails."""

    def __init__(self):
        self.called = False


class Stateful(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, state):
        if state.called:
            raise RuntimeError("the buckets are full")
        state.called = True
        return x * 2

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * 2, None


@pytest.mark.parametrize("isolate", [False, True])
def test_a_function_that_cannot_be_called_again_says_so(isolate):
    report = check(
        Stateful, torch.randn(3), Buckets(), clauses=["derivative", "linear"], isolate=isolate
    )
    assert report["derivative"].verdict == "crashes"
    assert "second call with the same arguments fails" in report["derivative"].detail
    assert "the buckets are full" in report["derivative"].detail
    assert report["linear"].verdict == "skipped"


def test_an_error_of_the_checker_accuses_nobody(monkeypatch):
    def broken(probe):
        raise NotImplementedError("no such operator")

    monkeypatch.setattr(_prepare, "_grain", broken)
    report = check(Cube, torch.randn(3), clauses=["derivative", "linear"])
    assert {finding.verdict for finding in report.findings} == {"skipped"}
    assert "no such operator" in report["derivative"].detail


class Packs(torch.autograd.Function):
    """Its output is a tensor of two."""

    @staticmethod
    def forward(ctx, x):
        return TwoTensor(x.clone(), x.clone())

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent.a + cotangent.b


def test_an_output_made_of_tensors_is_no_crash():
    report = check(Packs, torch.randn(3, requires_grad=True), clauses=["derivative", "linear"])
    assert {f.verdict.value for f in report} == {"skipped"}
    assert "output" in report["derivative"].detail


class FailsInForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.no_such_method()

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


@pytest.mark.parametrize("isolate", [False, True])
def test_a_plain_forward_that_fails_is_the_first_finding_and_the_only_one(isolate):
    report = check(FailsInForward, torch.randn(3), isolate=isolate)
    first, *others = report.findings
    assert first.verdict is Verdict.CRASHES
    assert "no_such_method" in first.detail
    assert {finding.verdict for finding in others} == {Verdict.SKIPPED}
    assert not report.ok


def test_a_plain_forward_that_fails_is_said_by_whichever_clause_comes_first():
    chosen = [clause.id for clause in CLAUSES if not clause.gradient]
    report = check(FailsInForward, torch.randn(3), clauses=chosen)
    assert [finding.verdict for finding in report.findings].count(Verdict.CRASHES) == 1
    assert report.findings[0].verdict is Verdict.CRASHES


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("inputs", [(), (torch.ones(2), torch.ones(2))])
def test_inputs_that_do_not_fit_the_signature_are_the_callers_mistake(inputs, isolate):
    with pytest.raises(ArgumentError, match="cannot be called"):
        check(Cube, *inputs, isolate=isolate)


def raises(error):
    raise error


def asserts(error):
    assert error is None


def looks_up(error):
    return {}["strides"]


def asks_python(error):
    return __import__("os").environ["no such variable"]


@pytest.mark.parametrize(
    ("fails", "error", "verdict"),
    [
        (raises, ValueError("contiguous only"), Verdict.LACKING),
        (raises, NotImplementedError("contiguous only"), Verdict.LACKING),
        (raises, IndexError("contiguous only"), Verdict.CRASHES),
        (raises, AssertionError("contiguous only"), Verdict.LACKING),
        (asserts, True, Verdict.LACKING),
        (looks_up, None, Verdict.CRASHES),
        (asks_python, None, Verdict.CRASHES),
    ],
)
def test_what_is_raised_is_a_refusal_where_its_type_says_so(fails, error, verdict):
    class OfContiguous(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, cotangent):
            (x,) = ctx.saved_tensors
            if not x.is_contiguous():
                fails(error)
            return 2 * x * cotangent

    assert check(OfContiguous, normal(3, 4), clauses="layout")["layout"].verdict is verdict


def test_what_cancels_where_rows_are_equal_is_no_difference_between_layouts():
    class LogSoftmaxOfLinear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            soft = (x @ weight.mT).softmax(-1)
            ctx.save_for_backward(x, weight, soft)
            return soft[..., 0].log()

        @staticmethod
        def backward(ctx, cotangent):
            x, weight, soft = ctx.saved_tensors
            error = torch.eye(5, dtype=soft.dtype)[0] - soft
            error = error * cotangent[..., None]
            # Rows in the one order or in the other: where all are equal, their sum is nothing.
            rows = range(5) if weight.is_contiguous() else reversed(range(5))
            return sum(error[..., [k]] * weight[k] for k in rows), error.mT @ x

    report = check(LogSoftmaxOfLinear, normal(3, 4), normal(5, 4), clauses="layout")
    assert report["layout"].verdict is Verdict.HOLDS


def test_a_backward_that_writes_into_its_cotangent_is_told_of_by_that_clause_alone():
    class Over(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y.sin()

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, cotangent):
            x, y = ctx.saved_tensors
            of_y = cotangent * x * y.cos()
            return cotangent.mul_(y.sin()), of_y

    others = ["layout", "needs-input-grad", "state", "retain", "checkpoint", "dtype", "rank"]
    report = check(Over, normal(3, 4), normal(3, 4), clauses=["cotangent", *others])
    assert [item.clause for item in report.problems] == ["cotangent"]
