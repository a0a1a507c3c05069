"""Limits are kept at every instant, and refused if and only if no motion keeps them."""

import re

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzzing import examples, spread

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.trajectory import (
    Limits,
    State,
    free,
    minimum_acceleration,
    minimum_jerk,
    minimum_time,
    rest,
)

pytestmark = pytest.mark.sampled(3)

LINE = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
KINDS = ("velocity", "acceleration", "jerk", "position")


def least_factor(
    points: np.ndarray, times: np.ndarray, ranges: dict[str, tuple[float, float]], samples: int
) -> float:
    """By how much ranges must be widened about their middles: a linear program over the states.

    Its variables are position, velocity and acceleration at each sample, the jerk of each step
    and the factor, in units of the duration; the dynamics are its equations.
    """
    steps, span = samples - 1, times[-1] - times[0]
    h = 1 / steps
    many = 3 * samples + steps + 1
    at = {"position": 0, "velocity": 1, "acceleration": 2}

    def row(entries: dict[int, float]) -> scipy.sparse.csr_matrix:
        keys = list(entries)
        values = [entries[key] for key in keys]
        return scipy.sparse.csr_matrix((values, ([0] * len(keys), keys)), (1, many))

    equal, right = [], []
    taylor = np.array([[1, h, h**2 / 2, h**3 / 6], [0, 1, h, h**2 / 2], [0, 0, 1, h]])
    for k in range(steps):
        for i in range(3):
            entries = {3 * k + d: taylor[i, d] for d in range(3) if taylor[i, d]}
            entries |= {3 * samples + k: taylor[i, 3], 3 * (k + 1) + i: -1.0}
            equal.append(row(entries))
            right.append(0.0)
    for time, point in zip(times, points, strict=True):
        place = (time - times[0]) / span * steps
        k = min(int(place), steps - 1)
        s = (place - k) * h
        entries = {3 * k: 1.0, 3 * k + 1: s, 3 * k + 2: s**2 / 2, 3 * samples + k: s**3 / 6}
        equal.append(row(entries))
        right.append(float(point))
    for sample in (0, steps):
        for d in (1, 2):
            equal.append(row({3 * sample + d: 1.0}))
            right.append(0.0)
    less, bounds = [], []
    for kind, (lower, upper) in ranges.items():
        unit = span ** {"position": 0, "velocity": 1, "acceleration": 2, "jerk": 3}[kind]
        middle, half = (lower + upper) / 2 * unit, (upper - lower) / 2 * unit
        for k in range(steps if kind == "jerk" else samples):
            entries = {3 * samples + k if kind == "jerk" else 3 * k + at[kind]: 1.0}
            if kind == "velocity":  # the middle control point of each step bounds it everywhere
                entries |= {3 * k + 2: h / 2}
            for sign in (1, -1):
                signed = {key: sign * value for key, value in entries.items()}
                less.append(row({**signed, many - 1: -half}))
                bounds.append(sign * middle)
    cost = np.zeros(many)
    cost[-1] = 1
    found = scipy.optimize.linprog(
        cost,
        A_ub=scipy.sparse.vstack(less),
        b_ub=bounds,
        A_eq=scipy.sparse.vstack(equal),
        b_eq=right,
        bounds=[(None, None)] * (many - 1) + [(0, None)],
    )
    assert found.status == 0, found.message
    return float(found.x[-1])


def widened(ranges: dict[str, tuple[float, float]], factor: float) -> Limits:
    middles = {kind: (low + high) / 2 for kind, (low, high) in ranges.items()}
    return Limits(
        **{
            kind: (middles[kind] + factor * (low - middles[kind]), middles[kind]
                   + factor * (high - middles[kind]))
            for kind, (low, high) in ranges.items()
        }
    )  # fmt: skip


