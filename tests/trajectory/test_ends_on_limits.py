"""Ends on the edges of their ranges: limits are refused if and only if no motion keeps them.

What is given at an end decides more than its own sample: with `hold` the second one too, and the
velocity, acceleration and jerk beside it. The oracle is a linear program over the states of each
sample, which knows nothing of splines.
"""

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.fuzzing import examples

from pullback.errors import ArgumentError
from pullback.trajectory import (
    Limits,
    Motion,
    State,
    free,
    hold,
    minimum_acceleration,
    minimum_jerk,
    minimum_time,
    rest,
)

POWERS = {"position": 0, "velocity": 1, "acceleration": 2, "jerk": 3}
# What a linear program is to find out, of the sides of ranges that are not where an end lies.
MOST, LEAST = 50.0, 0.02
# Of the width of a range: what rounding makes of the values of a motion.
ROUNDING = 1e-8


class UnsolvedError(Exception):
    """The linear program was solved by no method."""


class Task:
    """A random one: a joint through points, with ranges that end where its ends lie.

    ``ranges[kind]`` has both ends of a range, and whether a factor widens them.
    """

    def __init__(self, seed: int) -> None:
        self.random = random = np.random.default_rng(seed)
        self.samples = int(
            random.choice([32, 33, 47, 64, 96, 128, 256], p=[0.2] * 4 + [0.1, 0.05, 0.05])
        )
        self.duration = float(random.uniform(0.5, 3))
        self.forward = random.random() < 0.6
        count = int(random.choice([2, 3, 4], p=[0.6, 0.25, 0.15]))
        gaps = random.uniform(0.2, 1.0, count - 1)
        signs = 1.0 if self.forward else random.choice([-1.0, 1.0], count - 1)
        self.points = np.append(0.0, np.cumsum(gaps * signs)) + random.choice([0.0, 0.7])
        self.times = self.duration * self.places(count)
        self.ranges: dict[str, tuple[tuple[float, bool], tuple[float, bool]]] = {}
        speed = np.abs(np.diff(self.points) / np.diff(self.times)).max()
        sizes = {
            kind: speed * 4 ** (n - 1) / self.duration ** (n - 1) for kind, n in POWERS.items()
        }
        self.choose(sizes)
        self.between = bool("position" in self.ranges and random.random() < 0.5)
        self.start, self.goal = self.end(), self.end()
        gaps = np.diff(self.times) / self.duration * (self.samples - 1)
        for end, index in ((self.start, 0), (self.goal, -1)):
            if gaps[index] < 1.2:  # points that are met with a jerk beside them need more
                end.pop("jerk", None)
        self.minimum = minimum_acceleration if random.random() < 0.3 else minimum_jerk
        if count + sum(name != "jerk" for name in (*self.start, *self.goal)) < 3:
            self.start = dict.fromkeys(("velocity", "acceleration"), 0.0)

    def places(self, count: int) -> np.ndarray:
        """When points are met, as parts of the duration; some on samples beside an end."""
        inner = (np.arange(1, count - 1) + self.random.uniform(-0.3, 0.3, count - 2)) / (count - 1)
        if count > 2 and self.random.random() < 0.3:
            inner[0] = self.random.choice([1, 2, 3, 1.5, 2.3]) / (self.samples - 1)
        if count > 3 and self.random.random() < 0.3:
            inner[-1] = 1 - self.random.choice([1, 2, 3, 1.7]) / (self.samples - 1)
        return np.concatenate([[0.0], inner, [1.0]])

    def choose(self, sizes: dict[str, float]) -> None:
        """Ranges, each end either where the motion begins or to be widened."""
        random = self.random
        for kind, size in sizes.items():
            if kind != "position" and random.random() < 0.55:
                lower, upper = -size * random.uniform(0.5, 2), size * random.uniform(0.5, 2)
                one_sided = self.forward and kind == "velocity" and random.random() < 0.6
                one_sided = one_sided or random.random() < 0.1
                self.ranges[kind] = (0.0, False) if one_sided else (lower, True), (upper, True)
        if "velocity" in self.ranges and self.forward and random.random() < 0.1:
            self.ranges["velocity"] = (0.1 * sizes["velocity"], False), self.ranges["velocity"][1]
        if random.random() < 0.6 or not self.ranges:
            low, high = self.points.min(), self.points.max()
            room = random.choice([0.0, 0.0, 0.3], 2) * (high - low)
            inner = self.points[1:-1]
            if inner.size and (low in inner or high in inner):
                room = np.maximum(room, 0.1)
            self.ranges["position"] = (low - room[0], False), (high + room[1], False)
        if not set(self.ranges) - {"position"}:
            kind = str(random.choice(["velocity", "acceleration", "jerk"]))
            self.ranges[kind] = (-sizes[kind], True), (sizes[kind], True)

    def end(self) -> dict[str, float]:
        """Rest, hold or some of their parts: at zero, on a fixed edge, or anything small."""
        random = self.random
        names = ["velocity", "acceleration", "jerk"]
        often = random.random()
        if often < 0.75:
            names = names[: 2 + int(often < 0.45)]
        else:
            names = [name for name in names if random.random() < 0.6]
        parts = dict.fromkeys(names, 0.0)
        for name in names:
            (lower, loose), (upper, _) = self.ranges.get(name, ((-1.0, True), (1.0, True)))
            if not loose:
                parts[name] = lower
            if random.random() < 0.12:
                parts[name] = random.uniform(0, 0.3) * random.choice([lower, upper])
        return parts

    def limits(self, factor: float) -> Limits:
        ends = {
            kind: tuple(value * (factor if loose else 1.0) for value, loose in pair)
            for kind, pair in self.ranges.items()
        }
        return Limits(**ends, between=self.between)

    def plan(self, factor: float) -> tuple[Motion | None, str]:
        points = torch.from_numpy(self.points)[:, None]
        ends = {"start": State(**self.start), "goal": State(**self.goal)}
        try:
            found = self.minimum(
                points,
                self.times.tolist(),
                limits=self.limits(factor),
                samples=self.samples,
                **ends,
            )
        except ArgumentError as error:
            return None, error.what
        return found, ""

    def excess(self, motion: Motion, factor: float) -> float:
        """How far a motion is beyond its limits at most, as a part of their widths."""
        limits, h = self.limits(factor), float(motion.dt)
        p, v, a, j = (getattr(motion, kind).squeeze(-1) for kind in POWERS)
        values = {
            "position": [p, p[:-1] + v[:-1] * h / 3, p[1:] - v[1:] * h / 3][: 1 + 2 * self.between],
            "velocity": [v[[0, -1]], v[:-1] + a[:-1] * h / 2],
            "acceleration": [a],
            "jerk": [j[:-1]],
        }
        worst = 0.0
        for kind in limits.given:
            lower, upper = getattr(limits, kind)
            value = torch.cat(values[kind])
            beyond = max(float(value.max()) - upper, lower - float(value.min()))
            worst = max(worst, beyond / (upper - lower))
        return worst

    def verdict(self, factor: float) -> bool | None:
        """Whether the limits can be kept, by what is said; nothing where that is not decided."""
        motion, why = self.plan(factor)
        if motion is None:
            undecided = "not decided" in why or "so little room" in why
            assert undecided or "cannot be met" in why or "exceeds its limit" in why, why
            return None if undecided else False
        assert self.excess(motion, factor) < ROUNDING
        return True

    def verdicts(self) -> list[tuple[float, bool, bool | None]]:
        """Factors, whether limits can be kept with them, and what is said."""
        least = least_factor(self)
        if least is None:
            tried = [(1.0, False), (0.99 * MOST, False)]
        elif least < 1.01 * LEAST:
            tried = [(1.0, True)]
        else:
            tried = [(1.001 * least, True), (0.999 * least, False), (1.05 * least, True)]
        return [(factor, kept, self.verdict(factor)) for factor, kept in tried]

    def __repr__(self) -> str:
        shown = {name: value for name, value in vars(self).items() if name != "random"}
        return str(shown)


