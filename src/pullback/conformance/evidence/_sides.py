"""What lies on one side of a special value, by differences to that side alone.

At such a value a function may have a kink, a jump, a root, or a feature as small as what its author
adds to a denominator, so that nothing is taken for granted there: each side is looked at by itself,
at eight steps h, each a quarter of the one before, then ten times closer each
time. q(h) = (f(h) - f(0)) / h = f' + h f''/2 + ..., so that (4 q(h / 4) - q(h)) / 3 is f' up to
h^2. Only where the last three of these agree is there a limit: a root or a logarithm has none. A
limit of zero has no digits to agree in: it is told beside the largest quotient. f is rounded at 0
and at h, and so is what moves: 4 eps (|f| + |x f'|) / h is noise; where both are zero steps of any
size can be told from none. At all smaller steps whose noise is less than a tenth of the largest
quotient the quotient stays within 3e-5 of the limit, as is asked of a derivative elsewhere; else
there is none: the sine of a large number's square swings within the eighth step.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from pullback.conformance.evidence._evidence import agreement, steps_from

__all__ = ["Side", "look"]

_CLOSER = 10  # steps that are closer than the eight


@dataclass(frozen=True)
class Side:
    """What lies on one side of zero, for each entry."""

    slope: torch.Tensor  # the one-sided derivative, shape ``(n,)``, float64
    error: torch.Tensor  # how far it may be off, by rounding and by what was extrapolated
    told: torch.Tensor  # where there is one
    change: torch.Tensor  # how far the entry changes within the largest step
    # whether a tenth of all that changes does so within the smallest of the eight steps
    jumps: bool


def look(
    function: Callable[[float], torch.Tensor],
    side: float,
    step: float,
    reach: float = 0.0,
    grain: float = 0.0,
) -> Side | None:
    """Scan one side.

    Arguments:
        function: maps a real number to a real vector, shape ``(n,)``.
        side: 1.0 for above, -1.0 for below.
        step: the largest step.
        reach: how large what moves is, beside a step of one; zero where it starts at zero.
        grain: the precision of its values, where that is less than their dtype's.

    Returns:
        What is there; ``None`` where the function is not defined.

    Example:
        >>> found = look(lambda t: torch.tensor([abs(t), abs(t) ** 0.5]).double(), -1.0, 0.1)
        >>> found.told.tolist(), found.slope[0].item()
        ([True, False], -1.0)
    """
    first, steps = function(0.0), [side * h for h in steps_from(step)]
    finer = [steps[-1] * 10.0**-level for level in range(1, _CLOSER + 1)]
    eps, base = max(torch.finfo(first.dtype).eps, grain), first.double()

    def quotients(places: list[float]) -> torch.Tensor | None:
        try:  # of another size, what is there is no neighbour
            return torch.stack([(function(h).double().view_as(base) - base) / h for h in places])
        except Exception:  # not defined there
            return None

    def noise(h: float) -> torch.Tensor:
        return 4 * eps * (base.abs() + reach * limit.abs()) / abs(h)

    found = quotients(steps)
    if found is None or not bool(found[0].isfinite().all()):
        return None
    limits = (4 * found[1:] - found[:-1])[-3:] / 3
    limit, largest = limits[-1], found.abs().amax(0)
    least = noise(steps[-1])
    seen = [h for h in finer if bool((noise(h) <= 0.1 * largest).any())]
    closer = quotients(seen) if seen else found[-1:]
    if closer is None:
        return None
    apart = limits.amax(0) - limits.amin(0)
    told = apart <= 1e-4 * limit.abs() + 1e-6 * largest + 10 * least
    told &= (least <= 1e-9) | (least <= 1e-3 * largest) | (largest == 0)
    near = agreement() * limit.abs() + (found[-1] - limit).abs()
    for h, close in zip(seen, closer, strict=bool(seen)):
        told &= (noise(h) > 0.1 * largest) | ((close - limit).abs() <= near + 3 * noise(h))
    # As x to the power of 1.5, whose quotients shrink too slowly to be extrapolated: at all steps,
    # not at the smallest alone, where acosh(1 + x * x) is zero since rounding leaves it nothing.
    shrinks = (found[-1].abs() < 0.25 * largest) & (closer[-1].abs() < 1e-5 * largest)
    vanishes = (base == 0) & shrinks & (reach == 0)
    moved = [(h * q).abs() for h, q in ((steps[0], found[0]), (steps[-1], found[-1]))]
    most, last = (float(change.max()) if len(base) else 0.0 for change in moved)
    return Side(
        torch.where(vanishes, 0.0, limit), 10 * least + apart * ~vanishes, told | vanishes,
        moved[0], last > 0.1 * most > 0,
    )  # fmt: skip
