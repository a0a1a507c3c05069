"""The names of ``unit_scaling.transforms``; see `pullback.compat.unit_scaling`."""

from pullback.compat.unit_scaling._compile import compile
from pullback.compat.unit_scaling._metrics import Metrics
from pullback.compat.unit_scaling._prune import (
    prune_non_float_tensors,
    prune_same_scale_tensors,
    prune_selected_nodes,
)
from pullback.compat.unit_scaling._simulate import simulate_format, simulate_fp8
from pullback.compat.unit_scaling._track_scales import track_scales

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
