"""Number formats: rounding to them, simulating them, and what they lose of some values."""

from pullback.tracking.formats._advice import FormatAdvice, advise_formats, advise_from_exponents
from pullback.tracking.formats._model import SimulatedFormat, simulate_format
from pullback.tracking.formats._noise import BlockErrors, QuantisationNoise, signal_to_noise
from pullback.tracking.formats._recipe import ProductFormats, Recipe
from pullback.tracking.formats._round import (
    SCALED_FORMATS,
    ScaledFormat,
    draw_noise,
    find_format,
    round_values,
)
from pullback.tracking.formats._table import (
    BFLOAT16,
    E2M1,
    E4M3,
    E4M3_FNUZ,
    E5M2,
    E5M2_FNUZ,
    FLOAT16,
    FORMATS,
    INT4,
    INT8,
    NumberFormat,
)

__all__ = [
    "BFLOAT16",
    "E2M1",
    "E4M3",
    "E4M3_FNUZ",
    "E5M2",
    "E5M2_FNUZ",
    "FLOAT16",
    "FORMATS",
    "INT4",
    "INT8",
    "SCALED_FORMATS",
    "BlockErrors",
    "FormatAdvice",
    "NumberFormat",
    "ProductFormats",
    "QuantisationNoise",
    "Recipe",
    "ScaledFormat",
    "SimulatedFormat",
    "advise_formats",
    "advise_from_exponents",
    "draw_noise",
    "find_format",
    "round_values",
    "signal_to_noise",
    "simulate_format",
]
