"""The clause `values`: wrong at a special value, for every kind of fault there."""

import math

import pytest
import torch
from tests.conformance.clauses.torch_functions import TORCH_FUNCTIONS
from tests.fuzzing import examples, spread
from tests.specimens._specimen import normal
from tests.specimens.wrong.values import PLACES, fault_at

from pullback.conformance import check
from pullback.conformance.evidence._screen import Run, agrees
from pullback.conformance.evidence._sides import look
from pullback.conformance.inputs._arguments import Arguments
from pullback.conformance.inputs._subject import Subject
from pullback.conformance.probing._prepare import prepare

pytestmark = pytest.mark.usefixtures("no_edits")

# What torch 2.13 itself gets wrong, found by the clause; each is true by hand.
FAULTS_OF_TORCH = {
    "atan2": "NaN for the second argument where the first is infinite, where it is 0",
    "xlogy": "NaN for y at (0, 0), where it is 0 for every y",
    "norm.3": "NaN in float16 at 4096, where the gradient is below 1",
    "matrix_exp": "infinite in bfloat16 near zero, where the gradient is that of the sum",
}
# At a kink nothing is wrong that lies between the slopes on its sides, but NaN is no number.
UNTIDY_IN_TORCH = {"hypot": "NaN at (0, 0), where both one-sided slopes are finite"}
if torch.__version__ >= "2.15":
    FAULTS_OF_TORCH["scaled_dot_product_attention"] = "off by 1e-9 where softmax saturates, float64"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fault", ["zero", "nan", "doubled", "inf"])
@pytest.mark.parametrize("place", PLACES)
def test_a_fault_at_a_special_value_is_found(place, fault):
    report = check(fault_at(place, fault), normal(3, 4), clauses=["derivative", "values"])
    assert report["derivative"].verdict == "holds"
    assert report["values"].verdict == "broken", f"seed {report.seed}\n{report}"


EVEN = {
    "cos": (torch.cos, lambda x: -x.sin()),
    "cosh": (torch.cosh, torch.sinh),
    "one more than the square": (lambda x: 1 + x * x, lambda x: 2 * x),
    "a thousand more than the square": (lambda x: 1e3 + x * x, lambda x: 2 * x),
    "a thousand more than a ramp": (lambda x: 1e3 + x.relu(), lambda x: x.gt(0).to(x.dtype)),
    "a constant": (lambda x: 1 + 0 * x, lambda x: 0 * x),
    "sinc": (torch.sinc, lambda x: torch.func.vjp(torch.sinc, x)[1](torch.ones_like(x))[0]),
}


def _at_zero(name, fault):
    forward, slope = EVEN[name]

    class Even(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx, cotangent):
            (x,) = ctx.saved_tensors
            return cotangent * (slope(x) if fault is None else slope(x).where(x != 0, fault))

    return Even


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(examples(1)))
@pytest.mark.parametrize("fault", [math.nan, math.inf, 7.0, -0.01])
@pytest.mark.parametrize("name", EVEN)
def test_a_fault_where_the_slope_is_zero_and_the_output_is_not_is_found(name, fault, seed):
    x = normal(4, seed=seed) + 2
    finding = check(_at_zero(name, fault), x, clauses="values", seed=seed)["values"]
    at_a_kink = "ramp" in name and not math.isfinite(fault)
    assert finding.verdict == ("untidy" if at_a_kink else "broken"), f"seed {seed}\n{finding}"


def test_a_fault_at_a_square_matrix_of_zeros_is_found():
    report = check(_at_zero("cos", 7.0), normal(3, 3) + 2, clauses="values")
    assert report["values"].verdict == "broken"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", sorted(EVEN)[:-1])  # which cancels, for small numbers
def test_a_slope_of_zero_where_the_output_is_not_zero_is_right(name, seed):
    x = normal(4, seed=seed) + 2
    assert check(_at_zero(name, None), x, clauses="values", seed=seed)["values"].verdict == "holds"


