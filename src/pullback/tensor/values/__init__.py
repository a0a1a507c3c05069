"""What rules work on: tensors, nested arguments, numbers drawn, and functions of torch."""
