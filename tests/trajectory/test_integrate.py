"""What `integrate` promises: exactness, its methods, and that `differentiate` undoes it."""

import math

import pytest
import torch

from pullback.errors import ArgumentError
from pullback.trajectory import State, differentiate, integrate

ORDERS = ("velocity", "acceleration", "jerk")


def initial(level, shape=(2,)):
    generator = torch.Generator().manual_seed(level)
    return State(
        *(torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(level))
    )


@pytest.mark.parametrize("steps", [False, True])
def test_constant_controls_are_exact(steps):
    dt = torch.tensor([0.25, 0.5, 0.125, 1.0], dtype=torch.float64) if steps else 0.5
    time = torch.nn.functional.pad((torch.ones(4, dtype=torch.float64) * dt).cumsum(0), (1, 0))
    time = time[:, None]
    control = torch.full((4, 1), 3.0, dtype=torch.float64)
    start = State(1.0, 2.0)
    motion = integrate(control, dt, start=start)
    assert torch.equal(motion.velocity, 2 + 3 * time)
    assert torch.equal(motion.position, 1 + 2 * time + 1.5 * time**2)
    assert torch.equal(motion.acceleration, torch.full((5, 1), 3.0, dtype=torch.float64))
    assert torch.equal(motion.jerk, torch.zeros(5, 1, dtype=torch.float64))
    motion = integrate(control, dt, start=State(1.0, 2.0, 4.0), order="jerk")
    torch.testing.assert_close(motion.position, 1 + 2 * time + 2 * time**2 + time**3 / 2)
    motion = integrate(control, dt, start=State(1.0), order="velocity")
    assert torch.equal(motion.position, 1 + 3 * time)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("method", ["exact", "semi_implicit_euler", "euler"])
@pytest.mark.parametrize("kind", ["number", "steps", "trajectories"])
def test_methods_against_a_loop(order, method, kind):
    level = ORDERS.index(order) + 1
    control = torch.randn(3, 6, 2, dtype=torch.float64)
    shapes = {"number": (), "steps": (6,), "trajectories": (3, 6)}
    dt = 0.2 + torch.rand(shapes[kind], dtype=torch.float64)
    start = initial(level)
    motion = integrate(control, dt, start=start, order=order, method=method)
    got = (motion.position, motion.velocity, motion.acceleration, motion.jerk)
    state = [getattr(start, n).expand(3, 2) for n in ("position", *ORDERS)[:level]]
    every = dt.expand(3, 6)
    for h in range(6):
        for index, part in enumerate(state):
            torch.testing.assert_close(got[index][:, h], part)
        step, full = every[:, h, None], [*state, control[:, h]]
        new = list(state)
        for i in reversed(range(level)):
            if method == "exact":
                terms = [full[i + k] * step**k / (1, 1, 2, 6)[k] for k in range(level - i + 1)]
                new[i] = sum(terms)
            else:
                above = new[i + 1] if method != "euler" and i + 1 < level else full[i + 1]
                new[i] = full[i] + step * above
        state = new
    for index, part in enumerate(state):
        torch.testing.assert_close(got[index][:, 6], part)


def test_differentiate_undoes_integrate():
    control = torch.randn(2, 1, 3, dtype=torch.float64).expand(2, 9, 3)
    start = initial(3, (3,))
    motion = integrate(control, 0.1, start=start, order="jerk")
    back = differentiate(motion.position, 0.1)
    torch.testing.assert_close(back.jerk[:, :-1], control, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(back.acceleration, motion.acceleration, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes(dtype):
    control = torch.randn(2, 5, 3).to(dtype)
    motion = integrate(control, 0.25, start=State(0.0, 0.0))
    wide = integrate(control.double(), 0.25, start=State(0.0, 0.0))
    assert motion.position.dtype == dtype
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(
        motion.position.double(), wide.position, rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("shape", [(0, 4, 2), (2, 4, 0), (1, 1), (2, 3, 4, 2)])
def test_odd_shapes(shape):
    control = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    for dt in (0.1, torch.full(shape[:-1], 0.1)):
        motion = integrate(control, dt, start=State(0.0, 0.0))
        assert motion.position.shape == (*shape[:-2], shape[-2] + 1, shape[-1])
    motion.position.sum().backward()
    assert control.grad.shape == control.shape


def test_two_forwards_then_two_backwards():
    one, two = (torch.ones(3, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    a = integrate(one, 0.5, start=State(0.0, 0.0)).position
    b = integrate(two, 0.5, start=State(0.0, 0.0)).position
    b[-1].sum().backward()
    a[-1].sum().backward()
    want = torch.tensor([0.625, 0.375, 0.125], dtype=torch.float64)[:, None].expand(3, 2)
    torch.testing.assert_close(one.grad, want)
    torch.testing.assert_close(two.grad, want)


@pytest.mark.parametrize("order", ["velocity", "acceleration", "jerk"])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_long_sums_keep_the_digits_of_float32(order, backend):
    # Added up in float32, a hundred thousand steps lost three of seven digits.
    steps, degree = 100_000, ["velocity", "acceleration", "jerk"].index(order) + 1
    dt = torch.tensor(1e-3)
    control = torch.full((steps, 1), 0.3, requires_grad=True)
    start = State(**dict.fromkeys(["position", "velocity", "acceleration"][:degree], 0.0))
    motion = integrate(control, dt, start=start, order=order, backend=backend)
    end = steps * dt.double().item()
    expected = control[0].double().item() * end**degree / math.factorial(degree)
    assert motion.position[-1].item() == pytest.approx(expected, rel=1e-6)
    (gradient,) = torch.autograd.grad(motion.position[-1].sum(), control)
    assert gradient.double().sum().item() * 0.3 == pytest.approx(expected, rel=1e-6)


def test_without_joints_second_derivatives_are_zero():
    dt = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    control = torch.zeros(4, 0, dtype=torch.float64, requires_grad=True)
    position = integrate(control, dt, start=State(0.0, 0.0)).position
    [first] = torch.autograd.grad(position.sum() + dt**2, dt, create_graph=True)
    assert torch.autograd.grad(first, dt)[0].item() == 2.0


@pytest.mark.parametrize(
    ("order", "longest"), [("velocity", 3e38), ("acceleration", 1e19), ("jerk", 6e12)]
)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_step_whose_powers_are_not_held_is_refused(order, longest, as_tensor):
    # An infinite power times a control of zero is no number.
    control, start = torch.zeros(3, 1), initial(ORDERS.index(order) + 1, (1,))
    start = State(*(part.float() for part in (start.position, start.velocity, start.acceleration)
                    if part is not None))  # fmt: skip
    dt = torch.tensor(longest) if as_tensor else longest
    motion = integrate(control, dt, start=State(**dict.fromkeys(start.given, 0.0)), order=order)
    assert not motion.position.any()
    if order != "velocity":
        with pytest.raises(ArgumentError, match="dt must be positive"):
            integrate(control, 10 * dt, start=start, order=order)