def accepted(points: torch.Tensor, times: object, limits: Limits, samples: int) -> bool | None:
    """Whether limits are kept; nothing where it is said that they are too near the boundary."""
    what = ""
    try:
        minimum_jerk(points, times, limits=limits, samples=samples)
    except ArgumentError as error:
        what = error.what
    if "not decided" in what or "was not found" in what:
        return None
    assert not what or "cannot be met" in what
    return not what


@settings(max_examples=examples(4), deadline=None)
@given(
    seed=st.integers(0, 2**31),
    samples=st.sampled_from([32, 33, 64]),
    kinds=st.sets(st.sampled_from(KINDS[:3]), min_size=1),
)
def test_refused_if_and_only_if_no_motion_keeps_the_limits(
    seed: int, samples: int, kinds: set[str]
) -> None:
    random = np.random.default_rng(seed)
    points = random.normal(size=3)
    times = np.array([0.0, random.uniform(0.6, 1.4), 2.0])
    scale = {"velocity": 2.0, "acceleration": 6.0, "jerk": 60.0}
    ranges = {
        kind: (-scale[kind] * random.uniform(0.3, 1), scale[kind] * random.uniform(0.3, 1))
        for kind in sorted(kinds)
    }
    factor = least_factor(points, times, ranges, samples)
    # A range that is widened about its middle needs to hold the zero of an end at rest.
    inside = all(
        (low + high) / 2 + 0.99 * factor * (low - high) / 2 < 0
        < (low + high) / 2 + 0.99 * factor * (high - low) / 2
        for low, high in ranges.values()
    )  # fmt: skip
    if not inside:
        return
    through = torch.from_numpy(points)[:, None]
    for near, far in ((1e-4, 1e-3), (-1e-4, -1e-3)):
        got = [
            accepted(through, times.tolist(), widened(ranges, factor * (1 + by)), samples)
            for by in (near, far)
        ]
        assert got[1] is (far > 0)
        assert got[0] in (far > 0, None)


def test_a_ten_thousandth_of_room_is_enough() -> None:
    random = np.random.default_rng(5106)
    points = random.normal(size=3)
    times = [0.0, random.uniform(0.6, 1.4), 2.0]
    ranges = {"velocity": (-2 * random.uniform(0.3, 1), 2 * random.uniform(0.3, 1))}
    factor = least_factor(points, np.array(times), ranges, 33)
    through = torch.from_numpy(points)[:, None]
    limits = widened(ranges, factor * (1 + 1e-4))
    motion = minimum_jerk(through, times, limits=limits, samples=33)
    lower, upper = limits.velocity
    assert lower <= motion.velocity.min() <= motion.velocity.max() <= upper


@pytest.mark.parametrize("samples", [33, 257, 1025, 2045])
def test_the_least_jerk_of_a_second_is_found_at_any_number_of_samples(samples: int) -> None:
    # From 0 to 1 at rest in a second takes a jerk of 32, where a quarter is a whole of steps.
    for jerk in spread([32.01, 32.5, 33.0, 36.0, 40.0, 47.0, 59.0], 5):
        assert accepted(LINE, 1.0, Limits(jerk=jerk), samples)
    for jerk in spread([31.99, 12.0, 12.8, 14.1, 14.8, 25.0], 5):
        assert not accepted(LINE, 1.0, Limits(jerk=jerk), samples)


@pytest.mark.parametrize("samples", [65, 1025])
def test_the_message_names_the_least_duration(samples: int) -> None:
    with pytest.raises(ArgumentError, match=r"a duration of 1.26\d* s or more") as raised:
        minimum_jerk(LINE, 1.0, limits=Limits(jerk=16.0), samples=samples)  # 2 ** (1 / 3) s
    wider = re.search(r"would need to be (\S+) times as wide", str(raised.value))
    assert wider is not None
    assert float(wider[1]) == pytest.approx(2, rel=2e-3)


