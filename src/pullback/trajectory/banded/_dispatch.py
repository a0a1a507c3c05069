"""The banded solve as one operator: it chooses a backend and folds the batch dimensions."""

from typing import Any, Literal

import torch
from torch import Tensor

from pullback.errors import ArgumentError
from pullback.trajectory.banded._reference import solve as solve_reference

__all__ = ["backend_used", "solve_operator"]


def backend_used(device: torch.device, dtype: torch.dtype) -> Literal["cpu", "reference"]:
    """Which backend solves on a device: ``"cpu"`` (numba) or ``"reference"`` (torch).

    Example:
        >>> import torch
        >>> backend_used(torch.device("cpu"), torch.float64)
        'cpu'
    """
    wide = dtype in (torch.float32, torch.float64)
    return "cpu" if device.type == "cpu" and wide else "reference"


@torch.library.custom_op("pullback_trajectory::banded_solve", mutates_args=())
def solve_operator(band: Tensor, right: Tensor, strict: bool) -> Tensor:
    """Solve ``A X = B`` for ``band [..., n, width + 1]`` and ``right [..., n, columns]``.

    Batch dimensions are broadcast. It carries no rule of differentiation: `BandedSolve` does.

    Raises:
        ArgumentError: ``strict``, and a matrix is not positive definite.
    """
    batch = torch.broadcast_shapes(band.shape[:-2], right.shape[:-2])
    count, (size, columns) = batch.numel(), right.shape[-2:]
    if band.shape[:-2].numel() == 1:
        # One matrix: every batch item is a column, so that it is factorised once.
        wide = right.expand(*batch, size, columns).reshape(count, size, columns)
        wide = wide.movedim(1, 0).reshape(1, size, count * columns)
        x = _solve(band.reshape(1, *band.shape[-2:]), wide)
        x = x.reshape(size, count, columns).movedim(0, 1)
    else:
        bands = band.expand(*batch, *band.shape[-2:]).reshape(count, *band.shape[-2:])
        x = _solve(bands, right.expand(*batch, size, columns).reshape(count, size, columns))
    x = x.reshape(*batch, size, columns).contiguous()
    if strict and not bool(torch.isfinite(x).all()):
        _complain(band, right)
    return x


def _solve(band: Tensor, right: Tensor) -> Tensor:
    if backend_used(band.device, band.dtype) == "reference":
        return solve_reference(band, right)
    # Compiled code takes a second to load, so it waits for the first solve.
    from pullback.trajectory.banded._cpu import solve_batch

    x = right.detach().clone(memory_format=torch.contiguous_format)
    solve_batch(band.detach().contiguous().numpy(), x.numpy())
    return x


def _complain(band: Tensor, right: Tensor) -> None:
    finite = bool(torch.isfinite(band).all()) and bool(torch.isfinite(right).all())
    if finite:
        raise ArgumentError(
            "The banded matrix is not positive definite.",
            given=f"a band of shape {tuple(band.shape)}, smallest diagonal entry "
            f"{band[..., 0].min():.3g}",
            expected="a symmetric positive definite matrix, its lower diagonals in band[i, d]",
            mend="Add a positive number to band[..., 0], or check the storage of the band.",
        )


@solve_operator.register_fake
def _(band: Tensor, right: Tensor, strict: bool) -> Tensor:
    batch = torch.broadcast_shapes(band.shape[:-2], right.shape[:-2])
    return right.new_empty((*batch, *right.shape[-2:]))


@solve_operator.register_vmap
def _(info: Any, in_dims: Any, band: Tensor, right: Tensor, strict: bool) -> tuple[Tensor, int]:
    band = _batch_first(band, in_dims[0], right.dim() - (in_dims[1] is not None))
    right = _batch_first(right, in_dims[1], band.dim() - (in_dims[0] is not None))
    return solve_operator(band, right, strict), 0


def _batch_first(tensor: Tensor, dim: int | None, rank: int) -> Tensor:
    """Put the batch dimension before ``rank`` others, as broadcasting wants it."""
    if dim is None:
        return tensor
    tensor = tensor.movedim(dim, 0)
    missing = rank - (tensor.dim() - 1)
    for _ in range(missing):
        tensor = tensor.unsqueeze(1)
    return tensor
