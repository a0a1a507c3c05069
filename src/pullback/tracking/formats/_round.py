"""Rounding to a number format, or to a `ScaledFormat`, whose elements share a scale."""

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.gradients._check import can_look_into, check_floating
from pullback.gradients._module import ShapeFunction
from pullback.internal._arguments import Count, checked
from pullback.tensor import Function
from pullback.tracking.formats._table import (
    E4M3,
    FLOAT32,
    KNOWN,
    SCALED,
    NumberFormat,
    Overflow,
)

__all__ = [
    "SCALED_FORMATS",
    "Format",
    "Named",
    "RoundGradientFunction",
    "RoundValueFunction",
    "Rounding",
    "ScaledFormat",
    "draw_noise",
    "find_format",
    "parts_of",
    "round_known",
    "round_values",
]


Scale = Literal["float32", "E8M0", "E4M3"]
_INFINITE = 2.0**128  # has the exponent that infinity has in float32


@checked
@dataclass(frozen=True)
class ScaledFormat:
    r"""Elements of a number format, each with a scale that it shares with its neighbours.

    A value x is stored as :math:`s \, Q(x / s)`, where Q rounds to the element's format and the
    scale s takes the largest magnitude of the group to the format's largest value.

    Arguments:
        name: what it is called in tables.
        element: the format of the elements.
        per: who shares a scale: ``"tensor"``; ``"channel"``, all along one dimension; or a number
            of neighbours along it, the last block being shorter if need be.
        scale: the format of the scale. ``"float32"``; ``"E8M0"``, a power of two, rounded down, so
            that values beyond the largest saturate (OCP Microscaling Formats 1.0); ``"E4M3"``, to
            nearest, under one float32 scale of the tensor (NVFP4).
        dim: the dimension that channels and blocks follow. In a product it is the one that is
            summed over, whatever is said here.
        history: in a simulated model the scale comes of the largest magnitudes of this many passes
            before ("delayed scaling"); 0 takes it of the values themselves. For tensors only.
        chosen: the scale, where it was chosen before: a float64 scalar for the whole tensor.

    Raises:
        ArgumentTypeError: an element that is no `NumberFormat`, or a dimension that is no integer.
        ArgumentError: a size of blocks below 1, an unknown ``per`` or ``scale``, or a history
            where there is more than one scale.

    Example:
        >>> import torch
        >>> from pullback.tracking.formats import find_format, round_values
        >>> x = torch.tensor([0.1, 0.2, 0.4, 100.0])
        >>> [round(v, 3) for v in round_values(x, find_format("int8")).tolist()]
        [0.0, 0.0, 0.787, 100.0]

    Source: Rouhani et al., Microscaling Data Formats for Deep Learning (2023); NVIDIA, Pretraining
    Large Language Models with NVFP4 (2025).
    """

    name: str
    element: NumberFormat
    per: Literal["tensor", "channel"] | Count = "tensor"
    scale: Scale = "float32"
    dim: int = -1
    history: int = 0
    chosen: Tensor | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if (self.history and (self.per, self.scale) != ("tensor", "float32")) or self.history < 0:
            raise ArgumentError(
                "Only the scale of a whole tensor can be delayed.",
                given=f"history={self.history}, per={self.per!r}, scale={self.scale!r}",
                expected="per='tensor', scale='float32' and a history of 0 or more passes",
            )

    def along(self, dim: int) -> Self:
        """The same, with channels and blocks along another dimension."""
        return replace(self, dim=dim)

    def round(self, values: Tensor, noise: Tensor | None, overflow: Overflow) -> Tensor:
        """Return the values rounded, as `round_values` does.

        The scale of a group with a NaN is NaN, and with it the whole group; so is that of a group
        with an infinity, but for powers of two, where the infinity stays and dwarfs its neighbours.

        Arguments:
            values: shape (...), floating.
            noise: for stochastic rounding, of the same shape.
            overflow: of effect under a scale that was chosen before; under one of their own
                elements saturate, in torchao's cast too.
        """
        wide = values.to(torch.float64)
        groups, back = self._group(wide)
        scale = self.scales(groups) if self.chosen is None else self.chosen
        overflow = "saturate" if self.chosen is None else overflow
        uniform = None if noise is None else self._group(noise)[0]
        quotients = groups / scale
        if self.scale == "E8M0" and values.dtype != torch.float64:
            quotients = quotients.to(torch.float32)  # by a power of two: what is not exact is tiny
        rounded = self.element.round(quotients, uniform, overflow)
        return back(rounded * scale).to(values.dtype)

    def scales(self, groups: Tensor) -> Tensor:
        """The scale of each group, float64.

        Arguments:
            groups: ``[..., groups, size]``, float64.

        Returns:
            ``[..., groups, 1]``.
        """
        known = groups.abs()
        peak = known.amax(-1, keepdim=True) if groups.numel() else known[..., :1]
        if self.scale == "E8M0":
            peak = torch.where(peak.isinf(), _INFINITE, peak)
            power = peak / torch.frexp(peak).mantissa * 2.0 ** -(1 + self.element.largest_exponent)
            return _where_zero(peak, power.clamp(2.0**-127, 2.0**127))
        share = peak / self.element.largest
        if self.scale == "E4M3":
            most = share.amax() if share.numel() else share.sum()
            whole = _single(most / E4M3.largest)
            # A block so small that its scale would vanish keeps the least normal one.
            parts = E4M3.round(share / whole).clamp(min=E4M3.smallest_normal)
            return _single(whole * parts)
        return _single(share)

    def check_dimension(self, rank: int) -> None:
        """Refuse values of so many dimensions, if channels and blocks are to follow another one.

        Raises:
            ArgumentError: there is no such dimension.
        """
        if self.per != "tensor" and rank and not -rank <= self.dim < rank:
            raise ArgumentError(
                f"The values do not have the dimension that the scales of {self.name} follow.",
                given=f"dim={self.dim} for values of {rank} dimensions",
                expected=f"-{rank} <= dim < {rank}",
            )

    def _group(self, values: Tensor) -> tuple[Tensor, Any]:
        """The values as ``[..., groups, size]``, and what puts them back into their shape."""
        if self.per == "tensor" or not values.dim():
            return values.reshape(1, -1), lambda groups: groups.view(values.shape)
        rows = values.movedim(self.dim, -1)
        count = rows.shape[-1]
        size = max(count, 1) if self.per == "channel" else int(self.per)
        padded = torch.nn.functional.pad(rows, (0, -count % size))
        groups = padded.unflatten(-1, (math.ceil(count / size), size))
        return groups, lambda groups: groups.flatten(-2)[..., :count].movedim(-1, self.dim)

    def __str__(self) -> str:
        return self.name


