"""Explicit vectors for the CPU kernels."""

from pullback.internal.vectors._cpu import (
    count_lanes,
    fence,
    load,
    load_first,
    pointer_at,
    splat,
    store,
    store_first,
    store_past_caches,
)

__all__ = [
    "count_lanes",
    "fence",
    "load",
    "load_first",
    "pointer_at",
    "splat",
    "store",
    "store_first",
    "store_past_caches",
]