RIGHT = [name for name in TORCH_FUNCTIONS if name not in FAULTS_OF_TORCH]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", spread(RIGHT, 5))
def test_torchs_own_functions_are_not_flagged(name):
    function, inputs = TORCH_FUNCTIONS[name]
    report = check(function, *inputs(), clauses=["sizes", "values"])
    assert report.ok, f"{name}, seed {report.seed}\n{report}"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("outer", [torch.sin, lambda x: (torch.sin(x) / 3).exp()])
@pytest.mark.parametrize("seed", [0, 2, 5])
def test_what_swings_within_the_steps_of_differences_is_not_flagged(outer, seed):
    """At large numbers the product has one slope, and the sine of a square another, unseen."""
    report = check(
        lambda x, y: outer(x.square()) + x * y, normal(1, seed=seed), normal(1, seed=seed + 1),
        seed=seed, clauses="values",
    )  # fmt: skip
    assert report["values"].verdict == "holds", f"seed {seed}\n{report}"


@pytest.mark.parametrize("name", [*FAULTS_OF_TORCH, *UNTIDY_IN_TORCH])
def test_what_torch_gets_wrong_is_said(name):
    function, inputs = TORCH_FUNCTIONS[name]
    found = check(function, *inputs(), clauses="values")["values"].verdict
    assert found == ("untidy" if name in UNTIDY_IN_TORCH else "broken")


@pytest.mark.parametrize(
    ("function", "side", "slope"),
    [
        (abs, 1.0, 1.0),
        (abs, -1.0, -1.0),
        (lambda t: max(t, 0.0), -1.0, 0.0),
        (lambda t: t * t + 3 * t, 1.0, 3.0),
        (lambda t: abs(t) ** 1.5, 1.0, 0.0),
        (lambda t: abs(t) ** 0.5, 1.0, None),
        (lambda t: t * math.log(abs(t)) if t else 0.0, 1.0, None),
        (lambda t: 1.0 if t > 0 else 0.0, 1.0, None),
        (lambda t: t * abs(t) / (abs(t) + 1e-12), 1.0, None),
        (math.cos, 1.0, 0.0),
        (lambda t: 1e3 + t * t, -1.0, 0.0),
        (lambda t: 1e6, 1.0, 0.0),
        (lambda t: 1 + abs(t), -1.0, -1.0),
        (lambda t: 1 + abs(t) ** 0.5, 1.0, None),
        (lambda t: 1 + t * math.log(abs(t)) if t else 1.0, 1.0, None),
        (lambda t: 1 + t * t + math.tanh(t * 1e9) / 1e9, 1.0, None),
        (lambda t: 1e18 + t, 1.0, 1.0),
        (lambda t: math.acosh(1 + 2 * t * t), 1.0, None),
    ],
)
def test_one_sided_differences_tell_a_limit_from_none(function, side, slope):
    found = look(lambda t: torch.tensor([function(t)], dtype=torch.float64), side, 0.1)
    assert bool(found.told) == (slope is not None)
    assert slope is None or abs(float(found.slope) - slope) < 1e-6 + float(found.error)


def test_what_is_wrong_everywhere_is_left_to_derivative():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, cotangent):
            return 2 * ctx.saved_tensors[0].cos() * cotangent

    assert check(Wrong, normal(4), clauses="values")["values"].verdict == "skipped"


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.saved_tensors[0].cos()


def test_no_other_value_is_tried_where_calls_are_slow(monkeypatch):
    assert check(Sine, normal(3, 4), clauses="values")["values"].verdict == "holds"
    monkeypatch.setattr("pullback.conformance.clauses.values._SECONDS", 0.0)
    finding = check(Sine, normal(3, 4), clauses="values")["values"]
    assert "calls are slow" in finding.detail, finding


class RealFft(torch.autograd.Function):
    """Its gradient is that of both parts of a complex cotangent."""

    @staticmethod
    def forward(ctx, x):
        ctx.size = x.shape[-1]
        return torch.fft.rfft(x)

    @staticmethod
    def backward(ctx, cotangent):
        whole = torch.nn.functional.pad(cotangent, (0, ctx.size - cotangent.shape[-1]))
        return torch.fft.ifft(whole, norm="forward").real


