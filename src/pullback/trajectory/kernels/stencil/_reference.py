"""The stencil in plain torch: the oracle, for any device and dtype.

With a window of samples ``x[s(h) + j]`` around row ``h``, weights ``W`` and boundary values ``c``,

    y_k[h] = sum_j W[r(h), k, j] (x[s(h) + j] - x[h]) + sum_m W[r(h), k, width + m] c[m]

for the orders k = 1, 2, 3. Differences are taken relative to the row's own position, which loses
nothing where positions are large and steps are small; the weight of the row itself is therefore
implied, minus the sum of the others. It is linear in (x, c) and in W, and so is its adjoint.
"""

import torch
from torch import Tensor

__all__ = ["apply", "apply_adjoint", "sizes", "weights_adjoint"]


def _gather_rows(
    horizon: int, rows: int, geometry: tuple[int, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the first sample of each row's window and the row of its weights, ``[horizon]``.

    There are ``horizon`` rows of weights, or fewer where the inside rows share one.
    """
    before, width, left, right = geometry[:4]
    sample = torch.arange(horizon, device=device)
    begin = (sample - before).clamp(0, horizon - width)
    if rows == horizon:
        return begin, sample
    row = torch.where(sample < left, sample, left)
    return begin, torch.where(sample >= horizon - right, sample - horizon + rows, row)


def _replace_ends(x: Tensor, conditions: Tensor, geometry: tuple[int, ...]) -> Tensor:
    first, last = geometry[4:]
    head = x[:, :1] if first < 0 else conditions[:, first : first + 1]
    tail = x[:, -1:] if last < 0 else conditions[:, last : last + 1]
    return torch.cat([head, x[:, 1:-1], tail], dim=1)


def sizes(weights: Tensor, geometry: tuple[int, ...]) -> tuple[int, int]:
    """How many samples there are more than positions, and how many boundary values."""
    return 0, weights.shape[3] - geometry[1]


def apply(
    x: Tensor, conditions: Tensor, weights: Tensor, geometry: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return positions with their ends replaced, and the three derivatives.

    Of positions ``x [batch, horizon, dof]``, boundary values ``[batch, conditions, dof]`` and
    weights ``[1 or batch, rows, 3, width + conditions]``.
    """
    width = geometry[1]
    position = _replace_ends(x, conditions, geometry).to(weights.dtype)
    begin, row = _gather_rows(x.shape[1], weights.shape[1], geometry, x.device)
    spread = weights[:, row]
    kernel = "thkm,bmd->kbhd" if weights.shape[0] == 1 else "bhkm,bmd->kbhd"
    outputs = torch.einsum(kernel, spread[..., width:], conditions.to(weights.dtype))
    for j in range(width):
        difference = position[:, begin + j] - position
        outputs = outputs + spread[..., j].movedim(-1, 0)[..., None] * difference
    velocity, acceleration, jerk = outputs.to(x.dtype)
    return position.to(x.dtype), velocity, acceleration, jerk


def apply_adjoint(
    cotangents: tuple[Tensor, Tensor, Tensor, Tensor], weights: Tensor, geometry: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Return the gradients of positions and boundary values: the transpose of `apply`."""
    dtype = weights.dtype
    width, first, last = geometry[1], geometry[4], geometry[5]
    position = cotangents[0].to(dtype)
    horizon = position.shape[1]
    begin, row = _gather_rows(horizon, weights.shape[1], geometry, position.device)
    spread = weights[:, row]
    stacked = torch.stack([cotangent.to(dtype) for cotangent in cotangents[1:]])
    gradient = position
    for j in range(width):
        share = (spread[..., j].movedim(-1, 0)[..., None] * stacked).sum(0)
        gradient = (gradient - share).index_add(1, begin + j, share)
    values = (spread[..., width:, None] * stacked.permute(1, 2, 0, 3)[..., None, :]).sum((1, 2))
    ends = [gradient[:, :1], gradient[:, -1:]]
    for end, column in enumerate((first, last)):
        if column >= 0:
            at = torch.tensor([column], device=position.device)
            values = values.index_add(1, at, ends[end])
            ends[end] = torch.zeros_like(ends[end])
    gradient = torch.cat([ends[0], gradient[:, 1:-1], ends[1]], dim=1)
    return gradient.to(cotangents[0].dtype), values.to(cotangents[0].dtype)


def weights_adjoint(
    cotangents: tuple[Tensor, ...],
    x: Tensor,
    conditions: Tensor,
    weights: Tensor,
    geometry: tuple[int, ...],
) -> Tensor:
    """Return the gradient of the weights, in their shape, in differentiable torch operations.

    Of the weights only shape and dtype matter.
    """
    dtype, width = weights.dtype, geometry[1]
    shared = weights.shape[0] == 1
    position = _replace_ends(x, conditions, geometry).to(dtype)
    begin, row = _gather_rows(x.shape[1], weights.shape[1], geometry, x.device)
    stacked = torch.stack([cotangent.to(dtype) for cotangent in cotangents[1:]], dim=2)
    windows = torch.stack([position[:, begin + j] - position for j in range(width)], dim=2)
    kernel = "bhkd,bhjd->hkj" if shared else "bhkd,bhjd->bhkj"
    nodes = torch.einsum(kernel, stacked, windows)
    kernel = "bhkd,bmd->hkm" if shared else "bhkd,bmd->bhkm"
    values = torch.einsum(kernel, stacked, conditions.to(dtype))
    columns = torch.cat([nodes, values], dim=-1)
    columns = columns[None] if shared else columns
    if weights.shape[1] == x.shape[1]:
        return columns
    return torch.zeros_like(weights).index_add(1, row, columns)
