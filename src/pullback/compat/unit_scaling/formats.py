"""The names of ``unit_scaling.formats``; see `pullback.compat.unit_scaling`."""

from pullback.compat.unit_scaling._formats import FPFormat, format_to_tuple, tuple_to_format

__all__ = ["FPFormat", "format_to_tuple", "tuple_to_format"]