def state_rows(samples: int) -> dict[str, scipy.sparse.csr_matrix]:
    """What is limited, as rows over ``(p, v, a)`` of each sample and the jerk of each step.

    A step lasts one.
    """
    eye = scipy.sparse.identity(3 * samples + samples - 1, format="csr")
    p, v, a = (eye[d : 3 * samples : 3] for d in range(3))
    return {
        "position": p,
        "velocity": scipy.sparse.vstack([v[[0, -1]], v[:-1] + a[:-1] / 2]),
        "acceleration": a,
        "jerk": eye[3 * samples :],
        "between": scipy.sparse.vstack([p[:-1] + v[:-1] / 3, p[1:] - v[1:] / 3]),
    }


def conditions(task: Task) -> tuple[scipy.sparse.csr_matrix, np.ndarray]:
    """The dynamics, the points and the ends."""
    samples, rows = task.samples, state_rows(task.samples)
    eye = scipy.sparse.identity(4 * samples - 1, format="csr")
    p, v, a = (eye[d : 3 * samples : 3] for d in range(3))
    j = rows["jerk"]
    matrices = [
        p[:-1] + v[:-1] + a[:-1] / 2 + j / 6 - p[1:],
        v[:-1] + a[:-1] + j / 2 - v[1:],
        a[:-1] + j - a[1:],
    ]
    values = [np.zeros(3 * samples - 3)]
    step = task.duration / (samples - 1)
    for time, point in zip(task.times, task.points, strict=True):
        place = time / step
        k = min(int(place + 1e-9), samples - 2)
        s = place - k
        matrices.append(p[[k]] + s * v[[k]] + s**2 / 2 * a[[k]] + s**3 / 6 * j[[k]])
        values.append(point)
    for end, sample, state in ((0, 0, task.start), (-1, samples - 1, task.goal)):
        for kind, value in state.items():
            row = j[[end]] if kind == "jerk" else (v if kind == "velocity" else a)[[sample]]
            matrices.append(row)
            values.append(value * step ** POWERS[kind])
    return scipy.sparse.vstack(matrices), np.hstack(values)


