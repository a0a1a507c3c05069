"""Comparisons for the tensor room."""

from typing import Any

import pytest
import torch
from tests.tensor.cases import ROWS
from torch.utils import _pytree as pytree

SEED = 20261121

every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


def agree(got: Any, want: Any) -> None:
    """Equal structure and values to float64 rounding; the seed is in the message."""
    got_leaves, want_leaves = pytree.tree_leaves(got), pytree.tree_leaves(want)
    assert len(got_leaves) == len(want_leaves)
    for a, b in zip(got_leaves, want_leaves, strict=True):
        torch.testing.assert_close(
            a, b, rtol=1e-10, atol=1e-10, msg=lambda text: f"{text} (seed {SEED})"
        )


def weighted(function: Any) -> Any:
    """A scalar that uses every output nonlinearly, with weights that break symmetry."""

    def scalar(*args: torch.Tensor) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for leaf in pytree.tree_leaves(function(*args)):
            weights = torch.arange(1, leaf.numel() + 1, dtype=leaf.dtype).reshape(leaf.shape)
            total = total + (weights * leaf * leaf).sum() + (weights.flip(0) * leaf).sum()
        return total

    return scalar
