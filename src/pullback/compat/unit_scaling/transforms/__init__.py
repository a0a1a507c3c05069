"""The names of ``unit_scaling.transforms``; see `pullback.compat.unit_scaling`."""

from pullback.compat.unit_scaling.transforms._apply import compile, simulate_format, simulate_fp8
from pullback.compat.unit_scaling.transforms._track import (
    Metrics,
    prune_non_float_tensors,
    prune_same_scale_tensors,
    prune_selected_nodes,
    track_scales,
)

__all__ = [
    "Metrics",
    "compile",
    "prune_non_float_tensors",
    "prune_same_scale_tensors",
    "prune_selected_nodes",
    "simulate_format",
    "simulate_fp8",
    "track_scales",
]
