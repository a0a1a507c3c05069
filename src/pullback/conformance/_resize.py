"""The same arguments at another size, so that what was right for one size is tried at many.

A size that several dimensions share is one size: changing it keeps arguments that fit each other
fitting. Larger tensors repeat what was given, a little changed, so that signs, ranges and validity
are kept and ties are not made; smaller ones are a part of larger ones, so that the results at two
sizes can be compared entry by entry. Where a number in the arguments may stand for a size (an
offset, a length, an index past the end), that size is left as it is: nobody but the author knows
how such a number changes with it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from pullback.conformance._arguments import Arguments
from pullback.conformance._tree import leaves

__all__ = ["Resizing", "resizings"]


@dataclass(frozen=True)
class Resizing:
    """One size of the arguments, and the arguments at its largest.

    Arguments:
        size: the size as it was given.
        largest: the largest size that was made.
        places: for each tensor, the dimensions that have the size.
        arguments: the arguments as given.
        values: every tensor at the largest size.
    """

    size: int
    largest: int
    places: tuple[tuple[int, ...], ...]
    arguments: Arguments
    values: tuple[torch.Tensor, ...]

    def at(self, size: int) -> Arguments:
        """The arguments at a size up to the largest: leading parts of the largest ones."""
        parts = []
        for value, dims in zip(self.values, self.places, strict=True):
            part = value
            for dim in dims:
                part = part.narrow(dim, 0, size)
            if part.dtype in _INTEGERS and part.numel():
                part = _inside(part, self.size, size)
            parts.append(part.contiguous())
        return self.arguments.with_values(parts)

    @property
    def where(self) -> str:
        """What has the size, for a report: ``"dimension 0 of args[0]"``."""
        pairs = zip(self.arguments.paths, self.places, strict=True)
        named = [f"dimension {d} of {path}" for path, dims in pairs for d in dims]
        return ", ".join(named[:4]) + (", ..." if len(named) > 4 else "")


_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


def resizings(
    arguments: Arguments, largest: int, entries: int, generator: torch.Generator
) -> Iterator[Resizing]:
    """Each size of the arguments that may be changed.

    Arguments:
        arguments: as given.
        largest: the largest size to make.
        entries: the most entries that a tensor may have; larger sizes are cut off there.
        generator: draws what changes repeated entries.

    Yields:
        One for each size that some differentiated tensor has, the largest size first.
    """
    shapes = [tuple(value.shape) for value in arguments.values]
    sizes = {n for k in arguments.differentiable for n in shapes[k] if n > 0}
    for size in sorted(sizes, reverse=True):
        if _stands_for(arguments, size):
            continue
        places = tuple(
            tuple(d for d, n in enumerate(shape) if n == size) if _may_grow(size, shape) else ()
            for shape in shapes
        )
        if not any(places):
            continue
        pairs = [(shape, dims) for shape, dims in zip(shapes, places, strict=True) if dims]
        bound = max(size, min(largest, *(_bound(shape, dims, entries) for shape, dims in pairs)))
        values = tuple(
            _grown(value, dims, bound, generator)
            for value, dims in zip(arguments.values, places, strict=True)
        )
        yield Resizing(size, bound, places, arguments, values)


def _may_grow(size: int, shape: Sequence[int]) -> bool:
    """A size of one beside others is there to be broadcast."""
    return size > 1 or all(n == 1 for n in shape)


def _bound(shape: Sequence[int], dims: Sequence[int], entries: int) -> int:
    """The largest size of some dimensions at which a tensor has no more than so many entries."""
    others = math.prod(max(n, 1) for d, n in enumerate(shape) if d not in dims)
    return int((entries / others) ** (1 / len(dims)))


def _stands_for(arguments: Arguments, size: int) -> bool:
    """Whether a number in the arguments may stand for the size."""
    plain = leaves((arguments.args, dict(arguments.kwargs)))
    if any(type(leaf) is int and leaf == size and size > 1 for leaf in plain):
        return True
    for value in arguments.values:
        if value.dtype not in _INTEGERS or not value.numel():
            continue
        if int(value.max()) >= size:
            return True
        flat = value.reshape(-1)
        if size in value.shape and len(flat) > 2 and bool((flat.diff() >= 0).all()):
            return True  # offsets
        if len(flat) == size and len(torch.unique(flat)) == size:
            return True  # a permutation
    return False


def _inside(value: torch.Tensor, given: int, size: int) -> torch.Tensor:
    """Indices that fit into a dimension that has shrunk."""
    return torch.where((value >= size) & (value < given), value % size, value)


def _grown(
    value: torch.Tensor, dims: Sequence[int], size: int, generator: torch.Generator
) -> torch.Tensor:
    if not dims or max(value.shape[d] for d in dims) >= size:
        return value
    if len(dims) >= 2 and dims[-2:] == (value.ndim - 2, value.ndim - 1):
        value = _diagonal(value, size, generator)
        dims = dims[:-2]
    for dim in dims:
        repeats = -(-size // value.shape[dim])
        parts = torch.cat([value] * repeats, dim).narrow(dim, 0, size)
        start = value.shape[dim]
        fresh = parts.narrow(dim, start, size - start)
        value = torch.cat([value, _changed(fresh, generator)], dim)
    return value


def _changed(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Entries changed by up to 5 %, with their sign; whole numbers stay whole."""
    if not (value.is_floating_point() or value.is_complex()):
        return value
    finite = value.abs()[value.isfinite()].double()
    if not finite.numel() or bool((finite == finite.round()).all() & (finite <= 1).all()):
        return value  # a mask, or one-hot
    drawn = torch.rand(value.shape, dtype=torch.float64, generator=generator)
    factor = (1 + 0.1 * (drawn - 0.5)).to(value.device)
    return value * factor.to(value.dtype)


def _diagonal(value: torch.Tensor, size: int, generator: torch.Generator) -> torch.Tensor:
    """Square matrices as blocks on the diagonal: what is definite or triangular stays so."""
    given = value.shape[-1]
    blocks = -(-size // given)
    large = value.new_zeros((*value.shape[:-2], blocks * given, blocks * given))
    for k in range(blocks):
        part = slice(k * given, (k + 1) * given)
        # Other factors keep eigenvalues apart.
        large[..., part, part] = value if _is_whole(value) else value * (1 + 0.5 * k / blocks)
    if value.is_floating_point() and not _is_structured(value) and not _is_whole(value):
        drawn = torch.randn(large.shape, dtype=torch.float64, generator=generator)
        typical = float(value.double().square().mean().sqrt())
        noise = (0.02 * typical * given / size**0.5 * drawn).to(value)
        noise[..., :given, :given] = 0
        large = large + noise
    return large[..., :size, :size].contiguous()


def _is_whole(value: torch.Tensor) -> bool:
    return not value.is_floating_point() or bool((value == value.round()).all())


def _is_structured(value: torch.Tensor) -> bool:
    """Symmetric, triangular or orthogonal."""
    close = torch.eye(value.shape[-1], dtype=value.dtype, device=value.device)
    return (
        torch.equal(value, value.mT)
        or any(torch.equal(value, keep(value)) for keep in (torch.tril, torch.triu))
        or bool(torch.allclose(value @ value.mT, close.expand_as(value), atol=1e-5))
    )
