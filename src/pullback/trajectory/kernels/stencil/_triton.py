"""The stencil on a GPU: each program reads a block of samples once and writes every output.

Samples and joints are one flat sequence, so that neighbouring threads touch neighbouring memory
whatever the number of joints. The window's other reads of the same samples hit the cache.
Storage may be float16 or bfloat16; the arithmetic is that of the weights.
"""

from typing import Any

import torch
import triton  # pyrefly: ignore[missing-import]
import triton.language as tl  # pyrefly: ignore[missing-import]
from torch import Tensor

from pullback.trajectory.kernels.stencil._reference import free_ends, replace_ends

__all__ = ["apply", "apply_adjoint"]

_BLOCK = 1024


@triton.jit
def _row_of(h, horizon, rows, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    row = tl.where(h < LEFT, h, LEFT)
    row = tl.where(h >= horizon - RIGHT, h - horizon + rows, row)
    return tl.where(rows == horizon, h, row)


@triton.jit
def _forward(
    x, values, weights, position, velocity, acceleration, jerk,
    blocks, horizon, dof, rows, stride, COUNT: tl.constexpr, INDEX: tl.constexpr,
    BEFORE: tl.constexpr, WIDTH: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    b = (tl.program_id(0) // blocks).to(tl.int64)
    i = (tl.program_id(0) % blocks).to(INDEX) * BLOCK + tl.arange(0, BLOCK)
    live = i < horizon * dof
    h, d = i // dof, i % dof
    begin = tl.minimum(tl.maximum(h - BEFORE, 0), horizon - WIDTH)
    columns = WIDTH + COUNT
    table = weights + b * stride + _row_of(h, horizon, rows, LEFT, RIGHT) * (3 * columns)
    dtype = weights.dtype.element_ty
    base = x + b * horizon * dof + d
    here = tl.load(base + h * dof, mask=live, other=0.0).to(dtype)
    v = tl.zeros([BLOCK], dtype)
    a = tl.zeros([BLOCK], dtype)
    j = tl.zeros([BLOCK], dtype)
    for k in tl.static_range(WIDTH):
        away = tl.load(base + (begin + k) * dof, mask=live, other=0.0).to(dtype) - here
        v += tl.load(table + k, mask=live, other=0.0) * away
        a += tl.load(table + columns + k, mask=live, other=0.0) * away
        j += tl.load(table + 2 * columns + k, mask=live, other=0.0) * away
    edge = live & ((h < LEFT) | (h >= horizon - RIGHT))
    for m in tl.static_range(COUNT):
        value = tl.load(values + (b * COUNT + m) * dof + d, mask=edge, other=0.0).to(dtype)
        v += tl.load(table + WIDTH + m, mask=edge, other=0.0) * value
        a += tl.load(table + columns + WIDTH + m, mask=edge, other=0.0) * value
        j += tl.load(table + 2 * columns + WIDTH + m, mask=edge, other=0.0) * value
    at = b * horizon * dof + i
    tl.store(position + at, here, mask=live)
    tl.store(velocity + at, v, mask=live)
    tl.store(acceleration + at, a, mask=live)
    tl.store(jerk + at, j, mask=live)


@triton.jit
def _adjoint(
    gp, gv, ga, gj, weights, gradient,
    blocks, horizon, dof, rows, stride, COUNT: tl.constexpr, INDEX: tl.constexpr,
    BEFORE: tl.constexpr, WIDTH: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    b = (tl.program_id(0) // blocks).to(tl.int64)
    i = (tl.program_id(0) % blocks).to(INDEX) * BLOCK + tl.arange(0, BLOCK)
    live = i < horizon * dof
    h, d = i // dof, i % dof
    columns = WIDTH + COUNT
    dtype = weights.dtype.element_ty
    base = b * horizon * dof
    total = tl.load(gp + base + i, mask=live, other=0.0).to(dtype)
    # Every row whose window may hold this sample; a window moved inwards reaches WIDTH away.
    for shift in tl.static_range(-WIDTH + 1, WIDTH):
        near = h + shift
        begin = tl.minimum(tl.maximum(near - BEFORE, 0), horizon - WIDTH)
        reads = live & (near >= 0) & (near < horizon) & (begin <= h) & (h < begin + WIDTH)
        table = weights + b * stride + _row_of(near, horizon, rows, LEFT, RIGHT) * (3 * columns)
        at = base + near * dof + d
        v = tl.load(gv + at, mask=reads, other=0.0).to(dtype)
        a = tl.load(ga + at, mask=reads, other=0.0).to(dtype)
        j = tl.load(gj + at, mask=reads, other=0.0).to(dtype)
        if shift == 0:
            for k in tl.static_range(WIDTH):
                other = reads & (begin + k != h)
                total -= tl.load(table + k, mask=other, other=0.0) * v
                total -= tl.load(table + columns + k, mask=other, other=0.0) * a
                total -= tl.load(table + 2 * columns + k, mask=other, other=0.0) * j
        else:
            k = h - begin
            total += tl.load(table + k, mask=reads, other=0.0) * v
            total += tl.load(table + columns + k, mask=reads, other=0.0) * a
            total += tl.load(table + 2 * columns + k, mask=reads, other=0.0) * j
    tl.store(gradient + base + i, total, mask=live)


def _constants(geometry: tuple[int, ...]) -> dict[str, Any]:
    names = ("BEFORE", "WIDTH", "LEFT", "RIGHT")
    return dict(zip(names, geometry, strict=False)) | {"BLOCK": _BLOCK}


def _sizes(weights: Tensor, horizon: int, dof: int, count: int) -> tuple[Any, ...]:
    """Blocks of a trajectory, and what both kernels are told of the tensors.

    Blocks of all trajectories are counted in one dimension: CUDA takes 65,535 in a second one.
    """
    stride = 0 if weights.shape[0] == 1 else weights.stride(0)
    wide = max(horizon * dof, weights[0].numel()) >= 2**31 - _BLOCK
    blocks, index = triton.cdiv(horizon * dof, _BLOCK), tl.int64 if wide else tl.int32
    return blocks, horizon, dof, weights.shape[1], stride, count, index


def apply(
    x: Tensor, conditions: Tensor, weights: Tensor, geometry: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`pullback.trajectory.kernels.stencil._reference.apply` on a GPU."""
    batch, horizon, dof = x.shape
    x = replace_ends(x, conditions, geometry).contiguous()
    conditions, weights = conditions.contiguous(), weights.contiguous()
    position, velocity = torch.empty_like(x), torch.empty_like(x)
    acceleration, jerk = torch.empty_like(x), torch.empty_like(x)
    outputs = (position, velocity, acceleration, jerk)
    if x.numel() > 0:
        sizes = _sizes(weights, horizon, dof, conditions.shape[1])
        _forward[batch * sizes[0],](
            x, conditions, weights, *outputs, *sizes, **_constants(geometry)
        )
    return outputs


def apply_adjoint(
    cotangents: tuple[Tensor, Tensor, Tensor, Tensor], weights: Tensor, geometry: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """`pullback.trajectory.kernels.stencil._reference.apply_adjoint` on a GPU."""
    batch, horizon, dof = cotangents[0].shape
    width, left, right = geometry[1:4]
    lines = [cotangent.contiguous() for cotangent in cotangents]
    weights = weights.contiguous()
    count = weights.shape[3] - width
    gradient = torch.empty_like(lines[0])
    if gradient.numel() > 0:
        sizes = _sizes(weights, horizon, dof, count)
        _adjoint[batch * sizes[0],](*lines, weights, gradient, *sizes, **_constants(geometry))
    # Only the few rows at the ends read boundary values: a handful of numbers.
    values = _adjoint_ends(lines, weights, geometry, slice(0, left))
    values += _adjoint_ends(lines, weights, geometry, slice(horizon - right, horizon))
    free_ends(gradient, values, geometry)
    return gradient, values.to(gradient.dtype)


def _adjoint_ends(
    lines: list[Tensor], weights: Tensor, geometry: tuple[int, ...], rows: slice
) -> Tensor:
    horizon, width = lines[0].shape[1], geometry[1]
    if rows.start == horizon:  # from the end on there is no row, where `-0` would be the first one
        return weights.new_zeros(len(lines[0]), weights.shape[3] - width, lines[0].shape[2])
    # Counted from the end, a row of the weights is the same in a full and in a short table.
    of_weights = rows if rows.start == 0 else slice(rows.start - horizon, None)
    ends = torch.stack([line[:, rows] for line in lines[1:]], dim=2).to(weights.dtype)
    kernel = "thkm,bhkd->bmd" if weights.shape[0] == 1 else "bhkm,bhkd->bmd"
    return torch.einsum(kernel, weights[:, of_weights, :, width:], ends)
