"""The builders of dense matrices.

Everywhere ``horizon`` is the number of samples, ``device`` and ``dtype`` are those of the result,
or of ``tensor_args``, any object that has both; ``h`` is the number of values and ``int_steps``
that of samples between two of them. What cannot be used raises `ArgumentError`.
"""

from typing import Any

import torch
from torch import Tensor

from pullback.compat.curobo._shapes import check_shapes
from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal._arguments import Count, Natural, checked
from pullback.trajectory._checks import check_named_device

__all__ = [
    "action_interpolate_kernel",
    "build_clique_matrix",
    "build_fd_matrix",
    "build_int_matrix",
    "build_start_state_mask",
    "interpolate_kernel",
    "sum_matrix",
    "tensor_linspace",
]


def _place(tensor_args: Any) -> tuple[Any, torch.dtype]:
    device, dtype = (getattr(tensor_args, name, None) for name in ("device", "dtype"))
    if not isinstance(dtype, torch.dtype):
        raise ArgumentTypeError(
            "tensor_args says nothing of a device and a dtype.",
            given=f"a {type(tensor_args).__name__}",
            expected="any object that has both, such as a tensor",
        )
    check_named_device(device)
    return device, dtype


def _shift(horizon: int, device: Any, dtype: torch.dtype) -> Tensor:
    """Ones below the diagonal: row h takes sample h - 1, row 0 nothing."""
    return torch.eye(horizon, device=device, dtype=dtype).roll(1, 0).tril(-1)


