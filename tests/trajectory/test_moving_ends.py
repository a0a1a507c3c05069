"""Ends that move: the duration found is the smallest that keeps all limits, or none does.

The oracle knows nothing of polynomials: it plans the motion at many durations by `minimum_jerk`
without limits, and looks at the control points of every step.
"""

import pytest
import torch
from tests.fuzzing import examples
from torch import Tensor

import pullback
from pullback.errors import ArgumentError
from pullback.trajectory import Limits, Motion, State, free, minimum_jerk, minimum_time, rest
from pullback.trajectory.plans._polynomials import SolvePolynomial, first_kept

KINDS = ("velocity", "acceleration", "jerk")
# Limits lose 2e-7 of their larger end, which may be many times half of their width.
ROOM = 1e-5


def fullest(motion: Motion, limits: Limits) -> Tensor:
    """By how much the motion fills its limits at the fullest: beyond 1 it breaks one."""
    h = motion.dt if motion.dt.ndim == 0 else motion.dt[..., :1, None]
    parts = []
    for kind in limits.given:
        limit = getattr(limits, kind)
        lower, upper = limit if isinstance(limit, tuple) else (-limit, limit)
        value = getattr(motion, kind)
        if kind == "velocity":
            ahead = motion.acceleration * h / 2
            inner = (value + ahead)[..., :-1, :]
            value = torch.cat([value[..., :1, :], inner, value[..., -1:, :]], dim=-2)
        parts.append(((value - (lower + upper) / 2).abs() / ((upper - lower) / 2)).amax((-2, -1)))
    return torch.stack(parts).amax(0)


def between_samples(motion: Motion) -> Tensor:
    """The velocity at ten places of each step, by the polynomial that a step is."""
    s = motion.dt * torch.linspace(0, 1, 10, dtype=torch.float64)[:, None, None]
    value = motion.velocity[:-1] + s * motion.acceleration[:-1] + s**2 / 2 * motion.jerk[:-1]
    return value.reshape(-1, motion.dof)


