"""Sparse tensors of every layout, as what says where their values lie, and the values."""

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["indices_of", "is_sparse", "sparse_of", "values_of"]

_BY_ROWS, _BY_COLUMNS = ("crow_indices", "col_indices"), ("ccol_indices", "row_indices")
_INDICES = {
    torch.sparse_coo: ("indices",), torch.sparse_csr: _BY_ROWS, torch.sparse_bsr: _BY_ROWS,
    torch.sparse_csc: _BY_COLUMNS, torch.sparse_bsc: _BY_COLUMNS,
}  # fmt: skip


def is_sparse(value: Any) -> bool:
    """Whether it is a tensor that holds values at some places alone.

    Example:
        >>> is_sparse(torch.eye(2).to_sparse()), is_sparse(torch.eye(2))
        (True, False)
    """
    return isinstance(value, torch.Tensor) and value.layout in _INDICES


def _whole(sparse: torch.Tensor) -> torch.Tensor:
    return sparse.coalesce() if sparse.layout is torch.sparse_coo else sparse


def values_of(sparse: torch.Tensor) -> torch.Tensor:
    """The values, each place once."""
    return _whole(sparse).values()


def indices_of(sparse: torch.Tensor) -> list[torch.Tensor]:
    """What says where the values lie, as `sparse_of` takes it."""
    whole = _whole(sparse.detach())
    return [getattr(whole, name)() for name in _INDICES[sparse.layout]]


def sparse_of(
    indices: Sequence[torch.Tensor], values: torch.Tensor, shape: Sequence[int],
    layout: torch.layout, *, check: bool = False,
) -> torch.Tensor:  # fmt: skip
    """A sparse tensor of its indices and values, with the history of the values.

    Arguments:
        indices: of coordinates one tensor, else the compressed ones and the plain ones.
        values: one for each place.
        shape: of the whole.
        layout: how the places are told.
        check: whether it is asked that the indices are places of that shape.

    Raises:
        RuntimeError: they are not.
    """
    size, first = tuple(shape), indices[0]
    if layout is torch.sparse_coo:
        return torch.sparse_coo_tensor(
            first, values, size, is_coalesced=True, check_invariants=check
        )  # fmt: skip
    return torch.sparse_compressed_tensor(
        first, indices[1], values, size, layout=layout, check_invariants=check
    )
