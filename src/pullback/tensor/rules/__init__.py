"""The rules that are derived: batched, of second order, in forward mode."""
