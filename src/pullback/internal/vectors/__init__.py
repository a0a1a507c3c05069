"""Explicit vectors for the CPU kernels: see `pullback.internal.vectors._cpu`."""
