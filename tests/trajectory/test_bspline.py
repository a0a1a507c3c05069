"""B-splines: scipy as the oracle, end states, derivatives in everything, bad input."""

import numpy as np
import pytest
import torch
from scipy.interpolate import BSpline

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.trajectory import State, bspline, free, hold, rest

PARTS = ("position", "velocity", "acceleration", "jerk")


def points(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("degree", [3, 4, 5])
@pytest.mark.parametrize("extra", [1, 2, 7])
def test_it_is_scipys(degree: int, extra: int) -> None:
    count = degree + extra
    control, duration = points(count, 3), 1.7
    knots = np.r_[np.zeros(degree), np.linspace(0, duration, extra + 1), np.full(degree, duration)]
    oracle = BSpline(knots, control.numpy(), degree)
    times = torch.linspace(0, duration, 41, dtype=torch.float64)[:-1] + 1e-3
    motion = bspline(control, duration, degree=degree).sample(times)
    for order, part in enumerate(PARTS):
        expected = torch.from_numpy(oracle.derivative(order)(times.numpy()))
        torch.testing.assert_close(getattr(motion, part), expected, rtol=1e-10, atol=1e-10)


STATES = [
    (free, free),
    (rest, rest),
    (hold, rest),
    (State(1.0, 0.5, -2.0, 3.0), State(-1.0, 0.25)),
    (State(acceleration=1.5), State(jerk=-4.0)),
    (State(velocity=points(2, seed=1)), State(points(2, seed=2), jerk=points(2, seed=3))),
]


@pytest.mark.parametrize("degree", [3, 4, 5])
@pytest.mark.parametrize(("start", "goal"), STATES)
def test_the_ends_are_as_given(degree: int, start: State, goal: State) -> None:
    duration = 2.3
    spline = bspline(points(8, 2), duration, degree=degree, start=start, goal=goal)
    motion = spline.sample([0.0, duration])
    for state, place in ((start, 0), (goal, -1)):
        for part in state.given:
            found = getattr(motion, part)[place]
            expected = torch.as_tensor(getattr(state, part), dtype=torch.float64).expand(2)
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    if "position" not in start.given:
        torch.testing.assert_close(motion.position[0], points(8, 2)[0])


@pytest.mark.parametrize("degree", [3, 4, 5])
def test_it_is_smooth_at_its_knots(degree: int) -> None:
    spline = bspline(points(9, 1), 3.0, degree=degree)
    left = spline.coefficients[:-1]
    right = spline.coefficients[1:]
    for order in range(degree):
        at_end = sum(
            np.prod(range(k - order + 1, k + 1)) * left[:, k] for k in range(order, degree + 1)
        )
        at_begin = np.prod(range(1, order + 1)) * right[:, order]
        torch.testing.assert_close(at_end, at_begin, rtol=1e-9, atol=1e-9)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("degree", [3, 4, 5])
def test_every_derivative(degree: int) -> None:
    control = points(2, degree + 2, 2).requires_grad_()
    duration = torch.tensor([1.5, 2.5], dtype=torch.float64, requires_grad=True)
    velocity = points(2, seed=5).requires_grad_()
    fractions = torch.tensor([0.1, 0.37, 0.9], dtype=torch.float64, requires_grad=True)

    def run(
        control: torch.Tensor,
        duration: torch.Tensor,
        velocity: torch.Tensor,
        fractions: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        start = State(velocity=velocity, acceleration=0.5)
        spline = bspline(control, duration, degree=degree, start=start, goal=rest)
        motion = spline.sample(fractions * duration.unsqueeze(-1))
        return motion.position, motion.velocity, motion.acceleration, motion.jerk

    inputs = (control, duration, velocity, fractions)
    # Whole Jacobians for one degree, random directions for the others.
    fast = {"fast_mode": degree != 3}
    assert torch.autograd.gradcheck(run, inputs, check_forward_ad=True, **fast)
    assert torch.autograd.gradgradcheck(lambda *args: run(*args)[1], inputs, fast_mode=True)


def test_vmap_equals_a_batch() -> None:
    control, duration = points(3, 6, 2), torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)

    def run(control: torch.Tensor, duration: torch.Tensor) -> torch.Tensor:
        times = duration.unsqueeze(-1) * torch.linspace(0, 1, 5, dtype=torch.float64)
        return bspline(control, duration, start=rest).sample(times).acceleration

    torch.testing.assert_close(torch.func.vmap(run)(control, duration), run(control, duration))


@pytest.mark.slow  # as a quintic: what it is made of compiles in `test_transforms`
def test_it_compiles_whole() -> None:
    control = points(6, 2).requires_grad_()
    times = torch.linspace(0, 1, 5, dtype=torch.float64)

    def run(control: torch.Tensor) -> torch.Tensor:
        return bspline(control, 1.0, goal=rest).sample(times).velocity.sin().sum()

    run(control)
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    (expected,) = torch.autograd.grad(run(control), control)
    (found,) = torch.autograd.grad(compiled(control), control)
    torch.testing.assert_close(found, expected)


def test_float32_is_computed_in_float64() -> None:
    control = points(7, 2)
    wide = bspline(control.float().double(), 1.0, degree=5, start=hold).coefficients
    narrow = bspline(control.float(), 1.0, degree=5, start=hold).coefficients
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow, wide.float(), rtol=0, atol=0)


def test_bad_input() -> None:
    control = points(6, 2)
    for degree in (2, 6, 0, True, 3.5):
        with pytest.raises(ArgumentError, match="degree of a B-spline is out of range"):
            bspline(control, 1.0, degree=degree)
    for duration in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ArgumentError, match="duration must be positive"):
            bspline(control, duration)
    with pytest.raises(ArgumentTypeError, match="duration is not a number"):
        bspline(control, "1")
    with pytest.raises(ArgumentError, match="too few control points"):
        bspline(points(4, 2), 1.0, degree=4)
    with pytest.raises(ArgumentError, match="too few control points"):
        bspline(points(0, 2), 1.0)
    with pytest.raises(ArgumentTypeError, match="not a tensor of floating"):
        bspline(control.long(), 1.0)
    with pytest.raises(ArgumentError, match="another number of joints"):
        bspline(control, 1.0, start=State(velocity=points(3)))
    with pytest.raises(ArgumentError, match="batch of the velocity"):
        bspline(points(2, 6, 2), 1.0, start=State(velocity=points(3, 2)))
    with pytest.raises(ArgumentError, match="batch of the duration"):
        bspline(points(2, 6, 2), points(3).abs())
    with pytest.raises(ArgumentTypeError, match="goal is not a State"):
        bspline(control, 1.0, goal=0.0)
    with pytest.raises(ArgumentError, match="not all finite"):
        bspline(control * float("nan"), 1.0)
    spline = bspline(control, 1.0)
    with pytest.raises(ArgumentError, match="outside the spline"):
        spline.sample([0.5, 1.1])
    with pytest.raises(ArgumentError, match="increase strictly"):
        spline.sample([0.5, 0.5])
    with pytest.raises(ArgumentTypeError, match="not a sequence"):
        spline.sample(0.5)
    with pytest.raises(ArgumentError, match="another device"):
        spline.sample(torch.empty(2, device="meta", dtype=torch.float64))
    with pytest.raises(ArgumentError, match="batch of the times"):
        bspline(points(2, 6, 2), 1.0).sample(points(3, 4))