def least_factor(task: Task) -> float | None:
    """The least factor of what may be widened, or none where none would do."""
    rows, step = state_rows(task.samples), task.duration / (task.samples - 1)
    less, most, widths = [], [], []
    for kind, pair in task.ranges.items():
        for name in (kind, "between") if kind == "position" and task.between else (kind,):
            matrix, unit = rows[name], step ** POWERS[kind]
            for sign, (value, loose) in zip((-1, 1), pair, strict=True):
                # In parts of what the range allows, so that the tolerances of the program are too.
                size = (abs(pair[1][0]) + abs(pair[0][0])) * unit
                less.append(sign * matrix / size)
                most.append(np.full(matrix.shape[0], 0.0 if loose else sign * value * unit / size))
                widths.append(np.full(matrix.shape[0], -sign * value * unit / size * loose))
    matrix, values = conditions(task)
    program = {
        "c": np.eye(matrix.shape[1] + 1)[-1],
        "A_ub": scipy.sparse.hstack([scipy.sparse.vstack(less), np.hstack(widths)[:, None]]),
        "b_ub": np.hstack(most),
        "A_eq": scipy.sparse.hstack([matrix, np.zeros((len(values), 1))]),
        "b_eq": values,
        "bounds": [(None, None)] * matrix.shape[1] + [(LEAST, MOST)],
    }
    # What is not solved by one method is by another.
    for method, tolerance in (("highs", 1e-10), ("highs", 1e-7), ("highs-ipm", 1e-8)):
        names = ("primal_feasibility_tolerance", "dual_feasibility_tolerance")
        solved = scipy.optimize.linprog(
            **program, method=method, options=dict.fromkeys(names, tolerance)
        )
        if solved.status in (0, 2):
            break
    if solved.status not in (0, 2):  # one of 400
        raise UnsolvedError(solved.message)
    return float(solved.x[-1]) if solved.status == 0 else None


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(examples(15)))
def test_refused_if_and_only_if_no_motion_keeps_the_limits(seed: int) -> None:
    task = Task(seed)
    assert all(said is kept for _, kept, said in task.verdicts()), (seed, task)


@pytest.mark.slow  # the test before tries the same programs, and takes no refusal to decide
@settings(max_examples=examples(10), deadline=None)
@given(seed=st.integers(0, 2**31))
def test_nothing_wrong_is_said(seed: int) -> None:
    task, verdicts = Task(seed), []
    try:
        verdicts = task.verdicts()
    except UnsolvedError:
        assume(False)
    assert all(said in (kept, None) for _, kept, said in verdicts), (seed, task)


LINE = torch.tensor([[0.0], [1.0]], dtype=torch.float64)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("samples", [8, 33, 256, 1024])
@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("end", [rest, hold], ids=["rest", "hold"])
def test_a_range_that_begins_and_ends_where_the_motion_does(
    samples: int, between: bool, end: State
) -> None:
    ends = {"start": end, "goal": end, "samples": samples}
    plain = minimum_jerk(LINE, 1.0, **ends)
    forward = Limits(velocity=(0.0, 4.0), position=(0.0, 1.0), between=between)
    torch.testing.assert_close(minimum_jerk(LINE, 1.0, limits=forward, **ends).jerk, plain.jerk)
    tight = Limits(velocity=(0.0, 1.5), position=(0.0, 1.0), between=between)
    if samples > 8:
        kept = minimum_jerk(LINE, 1.0, limits=tight, **ends)
        assert -1e-12 <= kept.velocity.min() <= kept.velocity.max() <= 1.5
        assert -1e-12 <= kept.position.min() <= kept.position.max() <= 1 + 1e-12