def _single(scale: Tensor) -> Tensor:
    """Round a scale to float32; where nothing is to be scaled, one."""
    rounded = FLOAT32.round(scale)
    return _where_zero(rounded, rounded)


def _where_zero(size: Tensor, scale: Tensor) -> Tensor:
    """One where there is nothing to be scaled. A size that is NaN keeps its scale."""
    return torch.where(size == 0, 1.0, scale)


SCALED_FORMATS = tuple(ScaledFormat(*row) for row in SCALED)
"""Formats with a scale that are known by name."""

Format = NumberFormat | ScaledFormat
Named = str | Format | torch.dtype


def find_format(name: Named) -> Format:
    """Return a number format by its name or dtype.

    Arguments:
        name: a format, its name in any case (``"E4M3"``, ``"e5m2 fnuz"``, ``"fp16"``,
            ``"MXFP8"``, ``"int8"``), or its torch dtype.

    Raises:
        ArgumentError: there is none of this name.

    Example:
        >>> import torch
        >>> from pullback.tracking.formats import find_format
        >>> find_format("e5m2").largest, find_format(torch.float16).name
        (57344.0, 'fp16')
    """
    if isinstance(name, NumberFormat | ScaledFormat):
        return name
    # The elements of int8 and int4 are no formats without a scale: the names are those with one.
    known: dict[Any, Format] = {each.name.casefold(): each for each in (*KNOWN, *SCALED_FORMATS)}
    known |= {each.dtype: each for each in KNOWN if each.dtype is not None}
    wanted = name if isinstance(name, torch.dtype) else str(name).casefold().replace("_", " ")
    if wanted in known:
        return known[wanted]
    raise ArgumentError(
        "There is no number format of this name.",
        given=repr(name),
        expected=", ".join(dict.fromkeys(each.name for each in known.values()))
        + ", a NumberFormat or a ScaledFormat",
    )


Rounding = Literal["nearest", "stochastic"]


