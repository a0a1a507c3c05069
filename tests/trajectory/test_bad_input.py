"""Bad input is our error, with what was given, before any kernel runs."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import pullback.trajectory.kernels._dispatch as levels
import pullback.trajectory.kernels.states._search as limited
from pullback.errors import ArgumentError, ArgumentTypeError, PullbackError, UnsupportedError
from pullback.trajectory import (
    Limits,
    Motion,
    Preconditioner,
    Spline,
    State,
    backend_used,
    bspline,
    concatenate,
    differentiate,
    integrate,
    minimum_duration,
    minimum_jerk,
    minimum_time,
    quintic,
    resample,
    rest,
    unwrap,
)

X = torch.randn(2, 8, 3, dtype=torch.float64)
START = State(0.0, 0.0)
NAN, INFINITY = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def no_kernel(monkeypatch):
    def ran(*_):
        raise AssertionError("a kernel ran")

    monkeypatch.setattr(levels, "implementation", ran)
    monkeypatch.setattr(limited, "search", ran)


def refused(call, error, *words):
    with pytest.raises(error) as caught:
        call()
    text = str(caught.value)
    assert isinstance(caught.value, PullbackError)
    for word in words:
        assert word in text, text


STEPS = [
    (0.0, ArgumentError, "dt=0.0"),
    (-0.1, ArgumentError, "dt=-0.1"),
    (NAN, ArgumentError, "nan"),
    (INFINITY, ArgumentError, "inf"),
    (torch.tensor(0.0), ArgumentError, "dt=0.0"),
    (torch.tensor([0.1] * 6 + [-1.0]), ArgumentError, "-1.0"),
    (torch.tensor([[0.1] * 7, [0.1] * 6 + [NAN]]), ArgumentError, "nan"),
    (torch.ones(5), ArgumentError, "wrong length"),
    (torch.ones(3, 7), ArgumentError, "wrong length"),
    (torch.ones(7, device="meta"), ArgumentError, "another device"),
    (torch.ones(7, dtype=torch.int64), ArgumentTypeError, "int64"),
    ("fast", ArgumentTypeError, "str"),
    (None, ArgumentTypeError, "NoneType"),
    (True, ArgumentTypeError, "bool"),
]


@pytest.mark.parametrize(("dt", "error", "word"), STEPS)
def test_time_steps(dt, error, word):
    refused(lambda: differentiate(X, dt), error, word)
    refused(lambda: integrate(X[:, 1:], dt, start=START), error, word)


@pytest.mark.parametrize("kind", ["sparse", "nested"])
def test_samples_that_are_not_dense(kind):
    given = X[0].to_sparse()
    if kind == "nested":
        given = torch.nested.nested_tensor([X[0], X[1, :5]], layout=torch.jagged)
    refused(lambda: differentiate(given, 0.1), ArgumentTypeError, "not a dense tensor", "layout")
    refused(lambda: integrate(given, 0.1, start=START), ArgumentTypeError, "not a dense tensor")


def test_time_steps_under_a_transform():
    bad = torch.tensor([0.1, -0.1], dtype=torch.float64)
    refused(lambda: torch.func.vmap(differentiate)(X, bad), ArgumentError, "-0.1")

    def loss(dt):
        return differentiate(X, dt).jerk.sum()

    refused(lambda: torch.func.grad(loss)(bad[1]), ArgumentError, "-0.1")


@pytest.mark.parametrize(("scheme", "least"), [("central", 5), ("backward", 4)])
def test_a_short_horizon_says_the_least(scheme, least):
    short = X[:, : least - 1]
    refused(lambda: differentiate(short, 0.1, scheme=scheme), ArgumentError, f"at least {least}")


DIFFERENTIATE = [
    (lambda: differentiate(X, 0.1, scheme="forward"), ArgumentError, "'forward'"),
    (lambda: differentiate(X[0, 0], 0.1), ArgumentError, "dimensions"),
    (lambda: differentiate(X.int(), 0.1), ArgumentTypeError, "int32"),
    (lambda: differentiate([[0.0]], 0.1), ArgumentTypeError, "list"),
    (lambda: differentiate(X, 0.1, start=X[:, 0]), ArgumentTypeError, "State"),
    (lambda: differentiate(X, 0.1, start=State(torch.zeros(2).double())), ArgumentError, "dof"),
    (lambda: differentiate(X, 0.1, goal=State(torch.zeros(3, 3).double())), ArgumentError, "goal"),
    (lambda: differentiate(X, 0.1, goal=State(torch.zeros(1).double())), ArgumentError, "goal"),
    (lambda: differentiate(X, 0.1, start=State(torch.zeros(3))), ArgumentTypeError, "float32"),
    (
        lambda: differentiate(X, 0.1, start=State(torch.zeros(3, device="meta").double())),
        ArgumentError,
        "another device",
    ),
    (lambda: differentiate(X, 0.1, reference=torch.zeros(4).double()), ArgumentError, "reference"),
    (lambda: differentiate(X, 0.1, backend="gpu"), ArgumentError, "'gpu'"),
]


@pytest.mark.parametrize("case", range(len(DIFFERENTIATE)))
def test_differentiate(case):
    refused(*DIFFERENTIATE[case])


TABLE = State(torch.zeros(4, 3, dtype=torch.float64))
INDICES = [
    (torch.tensor([0, 4]), ArgumentError, "out of range"),
    (torch.tensor([-1, 0]), ArgumentError, "-1"),
    (torch.tensor([0, 1, 2]), ArgumentError, "fit"),
    (torch.tensor([0.0, 1.0]), ArgumentTypeError, "float32"),
    ([0, 1], ArgumentTypeError, "list"),
]


@pytest.mark.parametrize(("index", "error", "word"), INDICES)
def test_start_index(index, error, word):
    refused(lambda: differentiate(X, 0.1, start=TABLE, start_index=index), error, word)


def test_start_index_needs_tables():
    start = State(torch.zeros(3, dtype=torch.float64))
    index = torch.tensor([0, 1])
    refused(lambda: differentiate(X, 0.1, start=start, start_index=index), ArgumentError, "tables")


INTEGRATE = [
    (lambda: integrate(X, 0.1, start=State(0.0)), ArgumentError, "lacks its velocity"),
    (lambda: integrate(X, 0.1, start=State(0.0, 0.0, 0.0)), ArgumentError, "acceleration"),
    (lambda: integrate(X, 0.1, start=START, order="snap"), ArgumentError, "'snap'"),
    (lambda: integrate(X, 0.1, start=START, method="rk2"), ArgumentError, "'rk2'"),
    (lambda: integrate(X[:, :0], 0.1, start=START), ArgumentError, "0 steps"),
    (lambda: integrate(X, 0.1, start=None), ArgumentTypeError, "State"),
]


@pytest.mark.parametrize("case", range(len(INTEGRATE)))
def test_integrate(case):
    refused(*INTEGRATE[case])


POINTS = torch.randn(4, 3, dtype=torch.float64)
ELSEWHERE = torch.ones(4, device="meta", dtype=torch.float64)
CURVES = [
    (lambda: bspline(POINTS, 1.0, degree=2), ArgumentError, "degree"),
    (lambda: bspline(POINTS, 0.0), ArgumentError, "positive"),
    (lambda: bspline(POINTS, NAN), ArgumentError, "positive"),
    (lambda: bspline(POINTS, 1.0, start=State(velocity=torch.zeros(2))), ArgumentError, "joints"),
    (lambda: quintic(POINTS, [0.0, 1.0, 1.0, 2.0]), ArgumentError, "increase"),
    (lambda: quintic(POINTS, [0.0, 1.0]), ArgumentError, "one time for each point"),
    (lambda: quintic(POINTS, ELSEWHERE), ArgumentError, "another device"),
    (lambda: minimum_jerk(POINTS, -1.0), ArgumentError, "positive"),
    (lambda: minimum_jerk(POINTS, ELSEWHERE), ArgumentError, "another device"),
    (lambda: minimum_jerk(POINTS, 1.0, samples=7), ArgumentError, "from 8"),
    (lambda: minimum_jerk(POINTS, 1.0, limits=Limits(jerk=torch.ones(2))), ArgumentError, "jerk"),
    (lambda: minimum_jerk(POINTS, [0.0, 1e-3, 1.0, 2.0]), ArgumentError, "samples=2001"),
    (lambda: minimum_time(POINTS, Limits()), ArgumentError, "Without limits"),
    (lambda: quintic(POINTS.to("meta"), ELSEWHERE), ArgumentTypeError, "lies in memory", "meta"),
    (lambda: minimum_jerk(POINTS.to_sparse(), 1.0), ArgumentTypeError, "torch.sparse_coo"),
    (lambda: minimum_jerk(POINTS, 1e300), ArgumentError, "too long", "1e+300"),
    (lambda: quintic(POINTS, [0.0, 1e-60, 2e-60, 3e-60]), ArgumentError, "too short", "3e-60"),
    (lambda: Limits(velocity=1j), ArgumentTypeError, "1j"),  # pyrefly: ignore
    (lambda: Preconditioner(5, 1e-100), ArgumentError, "1e-100"),
]


@pytest.mark.parametrize("case", range(len(CURVES)))
def test_curves_and_least_motions(case):
    refused(*CURVES[case])


@pytest.mark.parametrize("dt", [1e-300, 1e300])
def test_a_step_that_float32_cannot_hold(dt):
    for given in (dt, torch.full((7,), dt, dtype=torch.float64)):
        call = lambda given=given: differentiate(X.float(), given)  # noqa: E731
        refused(call, ArgumentError, "float32 can hold", str(dt))
    refused(lambda: integrate(X.float(), dt, start=START), ArgumentError, "float32 can hold")


def test_a_backend_that_cannot_run_is_refused():
    refused(
        lambda: backend_used(torch.zeros(1, device="meta"), "cpu"), UnsupportedError, "meta", "CPU"
    )


def test_text_is_no_state():
    refused(lambda: State(velocity="fast"), ArgumentTypeError, "fast")


def test_a_table_may_be_a_list():
    x, index = torch.zeros(2, 6, 2, dtype=torch.float64), torch.tensor([1, 0])
    rows = [[0.0, 1.0], [2.0, 3.0]]
    for wrong in ([0.0, 1.0], [[rows]]):
        refused(
            lambda wrong=wrong: differentiate(
                x, 0.25, start=State(velocity=wrong), start_index=index
            ),
            ArgumentError,
            "are tables",
        )
    for far in ([7, 0], [-1, 0]):
        refused(
            lambda far=far: differentiate(
                x, 0.25, start=State(velocity=rows), start_index=torch.tensor(far)
            ),
            ArgumentError,
            "out of range",
        )


def test_limits_that_do_not_fit_each_other():
    refused(
        lambda: Limits(velocity=(-torch.ones(2), torch.ones(3))), ArgumentError, "do not fit each"
    )
    learned = torch.tensor(0.5, requires_grad=True)
    for wrong in ([learned, learned], [[1.0, True]], ([None], [1.0])):
        refused(lambda wrong=wrong: Limits(velocity=wrong), ArgumentTypeError, "not a number")
    limits = Limits(velocity=object())
    refused(lambda: minimum_jerk(X, 1.0, limits=limits), ArgumentTypeError, "not a number")


@pytest.mark.parametrize("search", [minimum_time, minimum_duration])
def test_no_joint_has_no_least_duration(search):
    refused(
        lambda: search(torch.zeros(3, 0), Limits(velocity=1.0)), ArgumentError, "Without joints"
    )


@pytest.mark.parametrize(("dtype", "short"), [(torch.float32, 1e-14), (torch.float64, 1e-104)])
def test_steps_whose_cube_vanishes(dtype, short):
    x, dt = torch.ones(8, 1, dtype=dtype), torch.tensor(short, dtype=torch.float64)
    for steps in (short, dt, dt.expand(7)):
        refused(
            lambda steps=steps: differentiate(x, steps, start=rest), ArgumentError, "its power -3"
        )


def test_times_that_are_tensors_in_a_list_would_lose_their_gradient():
    learned = torch.tensor(0.5, requires_grad=True)
    curve = Spline(torch.tensor([0.0, 1.0]), torch.ones(1, 2, 1))
    for wrong in ([learned], ["a"], [True], torch.ones(1).to_sparse()):
        refused(lambda wrong=wrong: curve.sample(wrong), ArgumentTypeError, "not a sequence")


def test_knots_that_do_not_increase():
    for knots in ([0.0, 2.0, 1.0], [0.0, NAN, 1.0]):
        curve = Spline(torch.tensor(knots), torch.ones(2, 4, 1))
        refused(lambda curve=curve: curve.sample([0.0, 0.5]), ArgumentError, "knots", "increase")
    curve = Spline([0.0, 1.0], torch.ones(1, 4, 1))  # pyrefly: ignore
    refused(lambda: curve.sample([0.5]), ArgumentTypeError, "knots")


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.complex64])
def test_types_that_are_not_computed_in(kind):
    one, motion = torch.ones(3).to(kind), MOTION
    refused(lambda: bspline(POINTS, one), ArgumentTypeError, "duration")
    refused(lambda: resample(motion, one[0]), ArgumentTypeError, "step")
    refused(lambda: Limits(jerk=one), ArgumentTypeError, "jerk")
    refused(lambda: Limits(jerk=torch.ones(3).to_sparse()), ArgumentTypeError, "jerk")


def test_a_reference_is_a_number_or_lists_of_them():
    for wrong in (True, NAN, [[1.0], [2.0, 3.0]], np.array(["a"])):
        call = lambda wrong=wrong: differentiate(X, 0.1, reference=wrong)  # noqa: E731
        refused(call, ArgumentError, "reference")


def test_resample_while_compiling_is_refused():
    still = torch.zeros(5, 1)
    motion = Motion(still, still, still, still, torch.tensor(0.5))
    compiled = torch.compile(lambda m: resample(m, 0.25).position, backend="eager")
    refused(lambda: compiled(motion), UnsupportedError, "number of samples")


class Named(torch.Tensor):
    """A subclass that changes nothing."""


class Watched(torch.Tensor):
    """One that sees torch's functions called."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("kind", [torch.Tensor, Named, Watched])
