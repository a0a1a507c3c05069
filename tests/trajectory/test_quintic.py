"""Piecewise quintics: interpolation, smoothness, optimality, derivatives, bad input."""

import pytest
import torch

from pullback.errors import ArgumentError
from pullback.trajectory import State, free, quintic, rest

TIMES = [0.0, 0.6, 1.1, 2.0]


def points(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


ENDS = [
    (None, None),
    (free, free),
    (State(velocity=0.5, acceleration=-1.0), rest),
    (State(velocity=points(3, seed=4)), State(acceleration=2.0)),
]


@pytest.mark.parametrize(("start", "goal"), ENDS)
def test_points_ends_and_four_continuous_derivatives(
    start: State | None, goal: State | None
) -> None:
    through = points(4, 3)
    spline = quintic(through, TIMES, start=start, goal=goal)
    motion = spline.sample(TIMES)
    torch.testing.assert_close(motion.position, through)
    for state, place in ((start or rest, 0), (goal or rest, -1)):
        for part in state.given:
            expected = torch.as_tensor(getattr(state, part), dtype=torch.float64).expand(3)
            torch.testing.assert_close(getattr(motion, part)[place], expected, rtol=1e-9, atol=1e-9)
    width = spline.knots.diff()
    falling = torch.tensor(
        [[_falling(k, order) for k in range(6)] for order in range(5)], dtype=torch.float64
    )
    for order in range(5):
        left = torch.einsum("k,skd->sd", falling[order], spline.coefficients)[:-1]
        right = falling[order, order] * spline.coefficients[1:, order]
        left, right = left / width[:-1, None] ** order, right / width[1:, None] ** order
        torch.testing.assert_close(left, right, rtol=1e-8, atol=1e-8)


def _falling(k: int, order: int) -> float:
    value = 1.0
    for i in range(order):
        value *= k - i
    return value


def energy(spline_points: torch.Tensor, **given: torch.Tensor) -> torch.Tensor:
    times = torch.linspace(0, 2.0, 20001, dtype=torch.float64)
    motion = quintic(spline_points, TIMES, **given).sample(times)
    return torch.trapezoid(motion.jerk.square().sum(-1), times)


def test_no_other_velocities_have_less_jerk() -> None:
    through = points(4, 2)
    best = quintic(through, TIMES)
    motion = best.sample(TIMES)
    least = energy(through)
    generator = torch.Generator().manual_seed(3)
    for _ in range(5):
        nudge = 0.05 * torch.randn(4, 2, generator=generator, dtype=torch.float64)
        nudge[[0, -1]] = 0
        other = energy(
            through, velocities=motion.velocity + nudge, accelerations=motion.acceleration
        )
        assert other > least
    same = energy(through, velocities=motion.velocity, accelerations=motion.acceleration)
    torch.testing.assert_close(same, least, rtol=1e-9, atol=0)


def test_one_segment_is_the_textbook_polynomial() -> None:
    times = torch.linspace(0, 1, 11, dtype=torch.float64)
    motion = quintic(torch.tensor([[0.0], [1.0]], dtype=torch.float64), [0.0, 1.0]).sample(times)
    expected = 10 * times**3 - 15 * times**4 + 6 * times**5
    torch.testing.assert_close(motion.position[:, 0], expected)


def test_a_quintic_is_reproduced() -> None:
    times = torch.linspace(-1, 2, 7, dtype=torch.float64)
    c = points(6)
    powers = torch.arange(6, dtype=torch.float64)
    q = (times[:, None] ** powers) @ c
    v = (times[:, None] ** powers[:-1]) @ (c[1:] * powers[1:])
    a = (times[:, None] ** powers[:-2]) @ (c[2:] * powers[2:] * powers[1:-1])
    ends = [State(velocity=v[i], acceleration=a[i]) for i in (0, -1)]
    motion = quintic(q[:, None], times, start=ends[0], goal=ends[1]).sample(times)
    torch.testing.assert_close(motion.velocity[:, 0], v)
    torch.testing.assert_close(motion.acceleration[:, 0], a)


def test_every_derivative() -> None:
    through = points(2, 4, 1).requires_grad_()
    times = torch.tensor(TIMES, dtype=torch.float64, requires_grad=True)
    velocity = points(1, seed=2).requires_grad_()

    def run(
        through: torch.Tensor, times: torch.Tensor, velocity: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        spline = quintic(through, times, start=State(velocity=velocity), goal=free)
        motion = spline.sample(times[-1] * torch.tensor([0.2, 0.5, 0.99], dtype=torch.float64))
        return motion.position, motion.velocity, motion.acceleration, motion.jerk

    inputs = (through, times, velocity)
    assert torch.autograd.gradcheck(run, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda *args: run(*args)[0], inputs)


def test_vmap_equals_a_batch_of_times() -> None:
    through = points(3, 4, 2)
    times = torch.tensor(TIMES, dtype=torch.float64) * torch.tensor([[1.0], [2.0], [0.5]])
    at = times[:, -1:] * torch.linspace(0, 1, 6, dtype=torch.float64)

    def run(through: torch.Tensor, times: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return quintic(through, times).sample(at).jerk

    torch.testing.assert_close(torch.func.vmap(run)(through, times, at), run(through, times, at))


@pytest.mark.slow
def test_it_compiles_whole() -> None:
    through = points(4, 2).requires_grad_()
    times = torch.tensor(TIMES, dtype=torch.float64)

    def run(through: torch.Tensor) -> torch.Tensor:
        return quintic(through, times).sample(times).velocity.sin().sum()

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    (expected,) = torch.autograd.grad(run(through), through)
    (found,) = torch.autograd.grad(compiled(through), through)
    torch.testing.assert_close(found, expected)


def test_many_points_stay_accurate_in_float32() -> None:
    through = points(300, 1)
    times = torch.linspace(0, 5, 300).double()
    wide = quintic(through.float().double(), times).sample(times)
    narrow = quintic(through.float(), times.float()).sample(times)
    assert narrow.position.dtype == torch.float32
    torch.testing.assert_close(narrow.position, wide.position.float(), rtol=1e-5, atol=1e-5)


def test_bad_input() -> None:
    through = points(3, 2)
    times = [0.0, 1.0, 2.0]
    for wrong in ([0.0, 1.0], [0.0, 1.0, 1.0], [0.0, 2.0, 1.0], [0.0, float("nan"), 1.0]):
        with pytest.raises(ArgumentError, match=r"one time for each|increase strictly"):
            quintic(through, wrong)
    with pytest.raises(ArgumentError, match="not a sequence of floating"):
        quintic(through, torch.tensor([0, 1, 2]))
    with pytest.raises(ArgumentError, match="too few points"):
        quintic(points(1, 2), [0.0])
    with pytest.raises(ArgumentError, match="jerk of the start"):
        quintic(through, times, start=State(jerk=0.0))
    with pytest.raises(ArgumentError, match="position of the goal"):
        quintic(through, times, goal=State(0.0))
    with pytest.raises(ArgumentError, match="given twice"):
        quintic(through, times, start=rest, velocities=points(3, 2))
    with pytest.raises(ArgumentError, match="one velocity for each"):
        quintic(through, times, velocities=points(3, 1))
    with pytest.raises(ArgumentError, match="too little to determine"):
        quintic(points(2, 2), [0.0, 1.0], start=free, goal=free)
    with pytest.raises(ArgumentError, match="batch of the times"):
        quintic(points(2, 3, 2), points(3, 3).abs().cumsum(-1))
    with pytest.raises(ArgumentError, match="another device"):
        quintic(through, torch.empty(3, device="meta"))


def test_a_coarse_time_outside_of_the_curve_is_refused():
    curve = quintic(torch.tensor([[0.0], [1.0]], dtype=torch.float64), [1e6, 1e6 + 2])
    nearly = torch.tensor([1e6 + 2 + 0.0625], dtype=torch.float32)  # the next one after the last
    with pytest.raises(ArgumentError, match="outside the spline"):
        curve.sample(nearly)
    assert curve.sample(torch.tensor([1e6 + 2], dtype=torch.float32)).position == 1.0
    short = quintic(torch.tensor([[0.0], [1.0]]), [0.0, 0.7])
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        last = short.sample(torch.linspace(0, 0.7, 9, dtype=dtype)).position[-1]
        torch.testing.assert_close(last, torch.ones(1), rtol=0, atol=1e-4)


@pytest.mark.parametrize("ends", [{}, {"start": free, "goal": free}])
def test_points_so_near_in_time_that_rounding_decides_are_refused(ends):
    # Beside the energy of the short segment that of its neighbours is rounded: 1e-9 s apart the
    # curve was 25 beside itself.
    for apart in (1e-6, 1e-9, 1e-12, 1e-15):
        through = torch.tensor([0.0, 1.0, 1.0 + apart, 2.0], dtype=torch.float64)
        with pytest.raises(ArgumentError, match="near in time"):
            quintic(through.unsqueeze(-1), through, **ends)


def test_points_near_in_time_that_others_hold_are_met():
    at = torch.tensor([0.5, 2.0], dtype=torch.float64)
    for apart in (1e-4, 1e-6, 1e-9):
        # At rest beside the start, and of three near one another: the curve goes on as they say.
        times = torch.tensor([0.0, apart, 1.0, 3.0], dtype=torch.float64)
        near = quintic(times.pow(3).unsqueeze(-1), times).sample(at).position
        plain = quintic(times[[0, 2, 3]].pow(3).unsqueeze(-1), times[[0, 2, 3]]).sample(at).position
        torch.testing.assert_close(near, plain, rtol=0, atol=20 * apart)
