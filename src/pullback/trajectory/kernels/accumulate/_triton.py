"""The chain of sums on a GPU: one lane for each trajectory and joint walks through time."""

import torch
import triton  # pyrefly: ignore[missing-import]
import triton.language as tl  # pyrefly: ignore[missing-import]
from torch import Tensor

__all__ = ["apply", "apply_adjoint"]

# Lanes in a program; small, so that few thousand joints still fill a GPU.
_BLOCK = 64


@triton.jit
def _forward(
    control, initial, steps, p, v, a, j, horizon, lanes, dof, rows, stride,
    ORDER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = lane < lanes
    b, d = lane // dof, lane % dof
    dtype = tl.float64  # running sums of float32 lose a digit in a hundred steps, and more later
    read = control + b * horizon * dof + d
    at = b * (horizon + 1) * dof + d
    base = initial + b * ORDER * dof + d
    zero = tl.zeros([BLOCK], dtype)
    s0 = tl.load(base, mask=live, other=0.0).to(dtype)
    s1 = tl.load(base + dof, mask=live, other=0.0).to(dtype) if ORDER > 1 else zero
    s2 = tl.load(base + 2 * dof, mask=live, other=0.0).to(dtype) if ORDER > 2 else zero
    u = zero
    for h in tl.range(0, horizon + 1):
        # The last sample repeats the last control.
        row = tl.minimum(h, horizon - 1).to(tl.int64)
        u = tl.load(read + row * dof, mask=live, other=0.0).to(dtype)
        table = steps + b * stride + tl.minimum(row, rows - 1) * ORDER
        e1 = tl.load(table, mask=live, other=0.0)
        e2 = tl.load(table + 1, mask=live, other=0.0) if ORDER > 1 else zero
        e3 = tl.load(table + 2, mask=live, other=0.0) if ORDER > 2 else zero
        if ORDER == 1:
            s1 = u
        elif ORDER == 2:
            s2 = u
        s3 = u if ORDER == 3 else zero
        tl.store(p + at, s0, mask=live)
        tl.store(v + at, s1, mask=live)
        tl.store(a + at, s2, mask=live)
        tl.store(j + at, s3, mask=live)
        at += dof
        s0 = s0 + e1 * s1 + e2 * s2 + e3 * s3
        s1 = s1 + e1 * s2 + e2 * s3
        s2 = s2 + e1 * s3


@triton.jit
def _adjoint(
    gp, gv, ga, gj, steps, control, initial, horizon, lanes, dof, rows, stride,
    ORDER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = lane < lanes
    b, d = lane // dof, lane % dof
    dtype = tl.float64  # running sums of float32 lose a digit in a hundred steps, and more later
    at = (b * (horizon + 1) + horizon) * dof + d
    write = control + b * horizon * dof + d
    c0 = tl.load(gp + at, mask=live, other=0.0).to(dtype)
    c1 = tl.load(gv + at, mask=live, other=0.0).to(dtype)
    c2 = tl.load(ga + at, mask=live, other=0.0).to(dtype)
    c3 = tl.load(gj + at, mask=live, other=0.0).to(dtype)
    # The last control is also the value of its own order at the last sample.
    held = c1 if ORDER == 1 else (c2 if ORDER == 2 else c3)
    for back in tl.range(0, horizon):
        h = (horizon - 1 - back).to(tl.int64)
        at -= dof
        table = steps + b * stride + tl.minimum(h, rows - 1) * ORDER
        e1 = tl.load(table, mask=live, other=0.0)
        d1 = tl.load(gv + at, mask=live, other=0.0) + e1 * c0
        u = d1
        if ORDER > 1:
            e2 = tl.load(table + 1, mask=live, other=0.0)
            d2 = tl.load(ga + at, mask=live, other=0.0) + e1 * c1 + e2 * c0
            u = d2
            if ORDER > 2:
                e3 = tl.load(table + 2, mask=live, other=0.0)
                u = tl.load(gj + at, mask=live, other=0.0) + e1 * c2 + e2 * c1 + e3 * c0
                c2 += d2
            c1 += d1
        c0 += tl.load(gp + at, mask=live, other=0.0)
        tl.store(write + h * dof, tl.where(back == 0, u + held, u), mask=live)
    base = initial + b * ORDER * dof + d
    tl.store(base, c0, mask=live)
    if ORDER > 1:
        tl.store(base + dof, c1, mask=live)
    if ORDER > 2:
        tl.store(base + 2 * dof, c2, mask=live)


def _sizes(steps: Tensor, batch: int, horizon: int, dof: int) -> tuple[int, ...]:
    stride = 0 if steps.shape[0] == 1 else steps.stride(0)
    return horizon, batch * dof, dof, steps.shape[1], stride


def apply(
    control: Tensor, initial: Tensor, steps: Tensor, code: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`pullback.trajectory.kernels.accumulate._reference.apply` on a GPU."""
    (batch, horizon, dof), (order,) = control.shape, code
    control, initial, steps = control.contiguous(), initial.contiguous(), steps.contiguous()
    shape = (batch, horizon + 1, dof)
    empty = control.new_empty
    outputs = (empty(shape), empty(shape), empty(shape), empty(shape))
    if control.numel() > 0:
        grid = (triton.cdiv(batch * dof, _BLOCK),)
        sizes = _sizes(steps, batch, horizon, dof)
        _forward[grid](control, initial, steps, *outputs, *sizes, ORDER=order, BLOCK=_BLOCK)
    return outputs


def apply_adjoint(
    cotangents: tuple[Tensor, Tensor, Tensor, Tensor], steps: Tensor, code: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """`pullback.trajectory.kernels.accumulate._reference.apply_adjoint` on a GPU."""
    (batch, samples, dof), (order,) = cotangents[0].shape, code
    lines = [cotangent.contiguous() for cotangent in cotangents]
    steps = steps.contiguous()
    control = lines[0].new_empty(batch, samples - 1, dof)
    initial = torch.empty(batch, order, dof, dtype=control.dtype, device=control.device)
    if control.numel() > 0:
        grid = (triton.cdiv(batch * dof, _BLOCK),)
        sizes = _sizes(steps, batch, samples - 1, dof)
        _adjoint[grid](*lines, steps, control, initial, *sizes, ORDER=order, BLOCK=_BLOCK)
    return control, initial
