"""`find_format`: a format by its name or dtype."""

import torch

from pullback.errors import ArgumentError
from pullback.tracking.formats._number_format import NumberFormat
from pullback.tracking.formats._scaled import SCALED_FORMATS, ScaledFormat
from pullback.tracking.formats._table import FORMATS

__all__ = ["Format", "Named", "find_format"]

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
    wanted = str(name).casefold().replace("_", " ")
    by_dtype = {known.dtype: known for known in FORMATS if known.dtype is not None}
    if isinstance(name, torch.dtype) and name in by_dtype:
        return by_dtype[name]
    for known in (*FORMATS, *SCALED_FORMATS):
        if wanted == known.name.casefold():
            return known
    raise ArgumentError(
        "There is no number format of this name.",
        given=repr(name),
        expected=", ".join(known.name for known in (*FORMATS, *SCALED_FORMATS))
        + ", a NumberFormat or a ScaledFormat",
    )