@pytest.mark.parametrize("minimum", [minimum_jerk, minimum_acceleration])
@pytest.mark.parametrize("samples", [32, 33, 128])
def test_a_velocity_limit_holds_between_samples(minimum: object, samples: int) -> None:
    assert callable(minimum)
    motion = minimum(LINE, 1.0, limits=Limits(velocity=1.2), samples=samples)
    s = torch.linspace(0, 1, 101, dtype=torch.float64)[:, None, None] * motion.dt
    inside = motion.velocity[:-1] + s * motion.acceleration[:-1] + s**2 / 2 * motion.jerk[:-1]
    assert inside.abs().max() <= 1.2
    # The mean speed alone is above this limit.
    with pytest.raises(ArgumentError, match="limit on velocity cannot be met"):
        minimum(LINE, 1.0, limits=Limits(velocity=0.9), samples=samples)


def test_ranges_need_not_be_even() -> None:
    through = torch.tensor([[0.0], [1.0], [0.4]], dtype=torch.float64)
    limits = Limits(position=(-0.02, 1.05), velocity=(-1.0, 1.5), acceleration=(-8.0, 6.0))
    motion = minimum_jerk(through, 2.0, limits=limits, samples=101)
    assert motion.position.min() >= -0.02
    assert motion.position.max() <= 1.05
    assert -1.0 <= motion.velocity.min() < -0.99
    assert motion.velocity.max() <= 1.5
    assert motion.acceleration.min() >= -8.0
    assert motion.acceleration.max() <= 6.0


def test_points_may_lie_on_the_limits_of_position() -> None:
    through = torch.tensor([[0.0], [1.0], [0.0]], dtype=torch.float64)
    motion = minimum_jerk(through, 2.0, limits=Limits(position=(0.0, 1.0)), samples=101)
    assert motion.position.min() >= -1e-12
    assert motion.position.max() <= 1 + 1e-12
    with pytest.raises(ArgumentError, match="position of a point exceeds its limit"):
        minimum_jerk(through, 2.0, limits=Limits(position=(0.0, 0.9)))


def test_positions_are_kept_between_samples_on_request() -> None:
    through = torch.tensor([[0.0], [1.0], [0.2]], dtype=torch.float64)
    limits = Limits(position=(-0.001, 1.01), between=True)
    motion = minimum_jerk(through, [0.0, 0.93, 2.0], limits=limits, samples=24)
    s = torch.linspace(0, 1, 101, dtype=torch.float64)[:, None, None] * motion.dt
    p, v, a, j = (getattr(motion, part)[:-1] for part in ("position", *KINDS[:3]))
    inside = p + s * (v + s / 2 * (a + s / 3 * j))
    assert inside.max() <= 1.01
    assert inside.min() >= -0.001
    on = Limits(position=(0.0, 1.0), between=True)
    with pytest.raises(ArgumentError, match="lies on the limit"):
        minimum_jerk(through, [0.0, 0.93, 2.0], limits=on, samples=24)


@pytest.mark.parametrize("samples", [24, 1024])
@pytest.mark.parametrize("start", [rest, State(velocity=0.0), free], ids=["rest", "still", "free"])
def test_ends_may_lie_on_limits_that_hold_between_samples(start: State, samples: int) -> None:
    on = Limits(position=(0.0, 1.0), between=True)
    kept = minimum_jerk(LINE, 1.9, start=start, limits=on, samples=samples)
    plain = minimum_jerk(LINE, 1.9, start=start, samples=samples)
    if start is rest:
        torch.testing.assert_close(kept.jerk, plain.jerk)
    ahead = kept.position + kept.dt / 3 * kept.velocity
    behind = kept.position - kept.dt / 3 * kept.velocity
    control = torch.cat([kept.position, ahead[:-1], behind[1:]])
    assert -1e-14 <= control.min() <= control.max() <= 1 + 1e-14


def test_a_point_that_touches_a_limit_between_samples() -> None:
    through = torch.tensor([[0.0], [1.0], [0.0]], dtype=torch.float64)
    on = Limits(velocity=9.0, position=(-0.5, 1.0), between=True)
    with pytest.raises(ArgumentError, match="could only just touch its limit"):
        minimum_jerk(through, [0.0, 1.0, 2.0], limits=on, samples=65)
    touching = minimum_time(through, on, samples=65)
    assert (touching.position + touching.dt / 3 * touching.velocity).max() <= 1 + 1e-14


