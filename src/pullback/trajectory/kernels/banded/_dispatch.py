"""The banded solve as one operator: it chooses a backend and folds the batch dimensions."""

import functools
from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor

from pullback.errors import ArgumentError
from pullback.internal.kernels._backend import cpu_or_reference, implementation
from pullback.internal.kernels._folding import broadcast_batch
from pullback.internal.kernels._kernel import register_kernel
from pullback.internal.kernels._shapes import broadcast_shapes

__all__ = ["solve_operator", "substitute_operator"]

_PACKAGE = "pullback.trajectory.kernels.banded"


def _kernels(tensor: Tensor) -> ModuleType:
    wide = tensor.dtype in (torch.float32, torch.float64)
    return implementation(_PACKAGE, cpu_or_reference(tensor.device) if wide else "reference")


@register_kernel("pullback_trajectory::banded_solve")
def solve_operator(band: Tensor, right: Tensor, strict: bool) -> Tensor:
    """Solve ``A X = B`` for ``band [..., n, width + 1]`` and ``right [..., n, columns]``.

    Batch dimensions are broadcast. It carries no rule of differentiation: `BandedSolve` does.

    Raises:
        ArgumentError: ``strict``, and a matrix is not positive definite.
    """
    batch = broadcast_shapes(band.shape[:-2], right.shape[:-2])
    x = _fold(band, right, batch, _kernels(band).solve)
    if strict and not bool(torch.isfinite(x).all()):
        _complain(band, right)
    return x


def _fold(
    band: Tensor, right: Tensor, batch: torch.Size, run: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Run on ``[batch, n, ...]`` what is asked for ``[..., n, ...]``."""
    count, (size, columns) = batch.numel(), right.shape[-2:]
    if band.shape[:-2].numel() == 1:
        # One matrix: every batch item is a column, so that it is factorised once.
        wide = right.expand(*batch, size, columns).reshape(count, size, columns)
        wide = wide.movedim(1, 0).reshape(1, size, count * columns)
        x = run(band.reshape(1, *band.shape[-2:]), wide)
        x = x.reshape(size, count, columns).movedim(0, 1)
    else:
        bands = band.expand(*batch, *band.shape[-2:]).reshape(count, *band.shape[-2:])
        x = run(bands, right.expand(*batch, size, columns).reshape(count, size, columns))
    return x.reshape(*batch, size, columns).contiguous()


@register_kernel("pullback_trajectory::banded_substitute")
def substitute_operator(factor: Tensor, right: Tensor, transposed: bool) -> Tensor:
    """Solve ``L X = B``, or ``L' X = B`` if transposed; batch dimensions are broadcast."""
    batch = broadcast_shapes(factor.shape[:-2], right.shape[:-2])

    run = functools.partial(_kernels(factor).substitute, transposed=transposed)
    return _fold(factor, right, batch, run)


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


# The two solves have the same shapes: the last argument is a flag of each.
@substitute_operator.register_fake
@solve_operator.register_fake
def _(band: Tensor, right: Tensor, strict: bool) -> Tensor:
    batch = broadcast_shapes(band.shape[:-2], right.shape[:-2])
    return right.new_empty((*batch, *right.shape[-2:]))


solve_operator.register_vmap(broadcast_batch(solve_operator, (2, 2)))
substitute_operator.register_vmap(broadcast_batch(substitute_operator, (2, 2)))
