"""The same arguments at another size, so that what was right for one size is tried at many.

A size that several dimensions share is one size: changing it keeps arguments that fit each other
fitting. Larger tensors repeat what was given, a little changed, so that signs, ranges and validity
are kept and ties are not made; smaller ones are a part of larger ones, so that the results at two
sizes can be compared entry by entry. Each keeps the structure that was given (`_structure`).

Where a number in the arguments may stand for a size (an offset, a length, an index past the end),
that size is left as it is: nobody but the author knows how such a number changes with it. Other
integers stay below a size that has shrunk. Whether they may repeat, as those do that are made, is
asked of the Function at the size that was given: `Resizing.control`.

Large arguments are judged by a part of them: a rule is as wrong for a part. A check makes thousands
of calls. What it would not end of arguments with millions of entries, it says in seconds of some
thousand, which a script can hold, too. Sizes are cut down one after the other, the largest first,
as far as forward and backward take them; the clause ``sizes`` goes up from there again.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from pullback.conformance.inputs._arguments import Arguments
from pullback.conformance.inputs._structure import keep, structures
from pullback.conformance.probing._probe import Probe

__all__ = [
    "Resizing", "broadened", "cut_down", "larger", "part_of", "resizings", "shapes_cut_down",
    "stands_for", "together",
]  # fmt: skip

_LARGEST, _ENTRIES = 2**10, 2**16  # of a dimension, and of a tensor, that is made larger by one


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

    def at(self, size: int) -> Arguments | None:
        """The arguments at a size up to the largest: leading parts of the largest ones.

        ``None`` where such a part cannot be an argument of the kind that was given.
        """
        return self.part(0, size)

    def part(self, start: int, size: int) -> Arguments | None:
        """So many entries of the largest that were made; ``None`` as for `at`."""
        return _of_their_kind(self.arguments, self._parts(start, size))

    def control(self) -> Iterator[Arguments]:
        """Arguments of the given size, made as those of other sizes are.

        Numbers are the last ones that were made, and integers each other choice of those given
        that another size may lead to: all the same, or in another order. A Function that is wrong
        there takes arguments of a kind that is not kept.
        """
        made = self._parts(self.largest - self.size, self.size)
        given = self.arguments.values
        whole = [k for k, value in enumerate(given) if not _is_number(value) and value.numel()]
        for pattern in _PATTERNS if whole else _PATTERNS[:1]:
            found = _of_their_kind(
                self.arguments, [pattern(given[k]) if k in whole else x for k, x in enumerate(made)]
            )
            if found is not None:
                yield found

    def _parts(self, start: int, size: int) -> list[torch.Tensor]:
        pairs = zip(self.values, self.places, strict=True)
        return [_part(value, dims, start, size, self.size) for value, dims in pairs]

    @property
    def where(self) -> str:
        """What has the size, for a report: ``"dimension 0 of args[0]"``."""
        pairs = zip(self.arguments.paths, self.places, strict=True)
        named = [f"dimension {d} of {path}" for path, dims in pairs for d in dims]
        return ", ".join(named[:4]) + (", ..." if len(named) > 4 else "")


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
        if stands_for(arguments, size):
            continue
        places = tuple(
            # A size of one beside others is there to be broadcast.
            tuple(d for d, n in enumerate(shape) if n == size and (size > 1 or set(shape) == {1}))
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


def together(
    found: Sequence[Resizing], sizes: Sequence[int], generator: torch.Generator
) -> Arguments | None:
    """The arguments with several sizes changed at once; ``None`` where they lose their kind."""
    arguments = found[0].arguments
    values = list(arguments.values)
    for resizing, size in zip(found, sizes, strict=True):
        for k, dims in enumerate(resizing.places):
            grown = _grown(values[k], dims, size, generator)
            values[k] = _part(grown, dims, 0, size, resizing.size)
    return _of_their_kind(arguments, values)


def larger(arguments: Arguments, generator: torch.Generator, times: int = 1) -> Arguments | None:
    """The arguments with all sizes larger at once; ``None`` where none can be changed.

    Arguments:
        arguments: as given.
        generator: draws what changes repeated entries.
        times: how many times as large, and ``2 * times - 1`` more.
    """
    every = [*resizings(arguments, _LARGEST, _ENTRIES, generator)]
    sizes = [min(times * resizing.size + 2 * times - 1, resizing.largest) for resizing in every]
    return together(every, sizes, generator) if every else None


def broadened(arguments: Arguments, generator: torch.Generator) -> Iterator[Arguments]:
    """The arguments with sizes of one larger: along all dimensions that have it, and along each.

    Arguments:
        arguments: as given.
        generator: draws what changes repeated entries.

    Yields:
        Those that keep to their kind.
    """
    ones = sorted({d for value in arguments.values for d, n in enumerate(value.shape) if n == 1})
    for dims in ([ones] if len(ones) > 1 else []) + [[dim] for dim in ones]:
        values = list(arguments.values)
        for k, value in enumerate(values):
            for dim in (d for d in dims if d < value.ndim and value.shape[d] == 1):
                values[k] = _grown(values[k], [dim], 2 + dim % 2, generator)
        found = _of_their_kind(arguments, values)
        if found is not None:
            yield found


def _part(
    value: torch.Tensor, dims: Sequence[int], start: int, size: int, given: int
) -> torch.Tensor:
    """So many entries along some dimensions, from one on."""
    for dim in dims:
        value = value.narrow(dim, start, size)
    if size < given and value.dtype != torch.bool and not _is_number(value):
        # What was below a size as it was given is an index into it, or a length within.
        value = value.clamp(max=size - 1)
    return value.contiguous()


def _of_their_kind(arguments: Arguments, made: Sequence[torch.Tensor]) -> Arguments | None:
    kept = [keep(given, value) for given, value in zip(arguments.values, made, strict=True)]
    found = [value for value in kept if value is not None]
    return arguments.with_values(found) if len(found) == len(kept) else None


def _bound(shape: Sequence[int], dims: Sequence[int], entries: int) -> int:
    """The largest size of some dimensions at which a tensor has no more than so many entries."""
    others = math.prod(max(n, 1) for d, n in enumerate(shape) if d not in dims)
    return int((entries / others) ** (1 / len(dims)))


def stands_for(arguments: Arguments, size: int, apart: Sequence[int] = ()) -> bool:
    """Whether a number in the arguments may stand for the size, or numbers that make it up.

    Tensors that are set apart change with it entry by entry, as labels of rows do.
    """
    counts = [leaf for leaf in arguments.others() if type(leaf) is int and leaf > 1]
    sizes = {n for value in arguments.values for n in value.shape if n > 1}
    if size > 1 and any(
        size == count or size * count in sizes or (size % count == 0 and size // count in sizes)
        for count in counts
    ):
        return True
    return any(
        # Past the end: not labels, of which each row has one of its own.
        (value.max() >= size and (size not in value.shape or value.max() == size))
        or (size in value.shape and _rises(value))
        or (size > 1 and size in _made_of(value))
        for k, value in enumerate(arguments.values)
        if k not in apart and value.numel() and not (_is_number(value) or value.dtype == torch.bool)
    )


def _is_number(value: torch.Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _rises(value: torch.Tensor) -> bool:
    """Whether integers may be offsets."""
    flat = value.reshape(-1)
    return len(flat) > 2 and bool((flat.diff() >= 0).all())


def _made_of(value: torch.Tensor) -> set[int]:
    """What integers add up to: lengths of segments, and shapes one after the other.

    An index is zero somewhere, as a rule, which a length is not.
    """
    if int(value.min()) < 1:
        return set()
    rows = value.reshape(-1, value.shape[-1]) if value.ndim else value.reshape(1, 1)
    sums = {int(row.sum()) for row in rows}
    return sums | {int(rows.sum()), int(rows.prod(-1).sum())}


def _all(value: torch.Tensor, entry: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    whole = value.dtype != torch.bool
    return torch.full_like(value, int(entry(value))) if whole else value.flip(-1)


_PATTERNS: Sequence[Callable[[torch.Tensor], torch.Tensor]] = (
    lambda value: value.flip(tuple(range(value.ndim))),
    lambda value: _all(value, torch.amin),
    lambda value: _all(value, torch.amax),
)


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
    if not _is_number(value):
        return value
    finite = value.abs()[value.isfinite()].double()
    if not finite.numel() or bool((finite == finite.round()).all() & (finite <= 1).all()):
        return value  # a mask, or one-hot
    drawn = torch.rand(value.shape, dtype=torch.float64, generator=generator, device="cpu")
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
    if value.is_floating_point() and not structures(value) and not _is_whole(value):
        drawn = torch.randn(large.shape, dtype=torch.float64, generator=generator, device="cpu")
        typical = float(value.double().square().mean().sqrt())
        noise = (0.02 * typical * given / size**0.5 * drawn).to(value)
        noise[..., :given, :given] = 0
        large = large + noise
    return large[..., :size, :size].contiguous()


def _is_whole(value: torch.Tensor) -> bool:
    return not value.is_floating_point() or bool((value == value.round()).all())


_LARGE, _ENOUGH = 2**18, 2**12  # entries of all arguments
_SMALLEST = 7  # that a size is cut down to


def part_of(probe: Probe, runs: Callable[[Probe], bool]) -> Probe:
    """The probe at a part of its arguments, where these are large, and it runs with that."""
    given = probe.inputs
    if given.entries <= _LARGE:
        return probe
    found = cut_down(given, _ENOUGH, lambda inputs: runs(probe.at(inputs)))
    return probe if found is given else probe.at(found)


def cut_down(given: Arguments, entries: int, takes: Callable[[Arguments], bool]) -> Arguments:
    """The arguments with their largest sizes cut down, as far as they are taken so.

    Arguments:
        given: the arguments.
        entries: of all tensors together, to which they are cut down.
        takes: whether arguments are taken.
    """
    refused: set[int] = set()
    while given.entries > entries:
        found = [
            one for one in resizings(given, 0, 0, torch.Generator())
            if one.size > _SMALLEST and one.size not in refused
        ]  # fmt: skip
        if not found:
            break
        whole, share = found[0].size, entries / given.entries
        wanted = max(_SMALLEST, int(whole * share**0.5))  # other sizes are cut down, too
        others = {n for value in given.values for n in value.shape}
        free = (n for n in range(wanted, whole) if n not in others)
        made = next((found[0].at(n) for n in free), None)
        if made is not None and takes(made):
            given = made
        else:
            refused.add(whole)
    return given


def shapes_cut_down(given: Arguments, judged: Arguments) -> tuple[str, ...]:
    """What was made smaller, in words, tensor by tensor."""
    pairs = zip(given.paths, given.values, judged.values, strict=False)
    return tuple(
        f"{path} {tuple(whole.shape)} as {tuple(part.shape)}"
        for path, whole, part in pairs
        if part.numel() < whole.numel()
    )
