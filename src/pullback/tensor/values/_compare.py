"""Whether two runs gave the same numbers.

An entry may lose its own last bits, and what cancels in a sum of larger ones. The bounds are
multiples of the distance between neighbours in the dtype in use: two runs of the same operations
differ, if at all, by the order of a sum. A coarse dtype rounds once for each operation, which sums
in a wider one: four of its steps are as many roundings as the rules of a Function have, where 256
would be a quarter of the number itself.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from pullback.internal._sparse import indices_of, is_sparse, values_of
from pullback.tensor.values._levels import concrete

__all__ = ["agree", "equals_one_of", "inner", "size_of"]


def agree(
    found: Sequence[torch.Tensor | None],
    wanted: Sequence[torch.Tensor | None],
    *,
    met: Iterable[torch.dtype] = (),
    needed: bool = False,
) -> bool:
    """Whether tensors are equal to rounding.

    Arguments:
        found: tensors, or None.
        wanted: as many.
        met: other dtypes that the numbers went through.
        needed: where there are no values to compare, as in a graph that is traced, they are not.
    """
    for first, second in zip(found, wanted, strict=True):
        if first is None or second is None:
            continue
        if first.shape != second.shape:
            return False
        one, other = concrete(first), concrete(second)
        if one is None or other is None:
            if needed:
                return False
            continue
        difference, size = concrete(first.detach() - second.detach()), concrete(second.detach())
        if difference is None or size is None or not size.numel():
            continue
        size = size.abs()
        known = size[size.isfinite()]
        largest = known.max() if known.numel() else size.new_ones(())
        eps = coarsest([second.dtype, *met])
        relative, beside = min(256 * eps, max(4 * eps, 0.005)), min(16 * eps, max(2 * eps, 0.0025))
        bound = relative * size + beside * (largest + 1e-30)
        if bool((difference.abs() > bound).any()):
            return False
    return True


def coarsest(dtypes: Iterable[torch.dtype]) -> float:
    """The largest relative distance between neighbours of the floating ones."""
    return max(torch.finfo(d).eps for d in dtypes if d.is_floating_point or d.is_complex)


def equals_one_of(tensors: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> bool:
    """Whether one of some tensors has the very values of one of others, and is not that one."""
    plain = [tensor for tensor in map(concrete, tensors) if tensor is not None and tensor.numel()]
    if not plain:
        return False
    made = [tensor for tensor in map(concrete, others) if tensor is not None]
    return any(
        one.shape == other.shape and one.dtype is other.dtype and _are_equal(one, other)
        for one in plain
        for other in made
    )


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.layout is not other.layout:
        return False
    if not is_sparse(one):
        return torch.equal(one, other)
    held = ([*indices_of(sparse), values_of(sparse)] for sparse in (one, other))
    return all(map(torch.equal, *held))


def size_of(tensors: Sequence[Any]) -> torch.Tensor:
    """The sum of all magnitudes."""
    total = torch.zeros((), dtype=torch.float64)
    for tensor in tensors:
        size = tensor.detach().abs().sum(dtype=torch.float64)
        total = total.to(size.device) + size
    return total


def inner(first: Sequence[Any], second: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The inner product, and the product of the lengths, which bounds what may cancel in it."""
    total, lengths = torch.zeros((), dtype=torch.float64), []
    for a, b in zip(first, second, strict=True):
        product = (torch.conj(a.detach()) * b.detach()).real.to(torch.float64)
        total = total.to(product.device) + product.sum()
    for tensors in (first, second):
        squares = torch.zeros((), dtype=torch.float64, device=total.device)
        for tensor in tensors:
            squares = squares + tensor.detach().abs().to(torch.float64).square().sum()
        lengths.append(squares.sqrt())
    return total, lengths[0] * lengths[1]
