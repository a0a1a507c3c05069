"""The kernels behind `pullback.trajectory.integrate`: a chain of sums over samples."""
