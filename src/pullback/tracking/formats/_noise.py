"""Signal to quantisation noise: how much of a tensor a number format keeps, in decibels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.gradients._check import check_tensor
from pullback.internal.torch import innermost
from pullback.tracking.formats._recipe import ROLES, Role
from pullback.tracking.formats._round import parts_of, round_values
from pullback.tracking.formats._scaled import Named, find_format

__all__ = [
    "NoiseMeter",
    "QuantisationNoise",
    "Sums",
    "decibels_of",
    "noise_between",
    "render_noise",
    "signal_to_noise",
]

Sums = dict[tuple[str, Role, str], tuple[int, Tensor]]
"""By module, role and format: how many numbers, the sum of their squares, and of the errors'."""


@dataclass(frozen=True)
class QuantisationNoise:
    """What rounding did to one kind of factor of a module's products.

    Arguments:
        module: its name, ``""`` for the whole model.
        role: ``"weight"``, ``"activation"`` or ``"gradient"``.
        number_format: the name of the format.
        count: how many numbers were rounded.
        decibels: ten times the decimal logarithm of the sum of squares over that of the errors;
            infinite where nothing was lost, NaN where there was nothing but zeros.
    """

    module: str
    role: Role
    number_format: str
    count: int
    decibels: float


def signal_to_noise(values: Tensor, number_format: Named) -> float:
    r"""Return the ratio of signal to quantisation noise of a tensor in a format, in decibels.

    .. math:: 10 \log_{10} \frac{\sum x^2}{\sum (x - Q(x))^2}

    Arguments:
        values: shape (...), any floating or complex dtype; what is not finite is left out.
        number_format: a format, its name or dtype.

    Raises:
        ArgumentError: no such format.
        ArgumentTypeError: no floating or complex tensor.

    Example:
        >>> import torch
        >>> from pullback.tracking.formats import signal_to_noise
        >>> x = torch.linspace(-1, 1, 64)
        >>> round(signal_to_noise(x, "MXFP8"), 1), round(signal_to_noise(x, "MXFP4"), 1)
        (32.0, 20.3)
    """
    check_tensor(values, "signal_to_noise")
    chosen = find_format(number_format)
    return decibels_of(*_sums(values.detach(), round_values(values.detach(), chosen)).tolist())


class NoiseMeter:
    """Sums of squares of what was rounded and of the errors, on their device until looked at."""

    def __init__(self) -> None:
        self._found: Sums = {}

    def add(self, module: str, role: Role, name: str, exact: Tensor, rounded: Tensor) -> None:
        """Add what rounding made of a factor."""
        sums = _sums(exact.detach(), rounded.detach())
        # Under vmap these are the sums of each example; what is kept is plain, and over all.
        examples = [innermost(each) for each in sums.unbind()]
        sums = torch.stack([each.sum() for each in examples])
        count, before = self._found.get((module, role, name), (0, torch.zeros_like(sums)))
        count += exact.numel() * examples[0].numel()
        together = innermost((before.to(sums.device) + sums).detach())
        self._found[module, role, name] = count, together

    def sums(self) -> Sums:
        """All that was added until now; what is added later does not change it."""
        return dict(self._found)


def noise_between(before: Sums, after: Sums) -> list[QuantisationNoise]:
    """What was measured from one moment to another, in the order of appearance."""
    found = []
    for key, (count, sums) in after.items():
        earlier, less = before.get(key, (0, torch.zeros_like(sums)))
        if count > earlier:
            # Sums of squares only grow, rounded or not: no difference is below zero.
            signal, noise = (sums - less.to(sums.device)).tolist()
            found.append(QuantisationNoise(*key, count - earlier, decibels_of(signal, noise)))
    return found


def _sums(exact: Tensor, rounded: Tensor) -> Tensor:
    x, y = (parts_of(each).to(torch.float64) for each in (exact, rounded))
    known = x.isfinite() & y.isfinite()
    squares = torch.stack([x.square(), (x - y).square()])
    return torch.where(known, squares, 0.0).flatten(1).sum(1)


def decibels_of(signal: float, noise: float) -> float:
    """The ratio of two sums of squares; infinite where nothing was lost, NaN of zeros."""
    if not signal:
        return math.nan
    return 10 * math.log10(signal / noise) if noise else math.inf


def render_noise(found: Sequence[QuantisationNoise]) -> str:
    """The ratios as lines of text, a module a line, its kinds of factors apart."""
    roles = [role for role in ROLES if any(each.role == role for each in found)]
    cells: dict[str, dict[Role, list[str]]] = {}
    for each in found:
        line = cells.setdefault(each.module or "(root)", {role: [] for role in roles})
        line[each.role].append(f"{each.decibels:5.1f} {each.number_format}")
    rows = [["module", *roles, "(SQNR / dB)"]]
    rows += [[name, *(", ".join(line[role]) for role in roles), ""] for name, line in cells.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
