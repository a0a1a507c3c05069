"""Special values for the same arguments: zeros, ties, masks, very large and very small numbers."""

from collections.abc import Callable, Iterator, Sequence

import torch

from pullback.conformance._arguments import Arguments
from pullback.conformance._structure import keep
from pullback.conformance._values import same_bits

__all__ = ["one_sided", "scaled", "specials"]

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


def one_sided(
    function: Callable[[float], float], side: float, step: float, *, at_zero: bool
) -> tuple[float, float] | None:
    """The derivative of a function of one number at zero, from one side.

    The quotients at eight steps, each a quarter of the one before, are extrapolated once. Only
    where the last three agree is there a limit: a root or a logarithm has none. A limit of zero
    has no digits to agree in: it is told beside the largest quotient.

    Arguments:
        function: a function of a real number.
        side: 1.0 from above, -1.0 from below.
        step: the largest step.
        at_zero: what moves starts at zero, so that steps of any size can be told from none.

    Returns:
        The derivative and how far rounding may have moved it, or ``None`` where it cannot be told
        or is not finite.

    Example:
        >>> one_sided(abs, -1.0, 0.1, at_zero=True)
        (-1.0, 0.0)
        >>> one_sided(lambda t: abs(t) ** 0.5, 1.0, 0.1, at_zero=True) is None
        True
    """
    base = function(0.0)
    steps = [side * step / 4.0**level for level in range(8)]
    quotients = [(function(h) - base) / h for h in steps]
    pairs = zip(quotients[1:], quotients, strict=False)
    limits = [(4 * fine - coarse) / 3 for fine, coarse in pairs][-3:]
    limit, spread = limits[-1], max(limits) - min(limits)
    noise = 1e-15 * abs(base) / abs(steps[-1])
    largest = max(map(abs, quotients))
    settled = spread <= 1e-4 * abs(limit) + 1e-6 * largest + 10 * noise
    if base == 0.0 and at_zero:
        # A feature that is smaller than the smallest step is looked for where zero allows it.
        finest = [function(h) / h for h in (side * step * t for t in (1e-9, 1e-12, 1e-15))]
        if abs(finest[-1]) < 1e-5 * largest:
            return 0.0, 0.0  # as x to the power of 1.5
        settled = settled and max(abs(q - limit) for q in finest) <= 1e-3 * abs(limit)
    elif not settled or (largest * 1e-3 < noise > 1e-9 and largest):
        return None
    else:
        near = 1e-3 * abs(limit) + abs(quotients[-1] - limit)
        settled = _holds_below(function, limit, steps[-1], near, 0.1 * largest)
    return (limit, 10 * noise) if settled else None


def _holds_below(
    function: Callable[[float], float], limit: float, step: float, near: float, most: float
) -> bool:
    """Whether the quotients at all smaller steps that rounding leaves are near the limit too.

    The sine of a large number's square swings within the smallest step, and has another slope.
    """
    base = function(0.0)
    for level in range(1, 13):
        h = step * 10.0**-level
        noise = 1e-15 * abs(base / h)
        if noise > most:
            return True
        if abs((function(h) - base) / h - limit) > near + 3 * noise:
            return False
    return True


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


def _constant(value: torch.Tensor) -> torch.Tensor:
    return torch.full_like(value, _typical(value) or 1.0)


def _negative_zero(value: torch.Tensor) -> torch.Tensor:
    return torch.full_like(value, -0.0)


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
    "negative zeros": _negative_zero,
    "equal neighbours": _tied,
    "one value": _constant,
    "large numbers": lambda value: value * 1e6,
    "small numbers": lambda value: value * 1e-8,
}
