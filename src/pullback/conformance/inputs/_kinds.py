"""The kinds of tensors that are told by their numbers, and how what is made or moved stays of one.

A way back to the nearest tensor of the kind, and a way to turn any step into one that stays within,
for matrices and for rows along one dimension.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from pullback.conformance.inputs._vectors import wide

__all__ = ["OF_MATRICES", "Structure", "of_rows"]


@dataclass(frozen=True)
class Structure:
    """One thing that a tensor may fulfil."""

    name: str  # what such a tensor is called
    holds: Callable[[torch.Tensor], bool]  # whether a tensor is one
    restore: Callable[[torch.Tensor], torch.Tensor]  # the nearest such tensor, or one close to it
    linear: bool = False  # whether sums of such tensors are such tensors, so that steps have it too
    # makes a step at such a tensor one along which it stays such a tensor; ``None`` for a linear
    # one, whose steps are restored, and for one that has room to every side
    along: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    dim: int = 0  # what ties the entries along that dimension; 0 where it ties those of a matrix
    # whether a tensor that fulfils it hardly does so by chance
    is_told: Callable[[torch.Tensor], bool] = lambda tensor: True

    def step(self, point: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        """A step at a point, turned into one along which it stays such a tensor."""
        if self.linear:
            return self.restore(step)
        return step if self.along is None else self.along(point, step)


def _rounding(tensor: torch.Tensor) -> float:
    """How far what is computed may be off, beside its largest entry."""
    return 100 * torch.finfo(tensor.dtype).eps


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    size = float(one.abs().max()) if one.numel() else 0.0
    close = (one - other).abs() <= _rounding(one) * size
    return math.isfinite(size) and bool(close.all())  # beside an infinite entry all is close


def _is_square(x: torch.Tensor) -> bool:
    return x.ndim >= 2 and x.shape[-1] == x.shape[-2] and x.numel() > 0


# Matrices -----------------------------------------------------------------------------------------


def _is_symmetric(x: torch.Tensor) -> bool:
    return _is_square(x) and _equal(x, x.mH)


def _is_definite(x: torch.Tensor) -> bool:
    if not _is_symmetric(x):
        return False
    values = torch.linalg.eigvalsh(wide(x))
    return bool((values[..., 0] > _rounding(x) * values[..., -1]).all())


def _lift(x: torch.Tensor) -> torch.Tensor:
    """Eigenvalues moved up until the smallest is a hundredth of the largest."""
    values = torch.linalg.eigvalsh(wide(x))
    low = (0.01 * values.abs().amax(-1) - values[..., 0]).clamp(min=0)
    eye = torch.eye(x.shape[-1], dtype=torch.float64, device=x.device)
    return x + (low[..., None, None] * eye).to(x.dtype)


def _stretched(x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """R V R for R = (X / largest eigenvalue)^(1/2), which leaves room however small the others are.

    X + t R V R = R (largest + t V) R is definite for all t up to largest / |V|.
    """
    values, vectors = torch.linalg.eigh(wide(x))
    roots = (values.clamp(min=0) / values[..., -1:]).sqrt()
    root = (vectors * roots[..., None, :]) @ vectors.mH
    return (root @ wide(step) @ root).to(step.dtype)


def _is_orthogonal(x: torch.Tensor) -> bool:
    if x.ndim < 2 or min(x.shape[-2:]) < 2 or not (_is_square(x) or (x.abs() % 1).any()):
        return False  # not one-hot rows of different kinds
    gram = x.mH @ x if x.shape[-2] >= x.shape[-1] else x @ x.mH
    eye = torch.eye(gram.shape[-1], dtype=x.dtype, device=x.device)
    return _equal(eye.expand_as(gram), gram)


def _turn(x: torch.Tensor, *, proper: bool = False) -> torch.Tensor:
    """The nearest orthogonal matrix: the polar factor; of a singular matrix any may be.

    The nearest rotation, where a proper one is asked for, turns the least of its directions back.
    """
    left, sizes, right = torch.linalg.svd(wide(x), full_matrices=False)
    if not bool((sizes[..., -1] > _rounding(x) * sizes[..., 0]).all()):
        return x
    signs = torch.ones_like(sizes)
    if proper:
        signs[..., -1] = torch.linalg.det(left @ right).sign()
    return (left * signs[..., None, :] @ right).to(x.dtype)


def _is_rotation(x: torch.Tensor) -> bool:
    real = _is_square(x) and not x.is_complex()
    return real and _is_orthogonal(x) and bool((torch.linalg.det(x) > 0).all())


def _turning(x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """V - X (X'V + V'X) / 2, since X'X = 1 stays where X'V + V'X = 0; of wide ones transposed."""
    if x.shape[-2] < x.shape[-1]:
        return _turning(x.mH, step.mH).mH
    return step - x @ (x.mH @ step + step.mH @ x) / 2


def _is_rigid(x: torch.Tensor) -> bool:
    """Whether it is [R | t], with a rotation R, alone or above the row that moves no place."""
    if not _has_room(x):
        return False
    turn, last = _parts(x)
    return _is_rotation(turn) and bool((last == _parts(_still(x))[1]).all())


def _has_room(x: torch.Tensor) -> bool:
    """Whether it has the shape of motions in two dimensions or more."""
    return x.ndim > 1 and x.shape[-1] > 2 and x.shape[-1] - x.shape[-2] in (0, 1)


