"""Kernels write every entry of what they return: it does not matter what the memory held."""

import pytest
import torch
from tests.trajectory.transposed import transpose
from torch.utils import deterministic

from pullback.errors import PullbackError
from pullback.trajectory import State, differentiate, integrate
from pullback.trajectory.kernels.accumulate import _cpu, _reference

ENDS = ("position", "velocity", "acceleration")


@pytest.fixture
def poisoned(monkeypatch):
    """Fresh memory is full of NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    monkeypatch.setattr(deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(before)


def random(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)


def gradients(motion, leaves):
    outputs = (motion.position, motion.velocity, motion.acceleration, motion.jerk)
    cotangents = [random(*output.shape).detach() for output in outputs]
    return [*outputs, *torch.autograd.grad(outputs, leaves, cotangents)]


@pytest.mark.parametrize("goal", range(4))
@pytest.mark.parametrize("start", range(4))
@pytest.mark.parametrize("scheme", ["central", "backward"])
def test_differences(poisoned, scheme, start, goal):
    ends = [{name: random(2, 3) for name in ENDS[:count]} for count in (start, goal)]
    states = [State(**end) if end else None for end in ends]
    position = random(2, 12, 3)
    leaves = [position, *ends[0].values(), *ends[1].values()]
    found = []
    for backend in ("cpu", "reference"):
        try:
            motion = differentiate(
                position, 0.1, scheme=scheme, start=states[0], goal=states[1], backend=backend
            )
        except PullbackError:
            pytest.skip("the scheme does not take such ends")
        found.append(gradients(motion, leaves))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("samples", [1, 7])
@pytest.mark.parametrize("order", ENDS[1:])
def test_sums(poisoned, order, samples):
    control = random(2, samples, 3)
    start = {name: random(2, 3) for name in ENDS[: ENDS.index(order)]}
    found = []
    for backend in ("cpu", "reference"):
        motion = integrate(control, 0.1, start=State(**start), order=order, backend=backend)
        found.append(gradients(motion, [control, *start.values()]))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected)


def guarded(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same values amid NaN, and all of that memory."""
    around = 80
    memory = torch.full((values.numel() + 2 * around,), torch.nan, dtype=values.dtype)
    inside = memory[around : around + values.numel()].view_as(values)
    return inside.copy_(values), memory


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dof", [1, 3, 7, 8, 15, 16, 17, 20, 40])
@pytest.mark.parametrize("horizon", [1, 2, 5, 33])
def test_sums_touch_their_own_memory_alone(dtype, dof, horizon):
    torch.manual_seed(dof + horizon)
    for order in (1, 2, 3):
        steps = torch.rand(1, 1, order, dtype=dtype)
        shapes = [(2, horizon, dof), (2, order, dof), *[(2, horizon + 1, dof)] * 4]
        given = [torch.randn(shape, dtype=dtype) for shape in shapes]
        control, initial, *levels = (guarded(values) for values in given)
        for forward in (True, False):
            _cpu._run_over_batch(
                control[0],
                initial[0],
                steps,
                [inside for inside, _ in levels],
                order,
                forward=forward,
            )
            written = levels if forward else [control, initial]
            if forward:
                expected = _reference.apply(*given[:2], steps, (order,))
            else:
                cotangents = tuple(inside.clone() for inside, _ in levels)
                expected = transpose(_reference, cotangents, steps, (order,))
            for (inside, memory), right in zip(written, expected, strict=True):
                allowed = 32 * torch.finfo(dtype).eps * right.abs().max().item()
                torch.testing.assert_close(inside, right, rtol=0, atol=allowed)
                assert memory.isnan().sum() == memory.numel() - inside.numel()
