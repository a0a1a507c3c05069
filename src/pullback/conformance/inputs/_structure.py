"""What kind of argument a tensor is, so that whatever is made of it is an argument of that kind.

A solver takes symmetric matrices, a loss probabilities that add up to one, a table knots that rise.
Nobody says so in the signature, and outside of its domain a right Function is silently another. The
one sign of it is the tensor that was given: what it fulfils beyond chance (a symmetry, a sum, an
order), everything made of it fulfils too. Each structure is a test and a way back to the nearest
tensor that passes it; what cannot be brought back is not tried at all.

What moves keeps to the structure too. Symmetric matrices are a plane, in which sums stay;
rotations, rows of length one and logarithms of shares are curved, and a step along the tangent
leaves them by its square alone, which no central difference sees (`tangent`). Beside such a set a
derivative is of whatever forward happens to be there, and a backward that is right on it owes
nothing to that.

A range is another matter: numbers may be positive by chance. It is left, and whoever accuses a
Function outside of it asks first whether it is right at ordinary numbers there (`outside`).
"""

from collections.abc import Callable, MutableMapping

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from pullback.conformance.inputs._arguments import is_continuous
from pullback.conformance.inputs._kinds import OF_MATRICES, Structure, of_rows
from pullback.conformance.inputs._vectors import spread
from pullback.internal.torch import version_of

__all__ = [
    "beside", "bound_rows", "keep", "moving", "outside", "structures", "tangent", "ties_matrices",
    "unlike",
]  # fmt: skip


def structures(tensor: torch.Tensor) -> list[Structure]:
    """The structures of a tensor, in the order in which they are put back.

    Example:
        >>> a = torch.randn(3, 3)
        >>> [found.name for found in structures(a @ a.mT)]
        ['symmetric', 'definite']
    """
    version, found = _KNOWN.get(tensor, (None, []))
    if version != version_of(tensor):
        found = _found(tensor)
        _KNOWN[tensor] = version_of(tensor), found
    return found


# Of so many normal numbers all are less than one in one of a hundred tensors.
_MANY = 12
# What the arguments of a check are is asked hundreds of times.
_KNOWN: MutableMapping[torch.Tensor, tuple[int, list[Structure]]] = WeakTensorKeyDictionary()


def _found(tensor: torch.Tensor) -> list[Structure]:
    if tensor.element_size() == 1 or not is_continuous(tensor):  # torch computes nothing in float8
        return []
    if not (bool(tensor.isfinite().all()) and bool(tensor.any())):
        return []
    # A matrix of one entry has every symmetry, which says nothing.
    square = tensor.ndim >= 2 and tensor.shape[-1] > 1
    found = [one for one in OF_MATRICES if square and one.holds(tensor)]
    rows = [] if tensor.is_complex() else of_rows(tensor)
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


def beside(given: torch.Tensor, generator: torch.Generator, far: float) -> torch.Tensor:
    """Other numbers, so far from those that are given; of rows of some kind, other such rows.

    Example:
        >>> share = torch.tensor([0.5, 0.5])
        >>> other = beside(share, torch.Generator().manual_seed(0), 0.1)
        >>> bool(other.sum() == 1), torch.equal(other, share)
        (True, False)
    """
    drawn = far * spread(given, generator)
    if not bound_rows(given):
        return given + drawn
    made = keep(given, given * (1 + drawn))
    return given if made is None else made


def unlike(given: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Numbers that differ, for equal ones: other such rows, where these are of some kind."""
    bound = bound_rows(given)
    return beside(given, generator, 0.5) if bound else spread(given, generator)


def moving(point: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """The projection of steps of single entries onto those along which matrices stay what they are.

    Beside a rotation forward is defined by chance, and a backward may answer along rotations alone.
    Each of these maps is its own transpose, so that it takes gradients there, too. Rows are not
    kept: of a share or a unit vector each entry tells by itself what is wrong.

    Example:
        >>> turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
        >>> step = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
        >>> [round(entry, 6) for entry in moving(turn)(step).flatten().tolist()]
        [0.32, 0.24, -0.24, 0.32]
    """
    kept = [found for found in structures(point) if not found.dim]

    def project(step: torch.Tensor) -> torch.Tensor:
        for structure in kept:
            step = structure.step(point, step)
        return step

    return project


def tangent(
    point: torch.Tensor, step: torch.Tensor, given: torch.Tensor | None = None, *,
    linear: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Turn a step into one along which a point keeps its structure, or that of another tensor.

    Where the linear ones are asked for, a step that stays symmetric, triangular or the like.

    Example:
        >>> unit = torch.tensor([0.6, 0.8])
        >>> [round(entry, 6) for entry in tangent(unit, torch.tensor([1.0, 0.0])).tolist()]
        [0.64, -0.48]
    """
    for structure in structures(point if given is None else given):
        step = structure.step(point, step) if structure.linear or not linear else step
    return step


def bound_rows(tensor: torch.Tensor) -> str:
    """What rows are that steps keep to, where no matrix binds them: others may have other rows.

    Example:
        >>> bound_rows(torch.tensor([0.25, 0.75]))
        'adding up to one'
    """
    bound = [found for found in structures(tensor) if found.along is not None]
    return bound[0].name if bound and bound[0].dim else ""


def ties_matrices(tensor: torch.Tensor) -> bool:
    """Whether entries of a matrix are tied to each other, so that none moves by itself."""
    return any(not found.dim for found in structures(tensor))


def outside(given: torch.Tensor, made: torch.Tensor) -> bool:
    """Whether numbers leave a range that all given ones lie in: zero and more, or up to one too.

    So a cosine does that is larger than one, of as many as are not all so small by chance.

    Example:
        >>> outside(torch.tensor([0.5, 0.25]), torch.tensor([2.0, 0.25]))
        True
    """
    if not given.is_floating_point() or not (given.numel() and made.numel()):
        return False
    low, high = given.min(), given.max()
    if low >= 0 and (made.min() < 0 or (high <= 1 and made.max() > 1)):
        return True
    if given.numel() >= _MANY and low >= -1 and high <= 1 < made.abs().max():
        return True
    return bool(high <= 0 < made.max())
