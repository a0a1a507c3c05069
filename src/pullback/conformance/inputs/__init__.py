"""What is checked, and the tensors it is checked with."""
