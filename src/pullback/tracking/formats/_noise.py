"""What number formats lose of tensors: signal to quantisation noise, and the errors of blocks."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from pullback.errors import ArgumentError
from pullback.gradients._check import check_tensor
from pullback.internal._arguments import checked
from pullback.internal.torch import innermost
from pullback.tracking.formats._recipe import ROLES, Role
from pullback.tracking.formats._round import (
    Format,
    Named,
    ScaledFormat,
    find_format,
    parts_of,
    round_values,
)
from pullback.tracking.formats._table import E4M3
from pullback.tracking.measure._dispatch import readable

__all__ = [
    "BlockErrors",
    "NoiseMeter",
    "QuantisationNoise",
    "Sums",
    "choose_blocks",
    "measure_blocks",
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
        values: shape (...), any floating or complex dtype; what is not finite counts as zero.
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
    chosen, known = find_format(number_format), _finite(readable(values))
    both = [parts_of(each).to(torch.float64) for each in (known, round_values(known, chosen))]
    if known.numel():
        # Squares of what is far from 1 leave float64; powers of two change no ratio. In two steps:
        # 2**1073, which the smallest number needs, is none.
        exponent = -int(torch.frexp(both[0].abs().max()).exponent)
        both = [each * 2.0 ** (exponent // 2) * 2.0 ** (exponent - exponent // 2) for each in both]
    return decibels_of(*_sums(*both).tolist())


def _finite(values: Tensor) -> Tensor:
    """Zeros for what is not finite: it would set the scale of what is beside it."""
    parts = parts_of(values)
    known = torch.where(parts.to(torch.float64).isfinite(), parts, torch.zeros_like(parts))
    return torch.view_as_complex(known) if values.is_complex() else known


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
    x, y = (parts_of(each).to(torch.float64).flatten() for each in (exact, rounded))
    known = x.isfinite() & y.isfinite()
    squares = torch.stack([x.square(), (x - y).square()])
    return torch.where(known, squares, 0.0).sum(1)


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


OUTLIER = 4.0  # times the next largest: two octaves of the block's range are the outlier's alone


@dataclass(frozen=True, slots=True)
class BlockErrors:
    """What a format with blocks loses of some values; ``a + b`` is of both together.

    Arguments:
        blocks: how many blocks hold a number that is not zero. A NaN or an infinity counts as a
            zero, here and below, as it does in `signal_to_noise`.
        dominated: in how many of them one outlier sets the scale: it is four times as large as
            the next or more, so that all others lose two bits or more.
        nonzero: how many values are not zero.
        underflow: how many of them round to zero.
        signal: the sum of squares.
        noise: the sum of squares of the errors.
        noise_halved: the same with blocks of half the size.
        noise_rotated: the same if each block is multiplied by a Hadamard matrix before rounding,
            which spreads an outlier over its block, and turned back afterwards.

    Example:
        >>> import torch
        >>> from pullback.tracking.formats import BlockErrors
        >>> x = torch.randn(64, 128, generator=torch.Generator().manual_seed(0))
        >>> x[:, 5] *= 100.0
        >>> lost = BlockErrors.of(x, "mxfp4")
        >>> lost.dominated_share > 0.2, lost.underflow_share > 0.2
        (True, True)
    """

    blocks: int
    dominated: int
    nonzero: int
    underflow: int
    signal: float
    noise: float
    noise_halved: float
    noise_rotated: float

    @classmethod
    @checked
    def of(cls, values: Tensor, blocks: "str | int | ScaledFormat") -> "BlockErrors":
        """Measure a tensor, its blocks along the last dimension.

        Arguments:
            values: shape (..., n), any floating or complex dtype.
            blocks: as `choose_blocks` takes it.

        Raises:
            ArgumentError: no such format, or one without blocks of a power of two.
            ArgumentTypeError: no floating or complex tensor.
        """
        check_tensor(values, "BlockErrors.of")
        return cls.from_sums(measure_blocks(readable(values), choose_blocks(blocks)))

    @classmethod
    def from_sums(cls, sums: Tensor) -> "BlockErrors":
        """Read what `measure_blocks` gave, or a sum of several."""
        whole, exact = sums[:4].tolist(), sums[4:].tolist()
        return cls(*map(int, whole), *exact)

    def __add__(self, other: "BlockErrors") -> "BlockErrors":
        names = [field.name for field in fields(self)]
        return BlockErrors(*(getattr(self, name) + getattr(other, name) for name in names))

    @property
    def dominated_share(self) -> float:
        """The share of blocks whose scale one outlier sets; 0 of none."""
        return self.dominated / self.blocks if self.blocks else 0.0

    @property
    def underflow_share(self) -> float:
        """The share of values that are not zero and round to it; 0 of none."""
        return self.underflow / self.nonzero if self.nonzero else 0.0

    @property
    def error(self) -> float:
        """The share of the signal that the errors are; 0 of no signal."""
        return self.noise / self.signal if self.signal else 0.0

    @property
    def decibels(self) -> float:
        """The signal to quantisation noise; infinite where nothing was lost, NaN of zeros."""
        return decibels_of(self.signal, self.noise)

    @property
    def decibels_halved(self) -> float:
        """What it would be with blocks of half the size."""
        return decibels_of(self.signal, self.noise_halved)

    @property
    def decibels_rotated(self) -> float:
        """What it would be with a Hadamard rotation of each block."""
        return decibels_of(self.signal, self.noise_rotated)


def choose_blocks(blocks: str | int | ScaledFormat) -> ScaledFormat:
    """The format with blocks that a name (``"mxfp8"``, ``"nvfp4"``) or a size of MXFP8's means."""
    found: Format
    if isinstance(blocks, int):
        found = ScaledFormat(f"MXFP8 by {blocks}", E4M3, max(blocks, 1), "E8M0")
    else:
        found = find_format(blocks)
    size = found.per if isinstance(found, ScaledFormat) else "no block"
    if not isinstance(size, int) or size < 2 or size & (size - 1):
        raise ArgumentError(
            "Statistics of blocks need a format whose blocks are of a power of two.",
            given=f"blocks={blocks!r}",
            expected='"mxfp8", "mxfp4", "nvfp4", a ScaledFormat with per=16, or a size: 32',
        )
    return found  # type: ignore[return-value]