def test_an_acceleration_that_leads_out_within_a_step_is_refused() -> None:
    on = Limits(position=(0.0, 1.0), between=True)
    falls = State(velocity=0.0, acceleration=-1.0)
    with pytest.raises(ArgumentError, match="position within a step of the start"):
        minimum_jerk(LINE, 1.0, start=falls, limits=on, samples=50)


def test_an_end_that_would_leave_its_limit_within_a_step_is_refused() -> None:
    start = State(velocity=1.0, acceleration=5.0)
    with pytest.raises(ArgumentError, match="velocity within a step of the start"):
        minimum_jerk(LINE, 1.0, start=start, limits=Limits(velocity=1.0), samples=50)
    # From where the range of the position ends, outward: below it between the first two samples.
    edge = Limits(velocity=9.0, position=(LINE.min().item(), 99.0), between=True)
    with pytest.raises(ArgumentError, match="position within a step of the start"):
        minimum_jerk(LINE, 1.0, start=State(velocity=-0.5), limits=edge, samples=50)


@pytest.mark.parametrize("samples", [33, 1025])
@pytest.mark.parametrize("wider", [1.001, 1.01, 1.1, 1.5])
def test_the_cost_exceeds_the_least_by_a_millionth(samples: int, wider: float) -> None:
    # Independent: the multipliers of the solution bound the cost from below; here the cost of
    # limits that are a ten-millionth wider does, whose own excess is at most as large.
    cost = [
        float(minimum_jerk(LINE, 1.0, limits=Limits(jerk=32.0 * wider * by), samples=samples)
              .jerk[:-1].square().mean())
        for by in (1.0, 1 + 1e-7)
    ]  # fmt: skip
    slope = (cost[0] - cost[1]) / cost[1]
    assert -2e-6 < slope < 2e-5


@pytest.mark.parametrize("shift", [1.0, 1e3, 1e5])
def test_a_range_of_position_may_lie_far_from_zero(shift: float) -> None:
    # Shifts that are whole numbers are exact, so the problem is the same.
    through = torch.tensor([[0.0], [1.0], [0.0]], dtype=torch.float64)

    def cost(shift: float) -> float:
        limits = Limits(position=(shift - 0.5, shift + 1.0))
        motion = minimum_jerk(through + shift, [0.0, 0.45, 1.0], samples=65, limits=limits)
        assert motion.position.max() <= shift + 1.0
        return float(motion.jerk[:-1].square().mean())

    assert cost(shift) == pytest.approx(cost(0.0), rel=1e-9)


@pytest.mark.parametrize("far", [1e2, 1e5])
@pytest.mark.parametrize("kind", ["velocity", "position"])
def test_an_end_far_away_takes_nothing_from_the_other(kind: str, far: float) -> None:
    limits = Limits(velocity=(-far, 1.6)) if kind == "velocity" else Limits(position=(-far, 1.0))
    near = Limits(velocity=(-9.0, 1.6)) if kind == "velocity" else Limits(position=(-9.0, 1.0))
    through = torch.tensor([[0.0], [1.0], [0.5]], dtype=torch.float64)
    times = [0.0, 0.9, 2.0]
    cost = [
        float(minimum_jerk(through, times, samples=65, limits=it).jerk[:-1].square().mean())
        for it in (limits, near)
    ]
    assert cost[0] == pytest.approx(cost[1], rel=2e-6)


def test_derivatives_with_respect_to_both_ends_of_a_range() -> None:
    def run(lower: torch.Tensor, upper: torch.Tensor) -> torch.Tensor:
        limits = Limits(velocity=(lower, upper), position=(-0.5, 1.2))
        through = torch.tensor([[0.0], [1.0], [0.2]], dtype=torch.float64)
        return minimum_jerk(through, 2.0, limits=limits, samples=16).position[::3]

    ends = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (-1.2, 1.5)]
    assert torch.autograd.gradcheck(run, ends, atol=1e-6, check_forward_ad=True)
    mapped = torch.func.vmap(run)(*(torch.stack([end, end]).detach() for end in ends))
    torch.testing.assert_close(mapped[0], run(*ends).detach())


