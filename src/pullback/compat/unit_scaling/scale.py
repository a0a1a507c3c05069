"""The names of ``unit_scaling.scale``; see `pullback.compat.unit_scaling`."""

from pullback.compat.unit_scaling._scale import scale_bwd, scale_fwd

__all__ = ["scale_bwd", "scale_fwd"]
