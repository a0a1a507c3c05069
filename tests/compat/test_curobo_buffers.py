"""cuRobo's out buffers: refused by name before anything is written, or filled with the result."""

from types import SimpleNamespace

import pytest
import torch

from pullback.compat import curobo
from pullback.errors import ArgumentError, ArgumentTypeError

F64 = {"dtype": torch.float64}
START, RATE = torch.zeros(2, 3, **F64), torch.tensor([2.0], **F64)
NAMES = ("out_position", "out_velocity", "out_acceleration", "out_jerk")
KERNELS = [curobo.CliqueTensorStepKernel, curobo.AccelerationTensorStepKernel]


def act():
    return torch.randn(2, 5, 3, **F64)


def refused(error, *words, kernel=KERNELS[0], u=None, rate=RATE, **out):
    """No buffer and no input is written into where one is refused."""
    u = act() if u is None else u
    tensors = [part for part in (u, rate, *out.values()) if isinstance(part, torch.Tensor)]
    before = [part.clone() for part in tensors]
    with pytest.raises(error) as raised:
        kernel.apply(u, START, START, START, *(out.get(name) for name in NAMES), rate, None)
    assert all(word in str(raised.value) for word in words), raised.value
    assert all(map(torch.equal, tensors, before))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("place", NAMES)
def test_memory_of_an_input(kernel, place):
    u = act()
    for buffer in (u, u[:], u.view(2, 5, 3), u.view(torch.int64).view(torch.float64)):
        refused(
            ArgumentError, place, "shares memory with u_act", kernel=kernel, u=u, **{place: buffer}
        )
    pool = torch.ones(31, **F64)
    refused(
        ArgumentError,
        "shares memory with traj_dt",
        kernel=kernel,
        rate=pool[:1],
        **{place: pool[:30].view(2, 5, 3)},
    )


def test_memory_of_a_table():
    table, index = torch.randn(10, 3, **F64), torch.tensor([3, 1])
    buffers = [table.view(2, 5, 3), None, None, None]
    with pytest.raises(ArgumentError, match="shares memory with start_velocity"):
        curobo.CliqueTensorStepIdxKernel.apply(
            act(), table.clone(), table, table.clone(), index, *buffers, RATE, None
        )


def test_memory_of_another_buffer_or_of_itself():
    one = act()
    refused(ArgumentError, "shares memory with out_jerk", out_velocity=one, out_jerk=one)
    pool = torch.zeros(45, **F64)
    near = [pool[i : i + 30].view(2, 5, 3) for i in (0, 15)]
    refused(ArgumentError, "shares memory", out_position=near[0], out_velocity=near[1])
    expanded = torch.zeros(1, 1, 3, **F64).expand(2, 5, 3)
    rolling = torch.zeros(30, **F64).as_strided((2, 5, 3), (3, 3, 1))
    for buffer in (expanded, rolling):
        refused(ArgumentError, "elements that share memory", out_jerk=buffer)


def test_a_late_buffer_is_checked_before_an_early_one_is_written():
    first = act()
    refused(ArgumentError, "out_jerk", "shape", out_position=first, out_jerk=act()[:, :4])
    refused(ArgumentTypeError, "out_jerk", "int64", out_position=first, out_jerk=act().long())
    refused(ArgumentTypeError, "out_jerk", "list", out_position=first, out_jerk=[1.0])


@pytest.mark.parametrize("kernel", KERNELS)
def test_slices_of_one_tensor_are_buffers(kernel):
    u = act()
    joined = torch.zeros(2, 5, 12, **F64)
    every = torch.zeros(2, 3, 5, 4, **F64).permute(0, 2, 1, 3)
    pool = torch.zeros(4, 2, 5, 3, **F64)
    for out in (joined.split(3, -1), every.unbind(-1), pool.unbind(), (u.clone(), *pool[1:])):
        values = kernel.apply(u, START, START, START, *out, RATE, None)
        assert all(map(torch.equal, values, out))


def test_steps_refuse_a_sequence_that_lies_in_their_inputs():
    state, sums = torch.zeros(2, 9, **F64), torch.ones(5, 5, **F64).tril()
    sequence = torch.randn(2, 5, 9, **F64)
    inside = sequence[..., 6:]
    kept = sequence.clone()
    steps = torch.ones(5, **F64)
    with pytest.raises(ArgumentError, match="state_seq shares memory with act"):
        curobo.tensor_step_jerk(state, inside, sequence, steps, 3, sums)
    with pytest.raises(ArgumentError, match="state_seq shares memory with act"):
        curobo.tensor_step_acc(state, inside, sequence, steps, 3, sums)
    with pytest.raises(ArgumentError, match="state_seq shares memory with act"):
        curobo.tensor_step_vel(state, inside, sequence, steps, 3, sums, sums)
    assert torch.equal(sequence, kept)
    u, joint = act(), SimpleNamespace(position=START, velocity=START, acceleration=START)
    given = SimpleNamespace(position=act(), velocity=u)
    before = given.position.clone()
    with pytest.raises(ArgumentError, match=r"state_seq.velocity shares memory with act"):
        curobo.tensor_step_pos(joint, u, given, sums)
    assert torch.equal(given.position, before)
