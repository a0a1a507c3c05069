"""Least motions within limits: one program over states for each joint of each trajectory."""
