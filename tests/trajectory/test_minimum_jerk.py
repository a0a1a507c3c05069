"""Least motions: convergence, consistency, optimality, limits, derivatives, bad input."""

import itertools
import re

import numpy as np
import pytest
import scipy.interpolate
import scipy.optimize
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzzing import examples, spread

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.trajectory import (
    Limits,
    Motion,
    State,
    free,
    hold,
    minimum_acceleration,
    minimum_jerk,
    quintic,
    rest,
)

pytestmark = pytest.mark.sampled(3)

TIMES = [0.0, 0.62, 1.34, 2.0]
PARTS = ("position", "velocity", "acceleration", "jerk")
EVERY = Limits(velocity=1.6, acceleration=5.0, jerk=60.0)


def points(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def double(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_it_converges_to_the_quintic_with_the_square_of_the_step() -> None:
    through = points(4, 7)
    curve = quintic(through, TIMES)
    sizes = [64, 128, 256, 512]
    errors: dict[str, list[float]] = {part: [] for part in PARTS[:3]}
    for samples in sizes:
        motion = minimum_jerk(through, TIMES, samples=samples)
        exact = curve.sample(motion.times.clamp(max=2.0))
        for part, found in errors.items():
            found.append(float((getattr(motion, part) - getattr(exact, part)).abs().max()))
    for part, found in errors.items():
        slope = -np.polyfit(np.log(sizes), np.log(found), 1)[0]
        assert slope >= 1.9, (part, slope, found)


def test_many_samples_keep_converging() -> None:
    through = points(4, 1)
    errors = []
    for samples in (1024, 2048):
        motion = minimum_jerk(through, TIMES, samples=samples)
        exact = quintic(through, TIMES).sample(motion.times.clamp(max=2.0))
        errors.append(float((motion.position - exact.position).abs().max()))
    # Differences of coefficients would have lost the solution here: the error would grow 30 times.
    assert errors[1] < 0.35 * errors[0]
    assert errors[0] < 1e-4


@pytest.mark.parametrize("samples", [1025, 2000, 2048])
def test_many_samples_do_not_bend_what_a_free_end_leaves_straight(samples: int) -> None:
    # A parabola; its acceleration of 1.4 was 0.2 off.
    through = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    motion = minimum_jerk(through, 1.0, start=State(velocity=0.3), goal=free, samples=samples)
    assert (motion.acceleration - 1.4).abs().max() < 1e-4


def consistent(motion: Motion) -> None:
    """Stepwise constant jerk, integrated exactly, gives the other parts."""
    dt = motion.dt if not motion.dt.dim() else motion.dt[..., :1, None]
    p, v, a, j = (getattr(motion, part)[..., :-1, :] for part in PARTS)
    options = {"rtol": 1e-9, "atol": 1e-9}
    found = motion.position[..., 1:, :]
    torch.testing.assert_close(p + v * dt + a * dt**2 / 2 + j * dt**3 / 6, found, **options)
    torch.testing.assert_close(v + a * dt + j * dt**2 / 2, motion.velocity[..., 1:, :], **options)
    torch.testing.assert_close(a + j * dt, motion.acceleration[..., 1:, :], **options)


ENDS = [
    (rest, rest),
    (hold, hold),
    (free, free),
    (State(velocity=0.5), State(acceleration=-1.0)),
    (State(velocity=points(2, seed=3), acceleration=0.3), State(velocity=-0.4, jerk=2.0)),
]


@pytest.mark.parametrize("minimum", [minimum_jerk, minimum_acceleration])
@pytest.mark.parametrize(("start", "goal"), ENDS)
def test_points_ends_and_dynamics(minimum: object, start: State, goal: State) -> None:
    assert callable(minimum)
    times = [0.0, 0.5, 1.25, 2.0]  # on samples 0, 10, 25, 40
    motion = minimum(points(4, 2), times, start=start, goal=goal, samples=41)
    consistent(motion)
    torch.testing.assert_close(motion.position[[0, 10, 25, 40]], points(4, 2))
    for state, place in ((start, 0), (goal, -1)):
        for part in state.given:
            expected = torch.as_tensor(getattr(state, part), dtype=torch.float64).expand(2)
            torch.testing.assert_close(getattr(motion, part)[place], expected, rtol=1e-9, atol=1e-9)


def test_points_between_samples_are_met() -> None:
    times = [0.0, 0.513, 1.277, 2.0]
    motion = minimum_jerk(points(4, 2), times, samples=41)
    step = float(motion.dt)
    for time, point in zip(times, points(4, 2), strict=True):
        k = min(int(time / step), 39)
        s = time - k * step
        p, v, a, j = (getattr(motion, part)[k] for part in PARTS)
        torch.testing.assert_close(p + v * s + a * s**2 / 2 + j * s**3 / 6, point)


def test_least_acceleration_is_the_cubic_spline() -> None:
    times, through = np.array([0.0, 0.5, 1.25, 2.0]), points(4, 2)
    oracle = scipy.interpolate.CubicSpline(times, through.numpy(), bc_type="clamped")
    motion = minimum_acceleration(through, torch.from_numpy(times), samples=41)
    expected = torch.from_numpy(oracle(motion.times.numpy()))
    torch.testing.assert_close(motion.position, expected, rtol=1e-10, atol=1e-10)
    bend = torch.from_numpy(oracle(motion.times.numpy(), 2))
    torch.testing.assert_close(motion.acceleration, bend, rtol=1e-8, atol=1e-8)


def dense_oracle(limits: Limits | None, samples: int) -> tuple[np.ndarray, float]:
    """The same problem in the jerks alone, dense, by SLSQP: 0 to 1 in a second, rest to rest."""
    steps, dt = samples - 1, 1 / (samples - 1)
    rows: dict[str, np.ndarray] = {part: np.zeros((samples, steps)) for part in PARTS[:3]}
    for k in range(steps):
        for i in range(k + 1, samples):
            late = (i - k - 1) * dt
            rows["acceleration"][i, k] = dt
            rows["velocity"][i, k] = dt * late + dt**2 / 2
            rows["position"][i, k] = dt * late**2 / 2 + dt**2 * late / 2 + dt**3 / 6
    rows["jerk"] = np.eye(steps)
    ends = np.stack([rows[part][-1] for part in PARTS[:3]])
    constraints = [{"type": "eq", "fun": lambda j: ends @ j - [1, 0, 0], "jac": lambda j: ends}]
    for kind in limits.given if limits is not None else ():
        form, limit = rows[kind], getattr(limits, kind)
        if kind == "velocity":  # the middle control point of each step bounds it at every instant
            form = form[:-1] + dt / 2 * rows["acceleration"][:-1]
        both = np.concatenate([-form, form]) / limit
        constraints.append(
            {"type": "ineq", "fun": lambda j, b=both: 1 + b @ j, "jac": lambda j, b=both: b}
        )
    found = scipy.optimize.minimize(
        lambda j: 1e-3 * j @ j,
        np.zeros(steps),
        jac=lambda j: 2e-3 * j,
        constraints=constraints,
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert found.success, found.message
    return rows["position"] @ found.x, float(found.x @ found.x)


CASES = [
    None,
    Limits(velocity=1.5),
    Limits(acceleration=4.6),
    Limits(jerk=45.0),
    Limits(velocity=1.6, acceleration=6.0, jerk=80.0),
]


@pytest.mark.parametrize("limits", CASES)
def test_it_is_the_least_of_a_dense_solver(limits: Limits | None) -> None:
    position, energy = dense_oracle(limits, 24)
    motion = minimum_jerk(double([[0.0], [1.0]]), 1.0, limits=limits, samples=24)
    assert float(motion.jerk[:-1].square().sum()) == pytest.approx(energy, rel=1e-5)
    np.testing.assert_allclose(motion.position[:, 0].numpy(), position, atol=2e-5)


@settings(max_examples=examples(10), deadline=None)
@given(
    seed=st.integers(0, 2**31),
    samples=st.integers(20, 90),
    kinds=st.sampled_from([("velocity",), ("acceleration",), ("jerk",), PARTS[1:]]),
    order=st.sampled_from([2, 3]),
    tight=st.floats(0.75, 0.97),
)
def test_limits_hold_or_are_refused(
    seed: int, samples: int, kinds: tuple[str, ...], order: int, tight: float
) -> None:
    minimum = minimum_jerk if order == 3 else minimum_acceleration
    through = points(3, 2, seed=seed)
    plain = minimum(through, [0.0, 0.8, 2.0], samples=samples)
    peaks = {kind: getattr(plain, kind).abs().amax(0) * tight for kind in kinds}
    limits = Limits(**peaks)
    motion = None
    try:
        motion = minimum(through, [0.0, 0.8, 2.0], limits=limits, samples=samples)
    except ArgumentError as error:
        message = str(error)
    if motion is None:
        assert "cannot be met" in message
        assert "duration of" in message or "would not do" in message
        return
    consistent(motion)
    for kind, limit in peaks.items():
        assert (getattr(motion, kind).abs() <= limit).all()
    assert cost(motion, order) >= (1 - 1e-6) * cost(plain, order)
    torch.testing.assert_close(motion.position[[0, -1]], through[[0, -1]])


def cost(motion: Motion, order: int) -> torch.Tensor:
    """What is least, per step."""
    if order == 3:
        return motion.jerk[:-1].square().sum()
    a, b = motion.acceleration[:-1], motion.acceleration[1:]
    return (a * a + a * b + b * b).sum()


def test_limits_that_are_kept_already_change_nothing() -> None:
    through = points(4, 3)
    plain = minimum_jerk(through, TIMES)
    wide = Limits(velocity=100.0, acceleration=plain.acceleration.abs().amax(0) * 1.01)
    torch.testing.assert_close(
        minimum_jerk(through, TIMES, limits=wide).position, plain.position, rtol=0, atol=0
    )


def test_each_joint_and_trajectory_has_its_own_limits() -> None:
    through = points(3, 3, 2)
    plain = minimum_jerk(through, 2.0, samples=64)
    limit = plain.velocity.abs().amax(1) * double([[0.9, 2.0], [2.0, 0.9], [0.9, 0.9]])
    motion = minimum_jerk(through, 2.0, limits=Limits(velocity=limit), samples=64)
    for i, j in itertools.product(range(3), range(2)):
        single = minimum_jerk(
            through[i, :, j : j + 1], 2.0, limits=Limits(velocity=limit[i, j]), samples=64
        )
        torch.testing.assert_close(
            motion.position[i, :, j], single.position[:, 0], rtol=1e-6, atol=1e-7
        )
    torch.testing.assert_close(motion.position[0, :, 1], plain.position[0, :, 1])


def cruise(velocity: float, acceleration: float, jerk: float) -> float:
    """The least time from 0 to 1 at rest, by phases of full jerk, acceleration and velocity."""
    return 1 / velocity + velocity / acceleration + acceleration / jerk


def test_limits_that_cannot_be_met_are_named_with_the_least_duration() -> None:
    through = double([[0.0], [1.0]])
    least = cruise(1.5, 5.0, 45.0)
    limits = Limits(velocity=1.5, acceleration=5.0, jerk=45.0)
    minimum_jerk(through, 1.02 * least, limits=limits, samples=200)
    with pytest.raises(ArgumentError) as raised:
        minimum_jerk(through, 0.97 * least, limits=limits, samples=200)
    text = str(raised.value)
    assert "limits on velocity and acceleration and jerk cannot be met" in text
    found = float(re.findall(r"duration of (\S+) s", text)[0])
    assert least * 0.99 < found < least * 1.02


@pytest.mark.parametrize("kind", ["velocity", "acceleration", "jerk"])
def test_one_limit_is_named_alone(kind: str) -> None:
    # The least times are 1/v, 2 sqrt(1/a) and (32/j)^(1/3): 1.25 s each.
    tight = {"velocity": 0.8, "acceleration": 2.56, "jerk": 16.384}
    wide = {"velocity": 50.0, "acceleration": 500.0, "jerk": 5000.0}
    limits = Limits(**{**wide, kind: tight[kind]})
    with pytest.raises(ArgumentError, match=f"The limit on {kind} cannot be met") as raised:
        minimum_jerk(double([[0.0], [1.0]]), 1.0, limits=limits, samples=200)
    found = float(re.findall(r"duration of (\S+) s", str(raised.value))[0])
    assert found == pytest.approx(1.25, rel=0.03)


def test_the_first_joint_that_cannot_is_named() -> None:
    through = double([[0.0, 0.0], [0.1, 1.0]]).expand(3, 2, 2)
    with pytest.raises(ArgumentError, match=r"3 of 6 joints.*joint 1 of trajectory \[0\]"):
        minimum_jerk(through, 1.0, limits=Limits(velocity=0.5), samples=50)


def test_an_end_beyond_its_limit_is_refused() -> None:
    with pytest.raises(ArgumentError, match="velocity of the goal exceeds its limit"):
        minimum_jerk(points(2, 1), 1.0, goal=State(velocity=3.0), limits=Limits(velocity=2.0))


LIMITED = [None, Limits(velocity=1.7, acceleration=7.0), Limits(jerk=22.0)]
THROUGH = [[[0.0], [0.7], [1.8]], [[0.2], [1.0], [-0.1]]]


@pytest.mark.parametrize(
    ("minimum", "limits"),
    # In `make test` without limits, on the jerk, and for least acceleration.
    spread(
        [
            (minimum_jerk, LIMITED[0]),
            (minimum_jerk, LIMITED[1]),
            (minimum_jerk, LIMITED[2]),
            (minimum_acceleration, LIMITED[0]),
            (minimum_acceleration, LIMITED[2]),
        ],
        2,
    ),
)
def test_every_derivative(minimum: object, limits: Limits | None) -> None:
    assert callable(minimum)
    through = double(THROUGH).requires_grad_()
    times = double([0.0, 0.9, 2.0]).requires_grad_()
    velocity = double([0.3]).requires_grad_()
    factor = double(1.0).requires_grad_()

    def run(
        through: torch.Tensor, times: torch.Tensor, velocity: torch.Tensor, factor: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        scaled = limits and Limits(**{k: getattr(limits, k) * factor for k in limits.given})
        start = State(velocity=velocity, acceleration=0.0)
        motion = minimum(through, times, start=start, limits=scaled, samples=12)
        return motion.position[:, ::3], motion.velocity[:, ::3], motion.acceleration[:, ::3]

    def position(*inputs: torch.Tensor) -> torch.Tensor:
        return run(*inputs)[0]

    inputs = (through, times, velocity, factor)
    fast = {"fast_mode": True}
    assert torch.autograd.gradcheck(run, inputs, atol=1e-6, check_forward_ad=True, **fast)
    assert torch.autograd.gradgradcheck(position, inputs, eps=1e-4, atol=1e-4, rtol=1e-4, **fast)


@pytest.mark.parametrize("kinds", [("acceleration",), ("velocity", "acceleration")])
def test_the_second_derivative_is_there_where_rows_are_stiff(kinds: tuple[str, ...]) -> None:
    # Rounding that differs from one run to the next is 1e-12 there, which the engine refuses.
    through = double([[0.0, 0.2], [1.0, 0.5], [0.3, 1.0]]).requires_grad_()
    plain = minimum_jerk(through.detach(), 2.0, samples=128)
    peaks = {kind: getattr(plain, kind).abs().amax(-2) * 0.9 for kind in kinds}
    motion = minimum_jerk(through, 2.0, limits=Limits(**peaks), samples=128)
    (slope,) = torch.autograd.grad(motion.position.square().sum(), through, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.square().sum(), through)
    assert torch.isfinite(curvature).all()


def test_limits_do_bind_in_the_cases_above() -> None:
    for limits in LIMITED[1:]:
        assert limits is not None
        plain = minimum_jerk(double(THROUGH), [0.0, 0.9, 2.0], samples=14)
        kept = minimum_jerk(double(THROUGH), [0.0, 0.9, 2.0], limits=limits, samples=14)
        assert (plain.position - kept.position).abs().max() > 1e-3


@pytest.mark.parametrize("limits", spread(LIMITED, 2))
def test_the_duration_is_differentiated(limits: Limits | None) -> None:
    duration = double([2.0, 2.2]).requires_grad_()

    def run(duration: torch.Tensor) -> torch.Tensor:
        return minimum_jerk(double(THROUGH), duration=duration, limits=limits, samples=12).velocity[
            :, ::3
        ]

    fast = {"fast_mode": True}
    assert torch.autograd.gradcheck(run, (duration,), atol=1e-5, **fast)
    options = {"eps": 1e-4, "atol": 1e-4, "rtol": 1e-4, **fast}
    assert torch.autograd.gradgradcheck(run, (duration,), **options)


@pytest.mark.parametrize("limits", spread(LIMITED, 2))
def test_vmap_and_func_equal_a_loop(limits: Limits | None) -> None:
    through = double(THROUGH)
    times = double([[0.0, 0.9, 2.0], [0.0, 1.1, 2.1]])

    def run(through: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        return minimum_jerk(through, times, limits=limits, samples=14).velocity.square().sum()

    both = torch.func.vmap(torch.func.grad(run, argnums=(0, 1)))(through, times)
    for i in range(2):
        one, other = through[i].clone().requires_grad_(), times[i].clone().requires_grad_()
        expected = torch.autograd.grad(run(one, other), (one, other))
        torch.testing.assert_close((both[0][i], both[1][i]), expected, rtol=1e-6, atol=1e-6)
    jacobian = torch.func.jacfwd(run)(through[0], times[0])
    torch.testing.assert_close(jacobian, both[0][0], rtol=1e-6, atol=1e-6)


@pytest.mark.slow  # six seconds
def test_it_compiles_whole() -> None:
    through = double(THROUGH).requires_grad_()
    times = double([0.0, 0.9, 2.0]).requires_grad_()
    limits = Limits(velocity=1.7)

    def run(through: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        return minimum_jerk(through, times, limits=limits, samples=14).velocity.square().sum()

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    expected = torch.autograd.grad(run(through, times), (through, times))
    found = torch.autograd.grad(compiled(through, times), (through, times))
    torch.testing.assert_close(found, expected)


def test_under_vmap_impossible_limits_are_refused_too() -> None:
    def run(through: torch.Tensor) -> torch.Tensor:
        return minimum_jerk(through, 1.0, limits=Limits(velocity=0.5), samples=20).position

    with pytest.raises(ArgumentError, match="limits on velocity cannot be met"):
        torch.func.vmap(run)(double(THROUGH))


def test_float32_is_computed_in_float64() -> None:
    # 1000 rad away: relative to the first point, no digits are lost to the distance.
    through = (points(4, 2) + 1000).float()
    narrow = minimum_jerk(through, TIMES, limits=Limits(jerk=2000.0))
    wide = minimum_jerk(through.double(), TIMES, limits=Limits(jerk=2000.0))
    assert narrow.position.dtype == narrow.dt.dtype == torch.float32
    for part in PARTS:
        torch.testing.assert_close(
            getattr(narrow, part), getattr(wide, part).float(), rtol=0, atol=0
        )


def test_batches_broadcast() -> None:
    through, times = points(5, 4, 2), double(TIMES)
    single = minimum_jerk(through[3], times, samples=33)
    batch = minimum_jerk(through, times * double([[1.0], [2.0], [3.0], [1.0], [4.0]]), samples=33)
    torch.testing.assert_close(batch.position[3], single.position)
    assert batch.dt.shape == (5, 32)
    empty = minimum_jerk(through[:0], times, samples=33)
    assert empty.position.shape == (0, 33, 2)


def test_bad_input() -> None:
    through = points(3, 2)
    for times in ([0.0, 1.0], [0.0, 1.0, 1.0], [1.0, 0.0, 2.0], [0.0, 1.0, float("inf")]):
        with pytest.raises(ArgumentError, match=r"one time for each|increase strictly"):
            minimum_jerk(through, times)
    for duration in (0.0, -1.0, float("nan")):
        with pytest.raises(ArgumentError, match="duration must be positive"):
            minimum_jerk(through, duration)
    with pytest.raises(ArgumentError, match="Either the times"):
        minimum_jerk(through)
    with pytest.raises(ArgumentError, match="Either the times"):
        minimum_jerk(through, 1.0, duration=1.0)
    for samples in (6, 0, -3, 4000, 64.0, True):
        with pytest.raises(ArgumentError, match="number of samples is out of range"):
            minimum_jerk(through, 1.0, samples=samples)
    with pytest.raises(ArgumentError, match="samples=1001 or more"):
        minimum_jerk(through, [0.0, 0.001, 1.0])
    minimum_jerk(through, [0.0, 0.001, 1.0], samples=1001)
    with pytest.raises(ArgumentError, match="position of the start is given twice"):
        minimum_jerk(through, 1.0, start=State(position=0.0))
    with pytest.raises(ArgumentError, match="too little to determine"):
        minimum_jerk(through[:2], 1.0, start=free, goal=free)
    with pytest.raises(ArgumentError, match="another number of joints"):
        minimum_jerk(through, 1.0, start=State(velocity=points(3)))
    with pytest.raises(ArgumentError, match="limit on jerk has another number of joints"):
        minimum_jerk(through, 1.0, limits=Limits(jerk=points(3).abs()))
    with pytest.raises(ArgumentError, match="batch of the limit"):
        minimum_jerk(points(2, 3, 2), 1.0, limits=Limits(jerk=points(3, 2).abs()))
    with pytest.raises(ArgumentTypeError, match="not a Limits"):
        minimum_jerk(through, 1.0, limits=2.0)
    with pytest.raises(ArgumentError, match="too few points"):
        minimum_jerk(through[:1], 1.0)
    with pytest.raises(ArgumentError, match="not all finite"):
        minimum_jerk(through * float("nan"), 1.0)
    with pytest.raises(ArgumentError, match="another device"):
        minimum_jerk(through, torch.empty(3, device="meta"))
