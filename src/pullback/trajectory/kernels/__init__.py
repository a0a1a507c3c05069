"""The kernels behind the curves and plans of trajectories, each with its adjoint."""
