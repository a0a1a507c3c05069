"""Exactness, boundaries, order of accuracy and floating-point care of `differentiate`."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzzing import examples

from pullback.trajectory import State, differentiate, free, hold, rest

EXACT = {"central": (2, 3, 4), "backward": (1, 2, 3)}
LEAST = {"central": 5, "backward": 4}
STARTS = [free, rest, State(0.0), State(velocity=0.0), State(acceleration=0.0), State(jerk=0.0)]
STARTS += [hold, State(0.0, 0.0, 0.0, 0.0), State(velocity=0.0, jerk=0.0)]


def polynomial(times, powers, derivative=0):
    """sum of powers[n] * t^n, differentiated; [..., horizon, dof]."""
    total = torch.zeros(*times.shape, powers.shape[-1], dtype=times.dtype)
    for n in range(derivative, powers.shape[0]):
        factor = 1.0
        for m in range(n - derivative + 1, n + 1):
            factor *= m
        total = total + factor * times[..., None] ** (n - derivative) * powers[n]
    return total


def state_at(like, times, powers, index):
    values = [polynomial(times, powers, k)[..., index, :] for k in range(4)]
    chosen = [
        None if getattr(like, name) is None else value
        for name, value in zip(
            ("position", "velocity", "acceleration", "jerk"), values, strict=False
        )
    ]
    return State(*chosen)


def steps_of(kind, horizon, generator):
    if kind == "number":
        return 0.3
    if kind == "scalar":
        return torch.tensor(0.3, dtype=torch.float64)
    shape = (horizon - 1,) if kind == "steps" else (2, horizon - 1)
    return 0.2 + 0.2 * torch.rand(shape, generator=generator, dtype=torch.float64)


def times_of(dt, horizon):
    if isinstance(dt, float) or dt.ndim == 0:
        return torch.arange(horizon, dtype=torch.float64) * float(dt)
    return torch.nn.functional.pad(dt.cumsum(-1), (1, 0))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("scheme", ["central", "backward"])
@pytest.mark.parametrize("kind", ["number", "scalar", "steps", "trajectories"])
@pytest.mark.parametrize("boundary", range(len(STARTS)))
def test_polynomials_are_exact_ends_included(scheme, kind, boundary):
    generator = torch.Generator().manual_seed(boundary)
    for horizon in (LEAST[scheme], LEAST[scheme] + 1, 12):
        for derivative, degree in enumerate(EXACT[scheme], start=1):
            dt = steps_of(kind, horizon, generator)
            powers = torch.randn(degree + 1, 3, generator=generator, dtype=torch.float64)
            times = times_of(dt, horizon)
            x = polynomial(times, powers).expand(2, -1, -1)
            start = state_at(STARTS[boundary], times, powers, 0)
            goal = state_at(STARTS[-1 - boundary], times, powers, -1)
            motion = differentiate(x, dt, start=start, goal=goal, scheme=scheme)
            got = (motion.velocity, motion.acceleration, motion.jerk)[derivative - 1]
            want = polynomial(times, powers, derivative).expand(2, -1, -1)
            scale = powers.abs().max() + want.abs().max()
            assert (got - want).abs().max() <= 1e-10 * scale, (horizon, derivative)


@pytest.mark.parametrize("scheme", ["central", "backward"])
def test_given_values_hold_at_the_ends(scheme):
    x = torch.randn(3, 8, 2, dtype=torch.float64)
    start = State(*(torch.randn(2, dtype=torch.float64) for _ in range(4)))
    goal = State(*(torch.randn(3, 2, dtype=torch.float64) for _ in range(4)))
    motion = differentiate(x, 0.1, start=start, goal=goal, scheme=scheme)
    for name in ("position", "velocity", "acceleration", "jerk"):
        got = getattr(motion, name)
        assert torch.equal(got[:, 0], getattr(start, name).expand(3, 2)), name
        assert torch.equal(got[:, -1], getattr(goal, name)), name
    assert torch.equal(motion.position[:, 1:-1], x[:, 1:-1])


KNOWN = [(), ("velocity",), ("velocity", "acceleration")]
KNOWN += [("velocity", "acceleration", "jerk"), ("position", "velocity", "acceleration", "jerk")]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("scheme", ["central", "backward"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize("known", KNOWN)
def test_constant_motions_have_no_artefacts(scheme, dtype, steps, known):
    # Times in quarters are exact, so what is not zero would be an artefact and no rounding.
    dt = torch.full((15,), 0.25, dtype=dtype) if steps else 0.25
    time = torch.arange(16, dtype=dtype)[:, None] / 4
    still = torch.zeros_like(time)
    motions = {
        "position": (still + 2.5, still, still, still),
        "velocity": (2 * time + 1, still + 2, still, still),
        "acceleration": (time**2 + 3, 2 * time, still + 2, still),
    }
    for constant, parts in motions.items():
        truth = dict(zip(("position", "velocity", "acceleration", "jerk"), parts, strict=True))
        start, goal = (State(**{name: truth[name][end] for name in known}) for end in (0, -1))
        motion = differentiate(truth["position"], dt, start=start, goal=goal, scheme=scheme)
        for name, part in truth.items():
            # Velocity by the past alone is exact on lines, as its table says.
            if (scheme, constant, name) == ("backward", "acceleration", "velocity"):
                continue
            wrong = (getattr(motion, name) - part).abs().max()
            # Weights for unequal steps come from a solve, which rounds in float64.
            solved = steps and dtype == torch.float64 and name == "jerk"
            rounding = torch.finfo(dtype).eps * truth["position"].abs().max() / 0.25**3
            assert wrong <= (rounding if solved else 0), (constant, name)


@pytest.mark.parametrize("scheme", ["central", "backward"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ends", [free, rest, hold])
def test_standing_still_is_exact_at_any_step(scheme, dtype, ends):
    x = torch.full((9, 2), 0.1, dtype=dtype)
    steps = 0.01 + 0.1 * torch.rand(8, dtype=dtype)
    for dt in (0.013, steps):
        still = differentiate(x, dt, start=ends, goal=ends, scheme=scheme)
        for part in (still.velocity, still.acceleration, still.jerk):
            assert torch.equal(part, torch.zeros_like(part))


@pytest.mark.parametrize(("scheme", "slope"), [("central", 2), ("backward", 1)])
@pytest.mark.parametrize("boundary", [free, rest])
def test_errors_fall_with_the_order_of_the_scheme(scheme, slope, boundary):
    errors = []
    for horizon in (65, 129, 257):
        time = torch.linspace(0.3, 1.3, horizon, dtype=torch.float64)
        x = torch.sin(3 * time)[:, None]
        start = goal = free
        if boundary is rest:
            start, goal = (
                State(velocity=3 * torch.cos(3 * t)[None], acceleration=-9 * torch.sin(3 * t)[None])
                for t in (time[0], time[-1])
            )
        motion = differentiate(x, 1 / (horizon - 1), start=start, goal=goal, scheme=scheme)
        truth = (3 * torch.cos(3 * time), -9 * torch.sin(3 * time), -27 * torch.cos(3 * time))
        parts = (motion.velocity, motion.acceleration, motion.jerk)
        # The samples next to an end included.
        errors.append(
            [(a[:, 0] - b).abs().max().item() for a, b in zip(parts, truth, strict=False)]
        )
    for order in range(3):
        ratio = errors[0][order] / errors[-1][order]
        assert ratio >= 4 ** (slope - 0.12), (order, errors)


def test_jerk_noise_of_offsets_in_float32():
    dt = 1e-3
    time = torch.arange(0, 2, dt, dtype=torch.float64)
    swing = 0.2 * torch.sin(2 * torch.pi * time)
    truth = (-0.2 * (2 * torch.pi) ** 3 * torch.cos(2 * torch.pi * time))[3:-3]
    absolute = (2.5 + swing).float()
    rate = torch.tensor(1 / dt)
    nested = absolute
    for _ in range(3):
        nested = nested.diff() * rate
    nested_noise = (nested[2:-1] - truth).abs().max()
    motion = differentiate(swing.float()[:, None], dt, reference=2.5)
    noise = (motion.jerk[3:-3, 0] - truth).abs().max()
    assert noise * 5 <= nested_noise, (noise, nested_noise)
    torch.testing.assert_close(motion.position[:, 0], absolute)
    # Beyond the rounding of the samples themselves, the arithmetic adds next to nothing.
    exact = differentiate(absolute.double()[:, None], dt).jerk
    ours = differentiate(absolute[:, None], dt).jerk
    assert (ours - exact).abs().max() < 1.0


def test_reference_shifts_positions_and_states_alone():
    x = torch.randn(7, 2, dtype=torch.float64)
    base = torch.randn(2, dtype=torch.float64)
    start = State(position=torch.randn(2, dtype=torch.float64), velocity=0.0)
    whole = differentiate(x + base, 0.1, start=start)
    split = differentiate(x, 0.1, start=start, reference=base)
    for name in ("position", "velocity", "acceleration", "jerk"):
        torch.testing.assert_close(getattr(whole, name), getattr(split, name))


def test_start_index_gathers_and_its_gradient_adds_up():
    x = torch.randn(5, 6, 2, dtype=torch.float64)
    table = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    index = torch.tensor([2, 0, 2, 2, 0])
    motion = differentiate(x, 0.2, start=State(table, table), start_index=index)
    same = differentiate(x, 0.2, start=State(table[index], table[index]))
    torch.testing.assert_close(motion.jerk, same.jerk, rtol=0, atol=0)
    motion.jerk.square().sum().backward()
    [want] = torch.autograd.grad(same.jerk.square().sum(), table)
    torch.testing.assert_close(table.grad, want)
    assert torch.equal(table.grad[1], torch.zeros(2, dtype=torch.float64))


@settings(max_examples=examples(40), deadline=None)
@given(
    st.integers(0, 2**31), st.sampled_from(["central", "backward"]), st.integers(5, 30),
    st.booleans(), st.integers(0, len(STARTS) - 1),
)  # fmt: skip
def test_stretching_time_scales_derivatives(seed, scheme, horizon, uniform, boundary):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, horizon, 3, generator=generator, dtype=torch.float64)
    dt = 0.1 + torch.rand(horizon - 1, generator=generator, dtype=torch.float64)
    dt = dt[0] if uniform else dt
    start = STARTS[boundary]
    one = differentiate(x, dt, start=start, scheme=scheme)
    slow = differentiate(x, 2 * dt, start=start, scheme=scheme)
    torch.testing.assert_close(one.velocity, 2 * slow.velocity)
    torch.testing.assert_close(one.acceleration, 4 * slow.acceleration)
    torch.testing.assert_close(one.jerk, 8 * slow.jerk)


@pytest.mark.parametrize("shape", [(0, 6, 2), (3, 6, 0), (6, 1), (2, 3, 6, 2)])
def test_odd_shapes(shape):
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    motion = differentiate(x, 0.1, start=rest)
    assert motion.jerk.shape == x.shape
    motion.jerk.sum().backward()
    assert x.grad.shape == x.shape


def test_strides_do_not_matter():
    x = torch.randn(4, 3, 9, dtype=torch.float64).permute(1, 2, 0)
    a, b = differentiate(x, 0.1), differentiate(x.contiguous(), 0.1)
    assert torch.equal(a.jerk, b.jerk)
    one = torch.randn(1, 7, 2, dtype=torch.float64).expand(4, 7, 2)
    assert torch.equal(differentiate(one, 0.1).jerk[3], differentiate(one[0], 0.1).jerk)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_storage_is_computed_in_float32(dtype):
    x = torch.randn(2, 9, 3).to(dtype).requires_grad_()
    motion = differentiate(x, 0.25, start=rest)
    wide = differentiate(x.detach().float(), 0.25, start=rest)
    assert motion.jerk.dtype == dtype
    assert torch.equal(motion.jerk, wide.jerk.to(dtype))
    motion.velocity.sum().backward()
    assert x.grad.dtype == dtype


def test_two_forwards_then_two_backwards():
    one = torch.randn(2, 8, 3, dtype=torch.float64, requires_grad=True)
    two = torch.randn(2, 8, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 8, 3, dtype=torch.float64)
    a, b = (differentiate(x, 0.1, start=rest).jerk for x in (one, two))
    (b * weight).sum().backward()
    (a * 2 * weight).sum().backward()
    torch.testing.assert_close(one.grad, 2 * two.grad)
    alone = torch.randn(2, 8, 3, dtype=torch.float64, requires_grad=True)
    (differentiate(alone, 0.1, start=rest).jerk * weight).sum().backward()
    torch.testing.assert_close(alone.grad, two.grad)


def test_a_table_of_starts_may_be_a_list():
    x, index = torch.zeros(2, 6, 2, dtype=torch.float64), torch.tensor([1, 0])
    rows = [[0.0, 1.0], [2.0, 3.0]]
    found = differentiate(x, 0.25, start=State(velocity=rows), start_index=index)
    assert found.velocity[:, 0].tolist() == rows[::-1]
