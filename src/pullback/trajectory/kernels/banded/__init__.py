"""Products and solves with a banded triangular factor, which is a constant."""