def test_bad_limits() -> None:
    for wrong in ((1.0, -1.0), (1.0, 1.0), (0.0, float("inf"))):
        with pytest.raises(ArgumentError, match="empty or not finite"):
            Limits(velocity=wrong)
    with pytest.raises(ArgumentError, match="not a pair"):
        Limits(velocity=(1.0, 2.0, 3.0))
    with pytest.raises(ArgumentError, match="must be positive"):
        Limits(jerk=[1.0, -2.0])
    for wrong in ("2", True, {"a": 1}, ["x"], torch.tensor([1, 2], device="cpu")):
        with pytest.raises(ArgumentTypeError, match=r"not a (number|tensor of floating)"):
            Limits(velocity=wrong)
    assert Limits(velocity=[1.0, 2.0]).velocity.tolist() == [1.0, 2.0]
    plain = minimum_jerk(LINE, 1.0, start=rest, limits=Limits(velocity=(-1, 2)), samples=20)
    assert plain.velocity.max() <= 2


def test_the_ends_of_a_range_may_be_batched_unlike_each_other() -> None:
    upper = torch.tensor([2.0, 2.0], dtype=torch.float64)
    lower = -torch.tensor([[1.0, 1.5, 2.0], [1.0, 1.5, 2.0]], dtype=torch.float64)

    def run(lower: torch.Tensor) -> torch.Tensor:
        limits = Limits(velocity=(lower, upper))
        return minimum_time(torch.tensor([[0.0, 0.0], [-1.0, -1.0]]).double(), limits).times[-1]

    found = torch.func.vmap(run, in_dims=1)(lower)
    torch.testing.assert_close(found, torch.stack([run(column) for column in lower.T]))


def test_a_gradient_with_respect_to_limits_is_no_limit_itself() -> None:
    def time(limits: Limits) -> torch.Tensor:
        return minimum_time(LINE, limits).times[-1]

    two = torch.tensor(2.0, dtype=torch.float64)
    found = torch.func.grad(time)(Limits(velocity=(-two, two)))
    lower, upper = found.velocity
    # The duration is inverse to the limit that is met.
    assert abs(lower.item()) < 1e-6
    assert upper.item() == pytest.approx(-time(Limits(velocity=two)).item() / 2, rel=1e-6)
    with pytest.raises(ArgumentError, match="range of velocity"):
        time(torch.utils._pytree.tree_map(torch.neg, Limits(velocity=(-two, two))))
    with pytest.raises(ArgumentError, match="must be positive"):
        time(torch.utils._pytree.tree_map(torch.neg, Limits(velocity=two)))


def test_vmap_takes_limits_and_states() -> None:
    def run(limits: Limits, start: State) -> torch.Tensor:
        return minimum_jerk(LINE, 2.0, start=start, limits=limits, samples=40).velocity

    limit = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    for many, each in (
        (Limits(velocity=limit), [Limits(velocity=one) for one in limit]),
        (
            Limits(velocity=(-limit, 2 * limit), jerk=90.0),
            [Limits(velocity=(-one, 2 * one), jerk=90.0) for one in limit],
        ),
    ):
        start = State(velocity=limit / 3, acceleration=0.0)
        expected = [
            run(one, State(velocity=speed / 3, acceleration=0.0))
            for one, speed in zip(each, limit, strict=True)
        ]
        torch.testing.assert_close(torch.func.vmap(run)(many, start), torch.stack(expected))
    # Of the last one, which has every kind of leaf; a magnitude alone is compiled elsewhere.
    compiled = torch.compile(torch.func.vmap(run), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(many, start), torch.stack(expected))
