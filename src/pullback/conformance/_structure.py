"""What kind of argument a tensor is, so that whatever is made of it is an argument of that kind.

A solver takes symmetric matrices, a loss probabilities that add up to one, a table knots that rise.
Nobody says so in the signature, and outside of its domain a right Function is silently another. The
one sign of it is the tensor that was given: what it fulfils beyond chance (a symmetry, a sum, an
order), everything made of it fulfils too. Each structure is a test and a way back to the nearest
tensor that passes it; what cannot be brought back is not tried at all.

A range is another matter: numbers may be positive by chance. It is left, and whoever accuses a
Function outside of it asks first whether it is right at ordinary numbers there (`outside`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

__all__ = ["keep", "keep_step", "outside", "stepping", "structures", "ties_matrices"]


@dataclass(frozen=True)
class Structure:
    """One thing that a tensor may fulfil.

    Arguments:
        name: what such a tensor is called.
        holds: whether a tensor is one.
        restore: the nearest such tensor, or one close to it.
        linear: whether sums of such tensors are such tensors, so that steps have it too.
        dim: what ties the entries along that dimension; 0 where it ties those of a matrix.
        is_told: whether a tensor that fulfils it hardly does so by chance.
    """

    name: str
    holds: Callable[[torch.Tensor], bool]
    restore: Callable[[torch.Tensor], torch.Tensor]
    linear: bool = False
    dim: int = 0
    is_told: Callable[[torch.Tensor], bool] = lambda tensor: True


def structures(tensor: torch.Tensor) -> list[Structure]:
    """The structures of a tensor, in the order in which they are put back.

    Example:
        >>> a = torch.randn(3, 3)
        >>> [found.name for found in structures(a @ a.mT)]
        ['symmetric', 'definite']
    """
    if not _has_numbers(tensor):
        return []
    # A matrix of one entry has every symmetry, which says nothing.
    square = tensor.ndim >= 2 and tensor.shape[-1] > 1
    found = [one for one in _OF_MATRICES if square and one.holds(tensor)]
    rows = [] if tensor.is_complex() else _of_rows(tensor)
    return found + next(([one] for one in rows if one.holds(tensor) and one.is_told(tensor)), [])


def keep(given: torch.Tensor, made: torch.Tensor) -> torch.Tensor | None:
    """What was made of a tensor, with the structure of the one that was given.

    Arguments:
        given: the tensor as the caller gave it.
        made: other numbers, of another size or not.

    Returns:
        ``made`` itself where it has the structure already; ``None`` where it cannot have it.

    Example:
        >>> share = torch.tensor([0.25, 0.75])
        >>> keep(share, torch.tensor([1.0, 3.0, 4.0])).tolist()
        [0.125, 0.375, 0.5]
        >>> keep(share, torch.zeros(2)) is None
        True
    """
    wanted = structures(given)
    if not wanted or not made.numel():
        return made
    if made.ndim != given.ndim or not bool(made.isfinite().all()):
        return None
    if any(found.dim and made.shape[found.dim] == 1 for found in wanted):
        return None  # a share of one alone is one, at the end of its range
    for structure in wanted:
        if not structure.holds(made):
            made = structure.restore(made)
    return made if all(structure.holds(made) for structure in wanted) else None


def keep_step(point: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """Keep a step inside the linear structure of a point: symmetric, triangular."""
    return stepping(point)(step)


def stepping(point: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """The orthogonal projection of steps onto those that keep the linear structure of a point."""
    linear = [structure.restore for structure in structures(point) if structure.linear]

    def project(step: torch.Tensor) -> torch.Tensor:
        for restore in linear:
            step = restore(step)
        return step

    return project


def ties_matrices(tensor: torch.Tensor) -> bool:
    """Whether entries of a matrix are tied to each other, so that none moves by itself."""
    return any(not found.dim for found in structures(tensor))


def outside(given: torch.Tensor, made: torch.Tensor) -> bool:
    """Whether numbers leave a range that all given ones lie in: zero and more, or up to one too.

    Example:
        >>> outside(torch.tensor([0.5, 0.25]), torch.tensor([2.0, 0.25]))
        True
    """
    if not given.is_floating_point() or not (given.numel() and made.numel()):
        return False
    low, high = given.min(), given.max()
    if low >= 0 and (made.min() < 0 or (high <= 1 and made.max() > 1)):
        return True
    return bool(high <= 0 < made.max())


def _has_numbers(tensor: torch.Tensor) -> bool:
    continuous = tensor.is_floating_point() or tensor.is_complex()
    return continuous and bool(tensor.isfinite().all()) and bool(tensor.any())


def _rounding(tensor: torch.Tensor) -> float:
    """How far what is computed may be off, beside its largest entry."""
    return 100 * torch.finfo(tensor.dtype).eps


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    size = float(one.abs().max()) if one.numel() else 0.0
    return bool(((one - other).abs() <= _rounding(one) * size).all())


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _is_square(x: torch.Tensor) -> bool:
    return x.ndim >= 2 and x.shape[-1] == x.shape[-2] and x.numel() > 0


# Matrices -----------------------------------------------------------------------------------------


def _is_symmetric(x: torch.Tensor) -> bool:
    return _is_square(x) and _equal(x, x.mH)


def _is_definite(x: torch.Tensor) -> bool:
    if not _is_symmetric(x):
        return False
    values = torch.linalg.eigvalsh(_wide(x))
    return bool((values[..., 0] > _rounding(x) * values[..., -1]).all())


def _lift(x: torch.Tensor) -> torch.Tensor:
    """Eigenvalues moved up until the smallest is a hundredth of the largest."""
    values = torch.linalg.eigvalsh(_wide(x))
    low = (0.01 * values.abs().amax(-1) - values[..., 0]).clamp(min=0)
    eye = torch.eye(x.shape[-1], dtype=torch.float64, device=x.device)
    return x + (low[..., None, None] * eye).to(x.dtype)


def _is_orthogonal(x: torch.Tensor) -> bool:
    if not _is_square(x):
        return False
    eye = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    return _equal(eye.expand_as(x), x @ x.mH)


def _turn(x: torch.Tensor) -> torch.Tensor:
    """The nearest orthogonal matrix: the polar factor."""
    left, _, right = torch.linalg.svd(_wide(x))
    return (left @ right).to(x.dtype)


def _triangle(keep_triangle: Callable[[torch.Tensor], torch.Tensor], name: str) -> Structure:
    def holds(x: torch.Tensor) -> bool:
        return _is_square(x) and torch.equal(x, keep_triangle(x))

    return Structure(name, holds, keep_triangle, linear=True)


_OF_MATRICES = (
    Structure("symmetric", _is_symmetric, lambda x: (x + x.mH) / 2, linear=True),
    Structure("antisymmetric", lambda x: _is_square(x) and _equal(x, -x.mH),
              lambda x: (x - x.mH) / 2, linear=True),
    _triangle(torch.tril, "lower triangular"),
    _triangle(torch.triu, "upper triangular"),
    Structure("definite", _is_definite, _lift),
    Structure("orthogonal", _is_orthogonal, _turn),
)  # fmt: skip


# Rows ---------------------------------------------------------------------------------------------


def _of_rows(tensor: torch.Tensor) -> list[Structure]:
    """What the rows along one dimension may be, the last dimension first, the strictest first."""
    dims = [d for d in range(tensor.ndim - 1, -1, -1) if tensor.shape[d] > 1]
    along = [_rows(d - tensor.ndim) for d in dims]
    return [one for kind in zip(*along, strict=True) for one in kind]


def _rows(dim: int) -> list[Structure]:
    return [
        Structure(name, partial(holds, dim=dim), partial(restore, dim=dim), dim=dim,
                  is_told=partial(is_told, dim=dim))
        for name, holds, restore, is_told in _OF_ROWS
    ]  # fmt: skip


def _is_mask(x: torch.Tensor, dim: int) -> bool:
    return bool(((x == 0) | (x == 1)).all())


def _one_hot(x: torch.Tensor, dim: int) -> torch.Tensor:
    """A one at the first of the largest entries of each row."""
    return torch.zeros_like(x).scatter(dim, x.argmax(dim, keepdim=True), 1.0)


def _is_near_one(sums: torch.Tensor, x: torch.Tensor) -> bool:
    return bool(((sums - 1).abs() <= _rounding(x)).all())


def _adds_up(x: torch.Tensor, dim: int) -> bool:
    return bool((x >= 0).all()) and _is_near_one(x.sum(dim), x)


def _share(x: torch.Tensor, dim: int) -> torch.Tensor:
    size = x.abs()
    return size / size.sum(dim, keepdim=True)


def _rises(x: torch.Tensor, dim: int) -> bool:
    return bool((x.diff(dim=dim) >= 0).all())


def _is_order_told(x: torch.Tensor, dim: int) -> bool:
    """Whether one of a hundred tensors at most is in order by chance.

    Rows of equal entries are in every order: a tensor that was expanded along ``dim`` has no other.
    """
    rows, count = int((x.diff(dim=dim) != 0).any(dim).sum()), x.shape[dim]
    return rows * math.lgamma(count + 1) > math.log(100)


def _always(x: torch.Tensor, dim: int) -> bool:
    return True


_OF_ROWS = (
    ("one-hot", lambda x, dim: _is_mask(x, dim) and bool((x.sum(dim) == 1).all()), _one_hot,
     _always),
    ("a mask", _is_mask, lambda x, dim: (x.abs() > 0.5).to(x.dtype),
     lambda x, dim: bool((x == 0).any())),
    ("adding up to one", _adds_up, _share, _always),
    ("of length one", lambda x, dim: _is_near_one(x.square().sum(dim), x),
     lambda x, dim: x / x.norm(dim=dim, keepdim=True), _always),
    ("logarithms of shares",
     lambda x, dim: bool((x <= 0).all()) and _is_near_one(x.exp().sum(dim), x),
     lambda x, dim: x.log_softmax(dim), _always),
    ("rising", _rises, lambda x, dim: x.sort(dim).values, _is_order_told),
    ("falling", lambda x, dim: _rises(-x, dim),
     lambda x, dim: x.sort(dim, descending=True).values, _is_order_told),
)  # fmt: skip
