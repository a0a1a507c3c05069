"""The kernels behind `pullback.trajectory.differentiate`: a banded stencil over samples."""
