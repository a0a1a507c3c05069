"""The names of ``unit_scaling.utils``; see `pullback.compat.unit_scaling`."""

from pullback.compat.unit_scaling._analyse import ScaleTrackingInterpreter, analyse_module
from pullback.compat.unit_scaling._tracker import ScalePair, ScaleTracker

__all__ = ["ScalePair", "ScaleTracker", "ScaleTrackingInterpreter", "analyse_module"]
