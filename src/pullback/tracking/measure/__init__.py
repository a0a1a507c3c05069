"""What is measured of one tensor: the kernels, and the statistics that they fill."""
