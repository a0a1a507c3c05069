"""How kernels are chosen, compiled, folded and run on threads, in one way for all rooms."""
