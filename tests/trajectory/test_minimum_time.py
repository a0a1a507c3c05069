"""Time scaling: the limit is met exactly, derivatives, bad input; and `Limits` itself."""

import pytest
import torch
from torch.utils import _pytree as pytree

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.trajectory import Limits, State, free, hold, minimum_jerk, minimum_time, rest


def points(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


LIMITS = [
    Limits(velocity=1.3),
    Limits(acceleration=2.0),
    Limits(jerk=7.0),
    Limits(velocity=1.0, acceleration=3.0, jerk=9.0),
    Limits(velocity=torch.tensor([0.5, 2.0]).double(), jerk=torch.tensor([90.0, 5.0]).double()),
]


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("order", [2, 3])
def test_one_limit_is_met_and_none_exceeded(limits: Limits, order: int) -> None:
    through = points(3, 4, 2)
    motion = minimum_time(through, limits, samples=50, order=order)
    fullest = torch.zeros(3).double()
    for kind in limits.given:
        value = getattr(motion, kind)
        if kind == "velocity":  # at every instant: by the control points of each step
            ahead = motion.acceleration * motion.dt[:, :1, None] / 2
            value = torch.cat([value[:, :1] - ahead[:, :1], value + ahead], dim=-2)[:, 1:-1]
        parts = value.abs() / torch.as_tensor(getattr(limits, kind), dtype=torch.float64)
        assert (parts <= 1).all()
        fullest = torch.maximum(fullest, parts.amax((-2, -1)))
    torch.testing.assert_close(fullest, torch.ones(3).double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("lower", [-1e-3, -1e-6, -1e-7, -1e-9, -1e-20, 0.0])
@pytest.mark.parametrize("kind", ["velocity", "acceleration", "jerk"])
def test_a_range_may_begin_just_below_zero(kind: str, lower: float) -> None:
    # From rest to a free end no derivative is negative: the lower end is never met.
    limits = Limits(**{kind: (lower, 1.0)})
    motion = minimum_time(torch.tensor([[0.0], [1.0]]).double(), limits, goal=free)
    wide = minimum_time(torch.tensor([[0.0], [1.0]]).double(), Limits(**{kind: 1.0}), goal=free)
    torch.testing.assert_close(motion.times, wide.times, rtol=1e-5, atol=0)


def test_it_is_the_least_jerk_motion_of_its_duration() -> None:
    through = points(4, 2)
    times = torch.tensor([0.0, 0.2, 0.7, 1.0]).double()
    motion = minimum_time(through, LIMITS[3], times=times, samples=50, start=hold, goal=rest)
    duration = motion.times[-1]
    same = minimum_jerk(through, times * duration, samples=50, start=hold)
    for part in ("position", "velocity", "acceleration", "jerk"):
        torch.testing.assert_close(getattr(motion, part), getattr(same, part), rtol=1e-6, atol=1e-6)
    # The same limits let minimum_jerk be at least as fast.
    minimum_jerk(through, times * duration * 0.999, samples=50, limits=LIMITS[3])


def test_every_derivative() -> None:
    through = points(2, 3, 1).requires_grad_()
    times = torch.tensor([0.0, 0.4, 1.0], dtype=torch.float64, requires_grad=True)
    limit = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)

    def run(
        through: torch.Tensor, times: torch.Tensor, limit: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        motion = minimum_time(through, Limits(jerk=limit), times=times, samples=10)
        return motion.dt, motion.position[:, ::3], motion.velocity[:, ::3]

    def duration(*inputs: torch.Tensor) -> torch.Tensor:
        return run(*inputs)[0]

    inputs = (through, times, limit)
    assert torch.autograd.gradcheck(run, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(duration, inputs, fast_mode=True)


def test_vmap_equals_a_batch() -> None:
    through = points(3, 4, 2)

    def run(through: torch.Tensor) -> torch.Tensor:
        return minimum_time(through, LIMITS[3], samples=20).velocity

    torch.testing.assert_close(torch.func.vmap(run)(through), run(through))


def test_bad_input() -> None:
    through = points(3, 2)
    with pytest.raises(ArgumentError, match="Without limits"):
        minimum_time(through, Limits())
    with pytest.raises(ArgumentTypeError, match="not a Limits"):
        minimum_time(through, 2.0)
    with pytest.raises(ArgumentError, match="order is out of range"):
        minimum_time(through, LIMITS[0], order=4)
    with pytest.raises(ArgumentError, match="velocity of the start exceeds its limit"):
        minimum_time(through, LIMITS[0], start=State(velocity=1.4))
    with pytest.raises(ArgumentError, match="stands still"):
        minimum_time(torch.ones(3, 2), LIMITS[0])
    line = torch.tensor([[0.0], [1.0], [2.0]])  # met at one speed: its jerk is rounding alone
    with pytest.raises(ArgumentError, match="every duration would do"):
        minimum_time(line, Limits(jerk=1.0), start=free, goal=free)
    with pytest.raises(ArgumentError, match="increase strictly"):
        minimum_time(through, LIMITS[0], times=[0.0, 0.0, 1.0])
    minimum_time(through, LIMITS[0], start=free, samples=20)


def test_ends_that_move_are_refused() -> None:
    way = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    followed = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    for velocity in (0.5, torch.tensor([0.5]), followed):
        with pytest.raises(ArgumentError, match="begins and ends at rest"):
            minimum_time(way, Limits(velocity=1.0), start=State(velocity=velocity))
    still = State(velocity=torch.zeros(1, dtype=torch.float64), acceleration=[0.0])
    same = minimum_time(way, Limits(velocity=1.0), start=still)
    torch.testing.assert_close(same.times, minimum_time(way, Limits(velocity=1.0)).times)


def test_a_range_that_leaves_zero_out_is_refused() -> None:
    way = torch.tensor([[0.0], [0.4], [1.0]], dtype=torch.float64)
    with pytest.raises(ArgumentError, match="velocity of the start exceeds its limit"):
        minimum_time(way, Limits(velocity=(0.5, 2.0)))
    for limits in (Limits(velocity=(0.5, 2.0)), Limits(velocity=(-2.0, 0.0))):
        with pytest.raises(ArgumentError, match="at no duration"):
            minimum_time(way, limits, start=free, goal=free)


def test_limits_are_validated() -> None:
    for wrong in (0.0, -1.0, float("nan"), float("inf"), torch.tensor([1.0, -1.0])):
        for kind in ("velocity", "acceleration", "jerk"):
            with pytest.raises(ArgumentError, match=f"limit on {kind} must be positive"):
                Limits(**{kind: wrong})
    for wrong in ("1", True, torch.tensor([1])):
        with pytest.raises(
            ArgumentTypeError, match=r"limit on jerk is not a (number|tensor of floating)"
        ):
            Limits(jerk=wrong)


def test_limits_are_a_pytree_of_their_tensors() -> None:
    limits = Limits(velocity=torch.ones(2), acceleration=3.0)
    leaves, spec = pytree.tree_flatten(limits)
    assert len(leaves) == 1
    again = pytree.tree_unflatten([leaves[0] * 2], spec)
    assert again.given == ("velocity", "acceleration")
    assert again.acceleration == 3.0
    assert torch.equal(again.velocity, 2 * torch.ones(2))


@pytest.mark.slow
def test_it_compiles_whole() -> None:
    through = points(4, 2).requires_grad_()

    def run(through: torch.Tensor) -> torch.Tensor:
        return minimum_time(through, LIMITS[3], samples=14).velocity.square().sum()

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    (expected,) = torch.autograd.grad(run(through), through)
    (found,) = torch.autograd.grad(compiled(through), through)
    torch.testing.assert_close(found, expected)


def test_a_duration_too_long_to_compute_with_is_refused() -> None:
    points = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    for slow in (1e-310, 1e-50):
        with pytest.raises(ArgumentError, match="too long a time"):
            minimum_time(points, Limits(velocity=slow))
    assert minimum_time(points, Limits(velocity=1e-30)).times[-1] > 1e30


def test_where_two_limits_are_met_at_once_the_derivative_is_that_of_one():
    points = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    limit = torch.ones(2, dtype=torch.float64)

    def duration(limit):
        return minimum_time(points, Limits(velocity=limit), samples=64).times[-1]

    # Inversely proportional to the limit of the one joint that decides; nothing by the other.
    steep = -duration(limit).item()
    assert sorted(torch.func.grad(duration)(limit).tolist()) == pytest.approx([steep, 0.0])
    second = torch.func.hessian(duration)(limit).flatten()
    assert sorted(second.tolist()) == pytest.approx([0.0, 0.0, 0.0, -2 * steep])
