"""Special values for the same arguments: zeros, ties, masks, very large and very small numbers."""

from collections.abc import Callable, Iterator, Sequence

import torch

from pullback.conformance._arguments import Arguments
from pullback.conformance._structure import keep
from pullback.conformance._values import same_bits

__all__ = ["scaled", "specials"]

Change = Callable[[torch.Tensor], torch.Tensor]


def specials(arguments: Arguments) -> Iterator[tuple[str, Arguments]]:
    """The arguments with special values in place of their own.

    Each is tried in all differentiated inputs at once, then in each input alone. Masks are tried
    empty and full. Other integers are left as they are: a kernel may read what they point to.

    Arguments:
        arguments: as given.

    Yields:
        Pairs of a name and arguments.
    """
    for name, made in _specials(arguments):
        pairs = zip(made.values, arguments.values, strict=True)
        if any(not same_bits(one, given) for one, given in pairs):
            yield name, made


def _specials(arguments: Arguments) -> Iterator[tuple[str, Arguments]]:
    positions = [k for k in arguments.differentiable if arguments.values[k].numel()]
    first = arguments.values[positions[0]] if positions else None
    alike = [k for k in positions if first is not None and _alike(arguments.values[k], first)]
    if len(alike) > 1:
        yield "equal inputs", _changed(arguments, alike, lambda value: arguments.values[alike[0]])
    choices = [positions, *([[k] for k in positions[:3]] if len(positions) > 1 else [])]
    for chosen in choices:
        where = "every input" if chosen is choices[0] else arguments.paths[chosen[0]]
        for name, change in _CHANGES.items():
            yield f"{name} in {where}", _changed(arguments, chosen, change)
    if positions:  # scores come first, and are what is masked so
        masked = _changed(arguments, positions[:1], _masked)
        yield f"minus infinity in {arguments.paths[positions[0]]}", masked
    for k, value in enumerate(arguments.values):
        if value.dtype == torch.bool and value.numel():
            for name, fill in (("empty", False), ("full", True)):
                full = torch.full_like(value, fill)
                values = [full if j == k else v for j, v in enumerate(arguments.values)]
                yield f"an {name} mask in {arguments.paths[k]}", arguments.with_values(values)


def scaled(arguments: Arguments, level: torch.dtype) -> Iterator[tuple[str, Arguments]]:
    """The arguments in a precision, with numbers near the ends of its range.

    Arguments:
        arguments: as given.
        level: a floating dtype.

    Yields:
        Pairs of a name and arguments.
    """
    limits = torch.finfo(level)
    name = str(level).removeprefix("torch.")
    for what, size in (("large", limits.max**0.75), ("small", limits.tiny**0.75)):
        for chosen in (arguments.differentiable, arguments.differentiable[:1]):

            def change(value: torch.Tensor, size: float = size) -> torch.Tensor:
                return value / max(_typical(value), 1e-300) * size

            moved = _changed(arguments, chosen, change).cast(level)
            yield f"{what} numbers in {name}", moved
            if len(arguments.differentiable) == 1:
                break


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


def _changed(arguments: Arguments, chosen: Sequence[int], change: Change) -> Arguments:
    """The arguments with some tensors changed, as far as that keeps their structure."""
    given = arguments.values
    made = {k: keep(given[k], change(given[k])) for k in chosen}
    kept = {k: value for k, value in made.items() if value is not None}
    return arguments.with_values([kept.get(k, value) for k, value in enumerate(given)])


def _typical(value: torch.Tensor) -> float:
    size = value.abs().double()
    return float(size.median()) if value.numel() else 0.0


def _every_other(value: torch.Tensor, other: Change) -> torch.Tensor:
    flat = value.reshape(-1).clone()
    flat[::2] = other(value).reshape(-1)[::2]
    return flat.reshape(value.shape)


def _tied(value: torch.Tensor) -> torch.Tensor:
    """Pairs of equal neighbours."""
    flat = value.reshape(-1).clone()
    count = flat.numel() // 2
    flat[1 : 2 * count : 2] = flat[0 : 2 * count : 2]
    return flat.reshape(value.shape)


def _masked(value: torch.Tensor) -> torch.Tensor:
    """Minus infinity in the first entry of each row, as an attention mask has it."""
    if value.is_complex() or not value.ndim or value.shape[-1] < 2:
        return value
    masked = value.clone()
    masked[..., 0] = -torch.inf
    return masked


_CHANGES: dict[str, Change] = {
    "zeros": torch.zeros_like,
    "some zeros": lambda value: _every_other(value, torch.zeros_like),
    "negative zeros": lambda value: torch.full_like(value, -0.0),
    "equal neighbours": _tied,
    "one value": lambda value: torch.full_like(value, _typical(value) or 1.0),
    "large numbers": lambda value: value * 1e6,
    "small numbers": lambda value: value * 1e-8,
}
