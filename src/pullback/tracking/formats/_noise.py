"""Signal to quantisation noise: how much of a tensor a number format keeps, in decibels."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.tracking.formats._find import Named, find_format
from pullback.tracking.formats._recipe import Role
from pullback.tracking.formats._round import check_values, round_values

__all__ = ["NoiseMeter", "QuantisationNoise", "render_noise", "signal_to_noise"]


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
    check_values(values, "signal_to_noise")
    chosen = find_format(number_format)
    return _decibels(_sums(values.detach(), round_values(values.detach(), chosen)))


class NoiseMeter:
    """Sums of squares of what was rounded and of the errors, on their device until looked at."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, Role, str], tuple[int, Tensor]] = {}

    def add(self, module: str, role: Role, name: str, exact: Tensor, rounded: Tensor) -> None:
        """Add what rounding made of a factor."""
        sums = _sums(exact.detach(), rounded.detach())
        count, before = self._found.get((module, role, name), (0, torch.zeros_like(sums)))
        self._found[module, role, name] = count + exact.numel(), before.to(sums.device) + sums

    def result(self) -> list[QuantisationNoise]:
        """All that was found, in the order of appearance."""
        return [
            QuantisationNoise(*key, count, _decibels(sums))
            for key, (count, sums) in self._found.items()
        ]


def _sums(exact: Tensor, rounded: Tensor) -> Tensor:
    if exact.is_complex():
        exact, rounded = torch.view_as_real(exact), torch.view_as_real(rounded)
    x, y = exact.to(torch.float64), rounded.to(torch.float64)
    known = x.isfinite() & y.isfinite()
    squares = torch.stack([x.square(), (x - y).square()])
    return torch.where(known, squares, 0.0).flatten(1).sum(1)


def _decibels(sums: Tensor) -> float:
    signal, noise = sums.tolist()
    if not signal:
        return math.nan
    return 10 * math.log10(signal / noise) if noise else math.inf


def render_noise(found: list[QuantisationNoise]) -> str:
    """The ratios as lines of text, a module and role a line."""
    rows = [("module", "factor", "format", "numbers", "SQNR / dB")]
    rows += [
        (each.module or "(root)", each.role, each.number_format, str(each.count),
         f"{each.decibels:.1f}")
        for each in found
    ]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place > 2 else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
