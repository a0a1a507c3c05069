"""The stencil in plain torch: the oracle, for any device and dtype.

With a window of samples ``x[s(h) + j]`` around row ``h``, weights ``W`` and boundary values ``c``,

    y_k[h] = sum_j W[r(h), k, j] (x[s(h) + j] - x[h]) + sum_m W[r(h), k, width + m] c[m]

for the orders k = 1, 2, 3. Differences are taken relative to the row's own position, which loses
nothing where positions are large and steps are small; the weight of the row itself is therefore
implied, minus the sum of the others. It is linear in (x, c) and in W, and differentiated by torch.
"""

import torch
from torch import Tensor

__all__ = ["apply", "free_ends", "replace_ends", "sizes", "weights_adjoint"]


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


def replace_ends(x: Tensor, conditions: Tensor, geometry: tuple[int, ...]) -> Tensor:
    """The trajectories with the positions that are given at their ends, which is what rows read."""
    first, last = geometry[4:]
    if first < 0 and last < 0:
        return x
    head = x[:, :1] if first < 0 else conditions[:, first : first + 1]
    tail = x[:, -1:] if last < 0 else conditions[:, last : last + 1]
    return torch.cat([head, x[:, 1:-1], tail], dim=1)


def free_ends(gradient: Tensor, values: Tensor, geometry: tuple[int, ...]) -> None:
    """Of gradients: a sample that is replaced has none, as it belongs to what replaces it."""
    for row, column in zip((0, -1), geometry[4:], strict=True):
        if column >= 0 and gradient.numel():
            values[:, column] += gradient[:, row]
            gradient[:, row] = 0


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
    row, position, columns = _columns(x, conditions, weights, geometry)
    spread = weights.index_select(1, row).unsqueeze(-1)  # [1 or batch, horizon, 3, many, 1]
    levels = [position]
    for order in range(3):
        parts = [spread[:, :, order, number] * part for number, part in enumerate(columns)]
        levels.append(sum(parts[1:], parts[0]))
    position, velocity, acceleration, jerk = (level.to(x.dtype, copy=True) for level in levels)
    return position, velocity, acceleration, jerk


def _columns(
    x: Tensor, conditions: Tensor, weights: Tensor, geometry: tuple[int, ...]
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The row of weights of each sample, positions, and what each weight of a row is of."""
    position = replace_ends(x, conditions, geometry).to(weights.dtype)
    begin, row = _gather_rows(x.shape[1], weights.shape[1], geometry, x.device)
    near = [position.index_select(1, begin + j) - position for j in range(geometry[1])]
    given = conditions.to(weights.dtype).unsqueeze(2).expand(-1, -1, x.shape[1], -1)
    return row, position, near + list(given.unbind(1))


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
    row, _, columns = _columns(x, conditions, weights, geometry)
    stacked = torch.stack([cotangent.to(weights.dtype) for cotangent in cotangents[1:]], dim=2)
    many = torch.stack(columns, dim=2)
    if weights.shape[0] == 1:
        stacked, many = _side_by_side(stacked), _side_by_side(many)
    steep = stacked @ many.mT
    alone = weights.shape[1] == x.shape[1]
    return steep if alone else torch.zeros_like(weights).index_add(1, row, steep)


def _side_by_side(each: Tensor) -> Tensor:
    """From ``[batch, horizon, many, dof]`` to ``[1, horizon, many, batch * dof]``.

    A product over the last dimension sums over trajectories then, which share their weights.
    """
    # By operations that the vmap of `is_grads_batched` knows: not torch.einsum, nor flatten.
    batch, horizon, many, dof = each.shape
    return each.permute(1, 2, 0, 3).reshape(1, horizon, many, batch * dof)
