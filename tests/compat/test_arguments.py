"""What is no argument of the published names that make matrices and formats is refused by name."""

import pytest
import torch
from tests.arguments import Call, wrong_answers

from pullback.compat import curobo
from pullback.compat import unit_scaling as us
from pullback.errors import ArgumentError, ArgumentTypeError

ARGS = torch.ones(1)
PLACE = {"device": "cpu", "dtype": torch.float32}
SWITCHES = ("PREV_STATE", "FULL_RANK", "SHIFT")


def call(function, /, also=None, free="", **given):
    return lambda: Call(function, given, also or {}, free)


CALLS = {
    "FPFormat": call(
        us.FPFormat, exponent_bits=4, mantissa_bits=3, rounding="stochastic", srbits=2
    ),
    "action_interpolate_kernel": call(
        curobo.action_interpolate_kernel, h=3, int_steps=8, tensor_args=ARGS, offset=1
    ),
    "build_clique_matrix": call(
        curobo.build_clique_matrix, horizon=3, dt=torch.ones(3), **PLACE, free="horizon device"
    ),
    "build_fd_matrix": call(
        curobo.build_fd_matrix,
        horizon=5,
        **PLACE,
        order=1,
        FULL_RANK=True,
        SHIFT=False,
        free="device",
    ),
    "build_int_matrix": call(
        curobo.build_int_matrix,
        horizon=3,
        diagonal=0,
        **PLACE,
        order=1,
        traj_dt=torch.ones(3),
        also={"diagonal": "negative", "traj_dt": "none"},
        free="horizon device",
    ),
    "build_start_state_mask": call(curobo.build_start_state_mask, horizon=3, tensor_args=ARGS),
    "interpolate_kernel": call(curobo.interpolate_kernel, h=3, int_steps=8, tensor_args=ARGS),
    "sum_matrix": call(curobo.sum_matrix, h=3, int_steps=8, tensor_args=ARGS),
    "tensor_linspace": call(
        curobo.tensor_linspace, start_tensor=ARGS, end_tensor=2 * ARGS, steps=3
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_refused_by_its_name(name):
    right = CALLS[name]()
    right.function(**right.given)  # it is right otherwise
    assert list(wrong_answers(CALLS[name])) == []


@pytest.mark.parametrize(
    "arguments",
    [
        *[(4.0, 3), (4, 3.0), (True, 3), (20, 3), (12, 3), (1, 3), (4, -1), (4, 24)],
        *[(4, 3, "up"), (4, 3, "nearest", 2), (4, 3, "stochastic", 21)],
    ],
)
def test_a_format_that_is_none(arguments):
    with pytest.raises(ArgumentError):
        us.FPFormat(*arguments)


@pytest.mark.parametrize("exponent_bits", range(2, 12))
@pytest.mark.parametrize("mantissa_bits", [0, 3, 23])
def test_every_format_has_its_values(exponent_bits, mantissa_bits):
    known = us.FPFormat(exponent_bits, mantissa_bits, "nearest")
    bias = 2 ** (exponent_bits - 1)
    assert known.max_absolute_value == 2.0 ** (bias - 1) * (2 - 2.0**-mantissa_bits)
    assert known.min_absolute_normal == 2.0 ** (1 - bias)
    assert known.min_absolute_subnormal == 2.0 ** (1 - bias - mantissa_bits) > 0


@pytest.mark.parametrize(
    "given",
    [
        {"order": 2, "FULL_RANK": True},
        *({one: True, other: True} for one in SWITCHES for other in SWITCHES if one < other),
    ],
)
def test_a_matrix_of_differences_that_is_not_there(given):
    with pytest.raises(ArgumentError, match="no such matrix"):
        curobo.build_fd_matrix(5, **given)


@pytest.mark.parametrize("dt", [torch.ones(4), torch.ones(3, 3), torch.ones(())])
def test_steps_of_another_length(dt):
    with pytest.raises(ArgumentError, match="does not fit"):
        curobo.build_int_matrix(3, traj_dt=dt)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("name", ["CliqueTensorStepKernel", "AccelerationTensorStepKernel"])
def test_actions_are_floating(name, dtype):
    starts = [torch.zeros(2, 3) for _ in range(3)]
    rate = torch.full((8,), 10.0)
    with pytest.raises(ArgumentTypeError, match="no floating numbers"):
        getattr(curobo, name).apply(
            torch.ones(2, 8, 3).to(dtype), *starts, None, None, None, None, rate, None
        )
