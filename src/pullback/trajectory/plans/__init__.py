"""Plans: least motions through points, within limits and in the least time."""
