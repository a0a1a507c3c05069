"""How tensors of a running program reach a recording: hooks, functions, trackers."""