def test_values_of_a_subclass_are_checked(kind):
    def made(values):
        return torch.tensor(values, dtype=torch.float64).as_subclass(kind)

    refused(lambda: differentiate(X, made(-0.1)), ArgumentError, "-0.1")
    refused(lambda: minimum_jerk(made([[0.0], [NAN]]), 1.0), ArgumentError, "not all finite")
    refused(lambda: quintic(POINTS, made([0.0, 2.0, 1.0, 3.0])), ArgumentError, "increase")
    refused(lambda: Limits(velocity=made(-1.0)), ArgumentError, "positive")
    far = torch.tensor([0, 4]).as_subclass(kind)
    refused(
        lambda: differentiate(X, 0.1, start=TABLE, start_index=far), ArgumentError, "out of range"
    )
    there, elsewhere = (
        Motion(*[made([[start], [start]])] * 4, torch.tensor(0.5)) for start in (0.0, 5.0)
    )
    refused(lambda: concatenate([there, elsewhere]), ArgumentError, "5 apart")


def test_values_are_checked_while_operations_are_counted():
    with FlopCounterMode(display=False):
        refused(lambda: differentiate(X, torch.tensor(-0.1)), ArgumentError, "-0.1")


HUGE = 10**400
MOTION = Motion(*[torch.zeros(5, 1, dtype=torch.float64)] * 4, 0.5)  # pyrefly: ignore
BEYOND = [
    lambda: resample(MOTION, HUGE),
    lambda: minimum_jerk(POINTS, HUGE),
    lambda: minimum_jerk(POINTS, [0, 1, 2, HUGE]),
    lambda: Limits(velocity=HUGE),
    lambda: Limits(velocity=[1, HUGE, 1]),
    lambda: Limits(position=(-HUGE, 1)),
    lambda: unwrap(POINTS, period=HUGE),
    lambda: differentiate(X, 0.1, start=State(velocity=HUGE)),
    lambda: differentiate(X, 0.1, start=State(velocity=[0, -HUGE, 0])),
    lambda: differentiate(X, Fraction(HUGE)),
    lambda: minimum_jerk(POINTS, 1.0, start=State(velocity=[0, HUGE, 0])),
    lambda: Spline(torch.tensor([0.0, 1.0]), torch.ones(1, 2, 1)).sample([0, HUGE]),
    lambda: Motion(*[POINTS] * 4, 0.1, HUGE),
    lambda: Preconditioner(5, HUGE),
]


@pytest.mark.parametrize("place", range(len(BEYOND)))
def test_numbers_that_no_float_holds(place):
    refused(BEYOND[place], ArgumentError)


@pytest.mark.parametrize("wrong", [None, [], 3, (motion for motion in [MOTION]), [MOTION, None]])
def test_what_is_no_sequence_of_motions(wrong):
    refused(lambda: concatenate(wrong), ArgumentTypeError, "motion")


def test_a_preconditioner_on_no_device():
    refused(lambda: Preconditioner(5, 0.1, device="nope"), ArgumentError, "nope")