def test_complex_cotangents_stay_complex_in_another_precision():
    report = check(RealFft, torch.randn(3, 8, dtype=torch.float64), clauses="values")
    assert report["values"].verdict == "holds", report


class SquareAndSize(torch.autograd.Function):
    """Smooth beside a kink."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x + x, x.abs()

    @staticmethod
    def backward(ctx, *cotangents):
        (x,) = ctx.saved_tensors
        return cotangents[0] * (2 * x + 1) + cotangents[1] * x.sign()


def test_an_entry_is_left_alone_only_where_no_output_has_a_kink():
    zeros = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    probe = prepare(Subject.of(SquareAndSize), Arguments.of((zeros,)), 0)
    run, step = Run.of(probe), [torch.ones(2, dtype=torch.float64)]
    assert agrees(probe, run, step)
    assert not agrees(probe, run, step, every=True)


class Triangular(torch.autograd.Function):
    """QR, whose factor has a diagonal of length |z| and the sign of the real part."""

    @staticmethod
    def forward(ctx, z):
        q, r = torch.linalg.qr(z)
        ctx.save_for_backward(q, r)
        return q, r

    @staticmethod
    def backward(ctx, by_q, by_r):
        q, r = ctx.saved_tensors
        diagonal = r.diagonal()
        r = torch.diagonal_scatter(r, torch.where(diagonal == 0, 1.0, diagonal))
        m = r @ by_r.mH - by_q.mH @ q
        low = m.tril(-1)
        t = by_q + q @ (low + low.mH + torch.diag(m.diagonal().real))
        return torch.linalg.solve_triangular(r.mH, t, upper=False, left=False)


def test_what_is_linear_along_each_complex_line_alone_has_no_gradient_there():
    z = torch.randn(2, 2, dtype=torch.complex128, generator=torch.Generator().manual_seed(1))
    report = check(Triangular, z.requires_grad_(), clauses="derivative,values")
    assert [str(finding) for finding in report.problems] == []


class Adapting(torch.autograd.Function):
    """Neurons over time: spikes of a difference of large numbers, where the surrogate is steep."""

    @staticmethod
    def forward(ctx, current, kappa):
        v, a, s = (torch.zeros_like(current[0]) for _ in range(3))
        gaps, adapted, spikes = [], [], []
        for now in current:
            v = 0.5 * v + now - s
            a = 0.9 * a + s
            gaps.append(v - 1.0 - kappa * a)
            adapted.append(a)
            s = (gaps[-1] > 0).to(v.dtype)
            spikes.append(s)
        ctx.save_for_backward(kappa, torch.stack(gaps), torch.stack(adapted))
        return torch.stack(spikes)

    @staticmethod
    def backward(ctx, g):
        kappa, gaps, adapted = ctx.saved_tensors
        by_current, by_kappa = torch.empty_like(g), torch.zeros_like(kappa)
        by_v, by_a, by_s = (torch.zeros_like(g[0]) for _ in range(3))
        for t in reversed(range(len(g))):
            by_gap = (g[t] + by_s) * 5.0 / (1.0 + (5.0 * gaps[t].abs())).square()
            by_v, by_a = by_v + by_gap, by_a - kappa * by_gap
            by_kappa -= (adapted[t] * by_gap).sum(0)
            by_current[t] = by_v
            by_s, by_v, by_a = by_a - by_v, 0.5 * by_v, 0.9 * by_a
        return by_current, by_kappa


@pytest.mark.parametrize("seed", range(3))
def test_a_surrogate_of_a_difference_is_not_held_to_digits_that_rounding_has_taken(seed):
    current = 2 * torch.rand(12, 4, 8, generator=torch.Generator().manual_seed(seed))
    kappa = torch.rand(8, generator=torch.Generator().manual_seed(seed)) / 2
    report = check(
        Adapting, current.double().requires_grad_(), kappa.double().requires_grad_(),
        gradient="surrogate", clauses="values",
    )  # fmt: skip
    assert report.ok, str(report)