def test_all_that_ends_decide_is_looked_at() -> None:
    # The second velocity within the motion is a jerk of the start away from its first one.
    pushed = State(velocity=0.0, acceleration=0.0, jerk=-1.0)
    with pytest.raises(ArgumentError, match="velocity within 2 steps of the start") as caught:
        minimum_jerk(LINE, 1.0, start=pushed, limits=Limits(velocity=(0.0, 9.0)), samples=11)
    assert "0.01 beyond the limit" in str(caught.value)
    late = State(velocity=0.0, acceleration=0.0, jerk=-600.0)
    with pytest.raises(ArgumentError, match="position within a step of the goal"):
        minimum_jerk(LINE, 1.0, goal=late, limits=Limits(position=(0.0, 1.05)), samples=11)
    # In a graph there are no values to look at: the solver says it.
    run = torch.compile(
        lambda jerk: minimum_jerk(
            LINE,
            1.0,
            start=State(velocity=0.0, acceleration=0.0, jerk=jerk),
            limits=Limits(velocity=(0.0, 9.0), jerk=99.0),
            samples=11,
        ).jerk[0],
        backend="eager",
        fullgraph=True,
    )
    assert run(torch.tensor(0.0, dtype=torch.float64)).abs() < 1e-20
    for broken in (-1.0, 100.0):
        with pytest.raises(ArgumentError, match="cannot be met"):
            run(torch.tensor(broken, dtype=torch.float64))


def test_what_points_near_an_end_decide() -> None:
    # Points on each sample decide all positions, and from rest on the velocities between them.
    still = torch.tensor([0.0, 0.0, 0.0, 0.4, 1.0], dtype=torch.float64)[:, None]
    times = [0.0, 0.1, 0.2, 0.6, 1.0]
    forward = Limits(velocity=(0.0, 9.0), position=(0.0, 1.0))
    found = minimum_jerk(still, times, limits=forward, samples=11)
    assert found.velocity.min() >= -1e-12
    still[1] = 0.001
    with pytest.raises(ArgumentError, match="velocity within 3 steps of the start"):
        minimum_jerk(still, times, limits=forward, samples=11)
    every = torch.tensor([0.0, 0.3, 0.1, 0.5, 0.2, 1.0], dtype=torch.float64)[:, None]
    both = Limits(velocity=1.0, position=(0.0, 1.0))
    with pytest.raises(ArgumentError, match="limit on velocity cannot be met"):
        minimum_jerk(every, 1.0, start=free, goal=free, limits=both, samples=6)


def test_a_point_that_contradicts_an_end_is_refused() -> None:
    # Position, velocity, acceleration and jerk of an end are those of a step: a point on it is met
    # by chance alone, and just after it by a jerk beyond all digits.
    through = torch.tensor([[0.0], [0.5], [1.0]], dtype=torch.float64)
    for away in (1.0, 1.001):
        for ends in ({"start": hold}, {"goal": hold}):
            place = away / 16 if "start" in ends else 1 - away / 16
            with pytest.raises(ArgumentError, match="too near an end") as caught:
                minimum_jerk(through, [0.0, place, 1.0], samples=17, **ends)
        assert "samples=19" in str(caught.value)
    met = minimum_jerk(through, [0.0, 1.0 / 16, 1.0], start=hold, samples=19)
    p, v, a, j = (getattr(met, kind)[1].item() for kind in POWERS)
    s = 1.0 / 16 - float(met.dt)
    assert p + s * (v + s / 2 * (a + s / 3 * j)) == pytest.approx(0.5, abs=1e-7)


def test_points_beyond_their_limit_are_refused_in_the_least_time() -> None:
    # On a sample, whose neighbours are within.
    through = torch.tensor([[0.0], [1.0], [0.0]], dtype=torch.float64)
    with pytest.raises(ArgumentError, match="position of a point exceeds its limit"):
        minimum_time(through, Limits(velocity=1.0, position=(-1.0, 0.9999)), samples=33)
