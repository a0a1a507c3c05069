"""The table of number formats, which rounding, advice, simulation, reports and documents read."""

from typing import Any

import torch

from pullback.tracking.formats._number_format import NumberFormat

__all__ = [
    "BFLOAT16",
    "E2M1",
    "E4M3",
    "E4M3_FNUZ",
    "E5M2",
    "E5M2_FNUZ",
    "FLOAT16",
    "FLOAT32",
    "FORMATS",
    "INT4",
    "INT8",
    "SCALED",
]

_MOST = float(torch.finfo(torch.bfloat16).max), float(torch.finfo(torch.float32).max)

# fmt: off
#   name, exponent bits, mantissa bits, bias, largest, infinities, negative zero, torch's dtype
_ROWS: tuple[tuple[Any, ...], ...] = (
    ("fp32", 8, 23, 127, _MOST[1], True, True, torch.float32),
    ("fp16", 5, 10, 15, 65504.0, True, True, torch.float16),
    ("bf16", 8, 7, 127, _MOST[0], True, True, torch.bfloat16),
    ("E4M3", 4, 3, 7, 448.0, False, True, torch.float8_e4m3fn),
    ("E4M3 FNUZ", 4, 3, 8, 240.0, False, False, torch.float8_e4m3fnuz),
    ("E5M2", 5, 2, 15, 57344.0, True, True, torch.float8_e5m2),
    ("E5M2 FNUZ", 5, 2, 16, 57344.0, False, False, torch.float8_e5m2fnuz),
    ("E3M2", 3, 2, 3, 28.0),
    ("E2M3", 2, 3, 1, 7.5),
    ("E2M1", 2, 1, 1, 6.0),  # torch has a packed dtype for it and no conversion
    # With one exponent bit values are evenly spaced: whole numbers. They are of use under a scale.
    ("int8", 1, 6, -5, 127.0, False, False),
    ("int4", 1, 2, -1, 7.0, False, False),
)

#   name, element, per: a tensor, a channel or so many neighbours, the format of their scale
_SCALED_ROWS: tuple[tuple[str, str, Any, Any], ...] = (
    ("MXFP8", "E4M3", 32, "E8M0"),
    ("MXFP8 E5M2", "E5M2", 32, "E8M0"),
    ("MXFP6", "E2M3", 32, "E8M0"),
    ("MXFP6 E3M2", "E3M2", 32, "E8M0"),
    ("MXFP4", "E2M1", 32, "E8M0"),
    ("NVFP4", "E2M1", 16, "E4M3"),
    ("E4M3 tensor", "E4M3", "tensor", "float32"),
    ("E5M2 tensor", "E5M2", "tensor", "float32"),
    ("E4M3 channel", "E4M3", "channel", "float32"),
    ("int8 tensor", "int8", "tensor", "float32"),
    ("int8", "int8", "channel", "float32"),
    ("int4", "int4", 32, "float32"),
)
# fmt: on

_TABLE = {row[0]: NumberFormat(*row) for row in _ROWS}
SCALED = tuple((name, _TABLE[element], *rest) for name, element, *rest in _SCALED_ROWS)
"""What a `ScaledFormat` is made from: this file has none, as a scale is rounded by the table."""

FLOAT32, FLOAT16, BFLOAT16 = (_TABLE[name] for name in ("fp32", "fp16", "bf16"))
E4M3, E5M2, E2M1 = (_TABLE[name] for name in ("E4M3", "E5M2", "E2M1"))
E4M3_FNUZ, E5M2_FNUZ = (_TABLE[f"{name} FNUZ"] for name in ("E4M3", "E5M2"))
INT8, INT4 = _TABLE["int8"], _TABLE["int4"]

FORMATS = (FLOAT16, BFLOAT16, E4M3, E4M3_FNUZ, E5M2, E5M2_FNUZ, E2M1)
"""The formats that advice is given for.

OCP: "OCP 8-bit Floating Point Specification" 1.0 (E4M3, E5M2) and "OCP Microscaling Formats"
1.0 (E2M1). FNUZ, finite and without a negative zero: Noune et al., "8-bit Numerical Formats for
Deep Neural Networks" (2022, https://arxiv.org/abs/2206.02915).
"""