def _parts(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What turns space, and the last row where there is one, as they lie in a rigid motion."""
    count = x.shape[-1] - 1
    return x[..., :count, :count], x[..., count:, :]


def _still(x: torch.Tensor) -> torch.Tensor:
    """What moves nothing, of the size of another motion."""
    return torch.eye(*x.shape[-2:], dtype=x.dtype, device=x.device).expand(x.shape)


def _carry(x: torch.Tensor) -> torch.Tensor:
    """The nearest rigid motion, of what may be one."""
    if not _has_room(x):
        return x
    found = x.clone()
    turn, last = _parts(found)
    turn.copy_(_turn(turn, proper=True))
    last.copy_(_parts(_still(x))[1])
    return found


def _carrying(x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    found = step.clone()
    turn, last = _parts(found)
    turn.copy_(_turning(_parts(x)[0], turn))
    last.zero_()
    return found


def _triangle(keep_triangle: Callable[[torch.Tensor], torch.Tensor], name: str) -> Structure:
    def holds(x: torch.Tensor) -> bool:
        return _is_square(x) and torch.equal(x, keep_triangle(x))

    return Structure(name, holds, keep_triangle, linear=True)


OF_MATRICES = (
    Structure("symmetric", _is_symmetric, lambda x: (x + x.mH) / 2, linear=True),
    Structure("antisymmetric", lambda x: _is_square(x) and _equal(x, -x.mH),
              lambda x: (x - x.mH) / 2, linear=True),
    _triangle(torch.tril, "lower triangular"),
    _triangle(torch.triu, "upper triangular"),
    Structure("definite", _is_definite, _lift, along=_stretched),
    Structure("orthogonal", _is_orthogonal, _turn, along=_turning),
    Structure("a rotation", _is_rotation, partial(_turn, proper=True)),
    Structure("a rigid motion", _is_rigid, _carry, along=_carrying),
)  # fmt: skip


# Rows ---------------------------------------------------------------------------------------------


def of_rows(tensor: torch.Tensor) -> list[Structure]:
    """What the rows along one dimension may be, the last dimension first, the strictest first."""
    dims = [d for d in range(tensor.ndim - 1, -1, -1) if tensor.shape[d] > 1]
    along = [_rows(d - tensor.ndim) for d in dims]
    return [one for kind in zip(*along, strict=True) for one in kind]


def _rows(dim: int) -> list[Structure]:
    return [
        Structure(name, partial(holds, dim=dim), partial(restore, dim=dim), dim=dim,
                  is_told=partial(is_told, dim=dim), along=along and partial(along, dim=dim))
        for name, holds, restore, is_told, along in _OF_ROWS
    ]  # fmt: skip


def _is_mask(x: torch.Tensor, dim: int) -> bool:
    return bool(((x == 0) | (x == 1)).all())


def _is_near_one(sums: torch.Tensor, x: torch.Tensor) -> bool:
    return bool(((sums - 1).abs() <= _rounding(x)).all())


def _moving(weights: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """What keeps the sum of all h(x_k), given the derivative h' for each entry.

    It is V - s <h', V> / <h', s> with a side step s of the sign of h', in proportion to each entry,
    so that signs and zeros stay.
    """

    def along(x: torch.Tensor, step: torch.Tensor, dim: int) -> torch.Tensor:
        slope = weights(x)
        aside = slope.sign() * x.abs()
        share = (slope * step).sum(dim, keepdim=True) / (slope * aside).sum(dim, keepdim=True)
        return step - aside * share

    return along


def _rises(x: torch.Tensor, dim: int) -> bool:
    return bool((x.diff(dim=dim) >= 0).all())


def _is_order_told(x: torch.Tensor, dim: int) -> bool:
    """Whether one of twenty tensors at most is in order by chance, as a table of four knots.

    Rows of equal entries are in every order: a tensor that was expanded along ``dim`` has no other.
    """
    rows, count = int((x.diff(dim=dim) != 0).any(dim).sum()), x.shape[dim]
    return rows * math.lgamma(count + 1) > math.log(20)


def _always(x: torch.Tensor, dim: int) -> bool:
    return True


_OF_ROWS = (
    ("one-hot", lambda x, dim: _is_mask(x, dim) and bool((x.sum(dim) == 1).all()),
     # A one at the first of the largest entries of each row.
     lambda x, dim: torch.zeros_like(x).scatter(dim, x.argmax(dim, keepdim=True), 1.0),
     _always, None),
    ("a mask", _is_mask, lambda x, dim: (x.abs() > 0.5).to(x.dtype),
     lambda x, dim: bool((x == 0).any()), None),
    ("adding up to one", lambda x, dim: bool((x >= 0).all()) and _is_near_one(x.sum(dim), x),
     lambda x, dim: x.abs() / x.abs().sum(dim, keepdim=True), _always, _moving(torch.ones_like)),
    ("of length one", lambda x, dim: _is_near_one(x.square().sum(dim), x),
     lambda x, dim: x / x.norm(dim=dim, keepdim=True), _always, _moving(lambda x: 2 * x)),
    ("logarithms of shares",
     lambda x, dim: bool((x <= 0).all()) and _is_near_one(x.exp().sum(dim), x),
     lambda x, dim: x.log_softmax(dim), _always, _moving(torch.exp)),
    ("rising", _rises, lambda x, dim: x.sort(dim).values, _is_order_told, None),
    ("falling", lambda x, dim: _rises(-x, dim),
     lambda x, dim: x.sort(dim, descending=True).values, _is_order_told, None),
)  # fmt: skip