def measure_blocks(values: Tensor, number_format: ScaledFormat) -> Tensor:
    """Return the fields of `BlockErrors` as a float64 tensor, which adds up; nothing is waited for.

    With H orthogonal, the error of a block that was rotated, rounded and rotated back is that of
    the rotated one: :math:`|x - H^T Q(Hx)| = |Hx - Q(Hx)|`.
    """
    size = int(number_format.per)
    values = values.detach().reshape(values.shape or (1,))
    wide = parts_of(_finite(values)).to(torch.float64)
    wide = wide.movedim(-1, 0) if values.is_complex() else wide  # blocks of one kind of parts
    groups = torch.nn.functional.pad(wide, (0, -wide.shape[-1] % size)).reshape(-1, size)
    rounded = round_values(groups, number_format)
    rotated = groups @ _hadamard(size).to(groups.device)
    halved = replace(number_format, per=size // 2)
    first, second = groups.abs().topk(2, -1).values.unbind(-1)
    nonzero = groups != 0
    sums = (
        first > 0,
        (first > 0) & (first >= OUTLIER * second),
        nonzero,
        nonzero & (rounded == 0),
        groups.square(),
        (groups - rounded).square(),
        (groups - round_values(groups, halved)).square(),
        (rotated - round_values(rotated, number_format)).square(),
    )
    return torch.stack([each.sum(dtype=torch.float64) for each in sums])


@functools.cache
def _hadamard(size: int) -> Tensor:
    """The orthogonal matrix of Sylvester's construction: H_2n = [[H, H], [H, -H]]."""
    matrix = torch.ones(1, 1, dtype=torch.float64, device="cpu")
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / math.sqrt(size)
