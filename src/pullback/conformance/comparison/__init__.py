"""Two tensors compared: how they differ, in words, and what would make them equal."""
