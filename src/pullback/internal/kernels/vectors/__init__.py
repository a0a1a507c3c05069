"""Explicit vectors for the CPU kernels: see `pullback.internal.kernels.vectors._cpu`."""