class Task:
    """A random one: few or many joints, any limits, ends that move within them or not at all."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.dof, count = 1 + int(3 * self.draw()), 2 + int(4 * self.draw())
        self.samples = count + 8 + int(30 * self.draw())
        self.points = self.normal(count, self.dof) * 10 ** (2 * self.draw() - 1)
        if self.draw() < 0.1:
            self.points = self.points[:1].expand(count, self.dof).clone()
        ranges = {}
        for kind in KINDS:
            if self.draw() < 0.6:
                most = 0.3 + 3 * abs(self.normal(1).item())
                ranges[kind] = (-most * (0.2 + self.draw()), most) if self.draw() < 0.3 else most
        if not ranges:
            ranges["velocity"] = 2.0
        if self.draw() < 0.08:
            ranges["velocity"] = (0.1, 2.0)
        if self.draw() < 0.2:
            room = 2 * self.draw()
            ranges["position"] = (self.points.min().item() - room, self.points.max().item() + room)
        self.limits = Limits(**ranges)
        self.start, self.goal = self.end(), self.end()

    def draw(self) -> float:
        return torch.rand((), generator=self.generator).item()

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def end(self) -> State:
        parts = {}
        for kind, often in zip(KINDS, (0.7, 0.4, 0.15), strict=True):
            if self.draw() < often:
                limit = getattr(self.limits, kind) or 2.0
                lower, upper = limit if isinstance(limit, tuple) else (-limit, limit)
                share = torch.rand(self.dof, generator=self.generator, dtype=torch.float64)
                # At the limit itself, now and then.
                parts[kind] = lower + (upper - lower) * (share if self.draw() < 0.9 else 1.0)
        return State(**parts)

    def ends(self) -> dict[str, State]:
        return {"start": self.start, "goal": self.goal}

    def plan(self) -> tuple[Motion | None, str]:
        try:
            found = minimum_time(self.points, self.limits, samples=self.samples, **self.ends())
        except ArgumentError as error:
            return None, error.what
        return found, ""

    def at(self, durations: Tensor) -> Motion:
        """The motions of least jerk at many durations."""
        even = torch.linspace(0, 1, len(self.points), dtype=torch.float64)
        times = durations[:, None] * even
        return minimum_jerk(self.points, times, samples=self.samples, **self.ends())

    def filled(self, durations: Tensor) -> Tensor:
        return fullest(self.at(durations), self.limits)


@pytest.mark.parametrize("seed", range(examples(60)))
def test_no_shorter_duration_keeps_the_limits(seed: int) -> None:
    task = Task(seed)
    motion, why = task.plan()
    if motion is None:
        if "however short" in why or "needs nothing" in why:
            assert (task.filled(torch.tensor([1e-2, 1e-1]).double()) <= 1).all()
        elif "too little to determine" not in why:
            anywhere = torch.logspace(-3, 4, 140, dtype=torch.float64)
            assert (task.filled(anywhere) > 1 - ROOM).all(), why
        return
    assert fullest(motion, task.limits) <= 1 + 1e-12
    if "velocity" in task.limits.given:
        limit = task.limits.velocity
        lower, upper = limit if isinstance(limit, tuple) else (-limit, limit)
        assert (
            (between_samples(motion) - (lower + upper) / 2).abs() * 2
            <= (upper - lower) * (1 + 1e-12)
        ).all()
    duration = motion.times[-1]
    (same,) = task.at(duration[None]).velocity
    torch.testing.assert_close(motion.velocity, same, rtol=1e-6, atol=1e-6)
    shorter = torch.cat([torch.logspace(-4, -0.02, 120), torch.tensor([0.99, 0.998])]).double()
    assert (task.filled(duration * shorter) > 1 - ROOM).all()


def test_more_time_may_break_what_less_time_keeps() -> None:
    # At speed 1 from 0 to 1: with much more time than a second it has to swing beyond both.
    points = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    fast = State(velocity=1.0)
    limits = Limits(velocity=2.0, position=(-0.05, 1.05))
    motion = minimum_time(points, limits, start=fast, goal=fast, samples=64)
    assert motion.position.max() <= 1.05
    slow = minimum_jerk(points, 16 * motion.times[-1], start=fast, goal=fast, samples=64)
    assert slow.velocity.abs().max() <= 1.0 + 1e-9
    assert slow.position.max() > 1.1


def test_at_rest_both_ways_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(8, 4, 2, generator=generator, dtype=torch.float64)
    limits = Limits(velocity=(-2.0, 1.0), acceleration=3.0, jerk=9.0)
    stretched = minimum_time(points, limits, samples=50)
    monkeypatch.setattr(
        "pullback.trajectory.plans._minimum_time.stands_still", lambda start, goal: False
    )
    searched = minimum_time(points, limits, samples=50)
    torch.testing.assert_close(stretched.times, searched.times, rtol=1e-9, atol=0)


MOVING = Limits(velocity=1.5, acceleration=4.0, jerk=60.0)


def some(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def test_a_batch_is_each_by_itself() -> None:
    points, velocity = some(5, 3, 2), 0.3 * some(5, 2)
    together = minimum_time(points, MOVING, start=State(velocity=velocity), samples=40)
    mapped = torch.func.vmap(
        lambda p, v: minimum_time(p, MOVING, start=State(velocity=v), samples=40).velocity
    )(points, velocity)
    torch.testing.assert_close(mapped, together.velocity)
    for index in range(5):
        start = State(velocity=velocity[index])
        alone = minimum_time(points[index], MOVING, start=start, samples=40)
        torch.testing.assert_close(together.velocity[index], alone.velocity)


def test_single_precision_keeps_the_limits() -> None:
    points, velocity = some(20, 3, 2).float(), (0.3 * some(20, 2)).float()
    start = State(velocity=velocity)
    motion = minimum_time(points, MOVING, start=start, goal=start, samples=40)
    exact = State(velocity=velocity.double())
    double = minimum_time(points.double(), MOVING, start=exact, goal=exact, samples=40)
    assert motion.velocity.dtype == torch.float32
    torch.testing.assert_close(motion.times, double.times.float())
    for kind in KINDS:
        assert (getattr(motion, kind).abs() <= getattr(MOVING, kind)).all()


@pytest.mark.parametrize(
    "limits",
    [
        lambda limit: Limits(velocity=limit),
        lambda limit: Limits(acceleration=2 * limit),
        lambda limit: Limits(jerk=(-8 * limit, 9 * limit)),
    ],
    ids=KINDS,
)
def test_every_derivative(limits) -> None:
    points = torch.tensor([[0.0, 0.3], [1.0, 0.5], [0.7, 1.5]], dtype=torch.float64)
    velocity = torch.tensor([0.4, 0.6], dtype=torch.float64)
    times = torch.tensor([0.0, 0.45, 1.0], dtype=torch.float64)
    limit = torch.tensor([2.0], dtype=torch.float64)
    inputs = tuple(t.requires_grad_() for t in (points, velocity, times, limit))

    def run(points: Tensor, velocity: Tensor, times: Tensor, limit: Tensor) -> tuple[Tensor, ...]:
        start, goal = State(velocity=velocity, acceleration=0.2), State(velocity=0.5 * velocity)
        motion = minimum_time(
            points, limits(limit), times=times, start=start, goal=goal, samples=12
        )
        return motion.dt, motion.position[::3], motion.velocity[::3]

    assert torch.autograd.gradcheck(run, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda *given: run(*given)[0], inputs, fast_mode=True)


def test_the_derivative_at_ends_that_happen_to_be_at_rest() -> None:
    points = torch.tensor([[0.0, 0.3], [1.0, 0.5], [0.7, 1.5]], dtype=torch.float64)
    limits = Limits(acceleration=2.0)

    def run(velocity: Tensor) -> Tensor:
        return minimum_time(points, limits, start=State(velocity=velocity), samples=12).dt

    still = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(run, still, check_forward_ad=True)
    (reverse,) = torch.autograd.grad(run(still), still)
    torch.testing.assert_close(torch.func.grad(run)(still.detach()), reverse)
    torch.testing.assert_close(torch.func.jacfwd(run)(still.detach()), reverse)


@pytest.mark.slow
def test_it_compiles_whole() -> None:
    points, velocity = some(3, 2).requires_grad_(), 0.3 * some(2)

    def run(points: Tensor, velocity: Tensor) -> Tensor:
        motion = minimum_time(points, MOVING, start=State(velocity=velocity), samples=14)
        return motion.velocity.square().sum()

    # Two thousand operations: what follows Dynamo takes three times as long as it does.
    backend = "aot_eager" if examples(1) > 1 else "eager"
    compiled = torch.compile(run, backend=backend, fullgraph=True)
    (expected,) = torch.autograd.grad(run(points, velocity), points)
    (found,) = torch.autograd.grad(compiled(points, velocity), points)
    torch.testing.assert_close(found, expected)
    with pytest.raises(ArgumentError, match="no least duration"):
        compiled(points, 0 * velocity + 1.6)


def test_what_is_refused() -> None:
    points = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    with pytest.raises(ArgumentError, match="velocity of the start exceeds its limit"):
        minimum_time(points, Limits(velocity=1.0), start=State(velocity=1.1))
    with pytest.raises(ArgumentError, match="acceleration of the goal exceeds its limit"):
        minimum_time(points, Limits(acceleration=1.0), goal=State(acceleration=-1.1))
    with pytest.raises(ArgumentError, match="however short"):
        minimum_time(0 * points, Limits(velocity=1.0), start=State(velocity=0.5), goal=rest)
    with pytest.raises(ArgumentError, match="needs nothing"):  # a parabola has no jerk
        minimum_time(points, Limits(jerk=1.0), start=State(velocity=0.3), goal=free)
    # Backwards first, from a place where the range ends: nothing helps.
    narrow = Limits(velocity=1.0, position=(0.0, 1.0))
    with pytest.raises(ArgumentError, match="at no duration") as refused:
        minimum_time(points, narrow, start=State(velocity=-0.5))
    assert "position" in str(refused.value)
    with pytest.raises(ArgumentError, match="velocity of the start exceeds its limit"):
        minimum_time(points, Limits(velocity=(0.5, 2.0)))


def test_a_range_without_zero_is_kept() -> None:
    points = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    steady = State(velocity=1.0)
    limits = Limits(velocity=(0.5, 2.0))
    motion = minimum_time(points, limits, start=steady, goal=steady)
    assert motion.velocity.min() >= 0.5
    assert 1.9 < motion.velocity.max() <= 2.0


def test_the_root_keeps_the_contract() -> None:
    def inputs(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        root = 1 + torch.rand(5, generator=generator, dtype=torch.float64)
        others = torch.randn(5, 3, generator=generator, dtype=torch.float64)
        others[:, 0] = -3 - others[:, 0].abs()  # falls at the root
        c0 = -(others * torch.stack([root, root**2, root**3], -1)).sum(-1)
        return torch.cat([c0[:, None], others], -1).requires_grad_(), root

    polynomials, near = inputs(torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(
        lambda p: SolvePolynomial.apply(p, near), polynomials, check_forward_ad=True
    )
    # Without the clauses that change the roots and not what is near them.
    clauses = ["derivative", "linear", "double", "forward", "transforms", "vmap", "saved", "layout"]
    report = pullback.check(
        SolvePolynomial, *inputs(torch.Generator().manual_seed(1)), clauses=clauses
    )
    assert report.ok, str(report)


@pytest.mark.parametrize("seed", range(examples(20)))
def test_the_first_number_that_is_kept(seed: int) -> None:
    """Random cubics beside a fine grid: nothing before is kept, and it is kept itself."""
    generator = torch.Generator().manual_seed(seed)
    polynomials = torch.randn(30, 6, 4, generator=generator, dtype=torch.float64)
    polynomials[::2, :, 3] -= 2.0
    polynomials[::3] *= torch.rand(4, generator=generator).gt(0.3)
    powers = torch.randint(0, 4, (6,), generator=generator)
    h, _, found = first_kept(polynomials, powers, False)
    grid = torch.logspace(-6, 6, 4000, dtype=torch.float64)
    all_powers = torch.stack([grid**k for k in range(4)])
    value = (polynomials @ all_powers / all_powers[powers]).amax(-2)
    for index in range(30):
        before = grid < (h[index] * (1 - 1e-6) if found[index] == 1 else torch.inf)
        if found[index] == -1:
            assert value[index, 0] <= 0
            continue
        assert (value[index][before] > 0).all()
        if found[index] == 1:
            at = polynomials[index] @ torch.stack([h[index] ** k for k in range(4)])
            assert (at / h[index] ** powers <= 1e-9).all()


@pytest.mark.parametrize("samples", range(9, 15))
def test_samples_may_be_nearly_as_few_as_what_is_given(samples: int) -> None:
    # Of all rows of a kind, fewer are undecided then than there are conditions.
    points = torch.linspace(0, 1, 5, dtype=torch.float64)[:, None] ** 2
    limits = Limits(velocity=3.0, acceleration=40.0, jerk=4000.0)
    end = State(velocity=2.0, acceleration=1.0)
    times = torch.linspace(0, 1, 5, dtype=torch.float64)
    motion = minimum_time(points, limits, times=times, goal=end, samples=samples)
    assert fullest(motion, limits) <= 1 + 1e-12