@checked
def draw_noise(values: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Return uniform numbers in [0, 1) for stochastic rounding, one for each real number.

    Arguments:
        values: shape (...), floating or complex.
        generator: where to draw from; ``None`` takes torch's own.

    Returns:
        Float32, shape (...), with a last dimension of 2 if ``values`` is complex.

    Raises:
        ArgumentTypeError: no floating or complex tensor, or no generator.
    """
    check_floating(values, "draw_noise", "values")
    shape = (*values.shape, 2) if values.is_complex() else values.shape
    return torch.rand(shape, generator=generator, device=values.device)


def parts_of(values: Tensor) -> Tensor:
    """Return the real numbers of a tensor: the parts of complex values, in a new last dimension."""
    values = values.resolve_conj().resolve_neg()
    if values.dtype == torch.complex32:  # which few operations take
        values = values.to(torch.complex64)
    return torch.view_as_real(values) if values.is_complex() else values


def round_values(
    values: Tensor,
    number_format: Format,
    noise: Tensor | None = None,
    overflow: Overflow = "saturate",
) -> Tensor:
    r"""Return the values rounded to a format, in their own dtype.

    With the quantum :math:`q = 2^{\max(e, e_{min}) - M}` of the binade of x, the result is
    :math:`q \operatorname{round}(x / q)`, to nearest even, or, of the magnitude,
    :math:`q \lfloor x/q + u \rfloor` with noise u. Computed in float64, where every step is exact,
    or by torch's own cast from a narrower dtype: there is no double rounding.

    Arguments:
        values: shape (...), any floating or complex dtype; complex values are rounded by parts.
        number_format: the format; a `ScaledFormat` chooses its scales from the values.
        noise: uniform numbers from `draw_noise` for stochastic rounding; ``None`` rounds to
            nearest even. A value that the format has is never moved.
        overflow: ``"saturate"`` takes finite values beyond the largest to it, and leaves infinities
            as they are, also where the format has none: divergence stays visible. ``"cast"`` does
            what torch's cast does with both: infinity, NaN or, of E4M3, the largest value.

    Returns:
        Shape and dtype of ``values``. NaN stays NaN, also where the format has none. A dtype
        with fewer values than the format rounds once more.

    Raises:
        ArgumentError: the noise does not have the shape of the values, or is not from 0 to 1 (seen
            on the CPU alone); scales along a dimension that they do not have; another overflow.
        ArgumentTypeError: no floating or complex tensor, or no format, but the name of one.

    Example:
        >>> import torch
        >>> from pullback.tracking.formats import E4M3, round_values
        >>> round_values(torch.tensor([0.3, 17.0, 1000.0]), E4M3).tolist()
        [0.3125, 16.0, 448.0]
    """
    if not isinstance(number_format, (NumberFormat, ScaledFormat)):
        raise ArgumentTypeError(
            "round_values takes a format.",
            given=repr(number_format),
            expected="a NumberFormat or a ScaledFormat",
            mend='find_format("E4M3")',
        )
    if overflow not in ("saturate", "cast"):
        raise ArgumentError(
            "There is no such way to overflow.",
            given=f"overflow={overflow!r}",
            expected="'saturate' (the largest value) or 'cast' (what torch's cast gives)",
        )
    check_floating(values, "round_values", "values")
    if noise is not None:
        check_floating(noise, "round_values", "noise")
        expected = (*values.shape, 2) if values.is_complex() else tuple(values.shape)
        if tuple(noise.shape) != expected:
            raise ArgumentError(
                "The noise of stochastic rounding does not fit the values.",
                given=f"noise of shape {tuple(noise.shape)} for shape {tuple(values.shape)}",
                expected=f"shape {expected}",
                mend="Draw it with draw_noise(values).",
            )
        if can_look_into(noise) and not bool(((noise >= 0) & (noise < 1)).all()):
            raise ArgumentError(
                "The noise of stochastic rounding is not in [0, 1).",
                given=f"noise from {float(noise.min())} to {float(noise.max())}",
                mend="Draw it with draw_noise(values).",
            )
    if isinstance(number_format, ScaledFormat):
        number_format.check_dimension(values.dim())
    return round_known(values, number_format, noise, overflow)


def round_known(
    values: Tensor, number_format: Format, noise: Tensor | None, overflow: Overflow
) -> Tensor:
    """Return what `round_values` does of arguments that were looked at before."""
    if values.is_complex():
        parts = parts_of(values.reshape(values.shape or (1,)))
        noise = None if noise is None else noise.reshape(parts.shape)
        if isinstance(number_format, ScaledFormat) and number_format.dim < 0:
            number_format = number_format.along(number_format.dim - 1)
        rounded = number_format.round(parts, noise, overflow)
        return torch.complex(*rounded.unbind(-1)).to(values.dtype).reshape(values.shape)
    return number_format.round(parts_of(values), noise, overflow)


class RoundValueFunction(Function):
    """Round the value to a format, and pass the gradient straight through."""

    gradient = "surrogate"

    @staticmethod
    def forward(
        x: Tensor, noise: Tensor | None, number_format: Format, overflow: Overflow
    ) -> Tensor:
        """Return the rounded values."""
        return round_known(x, number_format, noise, overflow)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep nothing: the cotangent passes as it is."""

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the cotangent."""
        return cotangent, None, None, None


class RoundGradientFunction(ShapeFunction):
    """Pass the value, and round the gradient to a format: not linear, and declared so.

    The noise of stochastic rounding is an argument, so that two backward passes agree. Its own
    derivative is straight-through.
    """

    gradient = "nonlinear"

    shape = staticmethod(RoundValueFunction.apply)
