"""Curves: derivatives, sums and splines of sampled positions."""