@checked
def build_clique_matrix(
    horizon: Count, dt: Tensor, device: Any = "cpu", dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return shift, first difference / dt, and that / dt, stacked to ``[3 horizon, horizon]``.

    ``dt`` is ``[horizon]`` seconds.
    """
    check_named_device(device)
    check_shapes({"horizon": horizon}, dt=(dt, "horizon"))
    if not (dtype.is_floating_point or dtype.is_complex):
        raise ArgumentTypeError(
            "Rates are no whole numbers.", given=f"dtype={dtype}", expected="a floating dtype"
        )
    shift = _shift(horizon, device, dtype)
    rate = (1 / dt).to(device=device, dtype=dtype)[:, None]
    difference = torch.eye(horizon, device=device, dtype=dtype) - shift
    inner = torch.ones_like(rate)
    inner[0] = 0
    velocity = rate * inner * difference
    return torch.cat([shift, velocity, rate * velocity])


@checked
def build_fd_matrix(
    horizon: Count,
    device: Any = "cpu",
    dtype: torch.dtype = torch.float32,
    order: Count = 1,
    PREV_STATE: bool = False,
    FULL_RANK: bool = False,
    SHIFT: bool = False,
) -> Tensor:
    """Return the matrix of forward differences of an order, the power of that of the first.

    With ``PREV_STATE`` it is ``[horizon, horizon + order]``, negated, for samples that begin with
    ``order`` earlier ones. With ``FULL_RANK`` there are forward differences in the first half,
    backward ones in the second and a central one in the middle: of first order, and for an odd
    horizon from 3 on. ``SHIFT`` moves the rows down, so that they are backward differences with
    row 0 zero. One of the three at most: there, all but the first that is named are ignored.
    """
    check_named_device(device)
    if PREV_STATE + FULL_RANK + SHIFT > 1 or (FULL_RANK and order > 1):
        raise ArgumentError(
            "There is no such matrix of differences.",
            given=f"{order=}, {PREV_STATE=}, {FULL_RANK=}, {SHIFT=}",
            expected="one of the three at most, and order=1 with FULL_RANK",
        )
    if PREV_STATE:
        longer = build_fd_matrix(horizon + order, device, dtype, order)
        return -longer[:horizon]
    if FULL_RANK:
        return _full_rank(horizon, device, dtype)
    step = torch.eye(horizon, device=device, dtype=dtype)
    if SHIFT:
        first = step - _shift(horizon, device, dtype)
        first[0] = 0
    else:
        first = _shift(horizon, device, dtype).T - step
        first[-1] = 0
    return torch.linalg.matrix_power(first, order)


def _full_rank(horizon: int, device: Any, dtype: torch.dtype) -> Tensor:
    if horizon < 3 or horizon % 2 == 0:
        raise ArgumentError(
            "FULL_RANK needs a middle sample.", given=f"horizon={horizon}", expected="3, 5, 7, ..."
        )
    middle, below = horizon // 2, _shift(horizon, device, dtype)
    one = torch.eye(horizon, device=device, dtype=dtype)
    parts = (one - below.T)[:middle], (below.T - below)[middle : middle + 1]
    return torch.cat([*parts, (one - below)[middle + 1 :]])


@checked
def build_int_matrix(
    horizon: Count,
    diagonal: int = 0,
    device: Any = "cpu",
    dtype: torch.dtype = torch.float32,
    order: Natural = 1,
    traj_dt: Tensor | None = None,
) -> Tensor:
    """Return ``(tril(ones, diagonal) diag(traj_dt)) ** order``: plain sums without ``traj_dt``.

    ``traj_dt`` is ``[horizon]`` seconds; the order says how often to integrate, 0 is the identity.
    """
    check_named_device(device)
    single = torch.ones(horizon, horizon, device=device, dtype=dtype).tril(diagonal)
    if traj_dt is not None:
        check_shapes({"horizon": horizon}, traj_dt=(traj_dt, "horizon"))
        single = single * traj_dt
    return torch.linalg.matrix_power(single, order)


@checked
def build_start_state_mask(horizon: Count, tensor_args: Any) -> tuple[Tensor, Tensor]:
    """Return the first unit column ``[horizon, 1]`` and the shift ``[horizon, horizon]``."""
    device, dtype = _place(tensor_args)
    return torch.eye(horizon, 1, device=device, dtype=dtype), _shift(horizon, device, dtype)


@checked
def tensor_linspace(start_tensor: Tensor, end_tensor: Tensor, steps: Count = 10) -> Tensor:
    """Return the ends of ``steps`` equal parts from start (left out) to end.

    Both broadcast against ``[steps]``.
    """
    given = {"start_tensor": (start_tensor, "..."), "end_tensor": (end_tensor, "...")}
    check_shapes(**given)
    part = torch.arange(1, steps + 1, device=start_tensor.device, dtype=start_tensor.dtype) / steps
    check_shapes(**given, steps=(part, "..."))
    return start_tensor + part * (end_tensor - start_tensor)


@checked
def sum_matrix(h: Count, int_steps: Count, tensor_args: Any) -> Tensor:
    """Return ``[(h - 1) int_steps, h]`` that repeats each value but the last."""
    device, dtype = _place(tensor_args)
    unit = torch.eye(h, device=device, dtype=dtype)[:-1]
    return unit.repeat_interleave(int_steps, 0)


@checked
def interpolate_kernel(h: Count, int_steps: Count, tensor_args: Any) -> Tensor:
    """Return ``[(h - 1) int_steps, h]`` that blends each pair of neighbours, ends included.

    One step alone is the earlier value.
    """
    device, dtype = _place(tensor_args)
    blend = torch.arange(int_steps, device=device, dtype=dtype) / max(int_steps - 1, 1)
    return _blend_pairs(h, blend, device, dtype)


@checked
def action_interpolate_kernel(
    h: Count, int_steps: Count, tensor_args: Any, offset: Natural = 4
) -> Tensor:
    """Return ``[(h - 1) int_steps, h]`` that blends neighbours, then holds the later one.

    The last ``offset`` samples of each pair, fewer than ``int_steps``, hold it.
    """
    if offset >= int_steps:
        raise ArgumentError(
            "The offset leaves no sample to blend.", given=f"{offset=}, {int_steps=}"
        )
    device, dtype = _place(tensor_args)
    steps = int_steps - offset
    blend = torch.arange(1, int_steps + 1, device=device, dtype=dtype) / steps
    return _blend_pairs(h, blend.clamp(max=1), device, dtype)


def _blend_pairs(h: int, blend: Tensor, device: Any, dtype: torch.dtype) -> Tensor:
    unit = torch.eye(h, device=device, dtype=dtype)
    earlier, later = unit[:-1, None], unit[1:, None]
    return ((1 - blend)[:, None] * earlier + blend[:, None] * later).flatten(0, 1)
