"""What torch.compile sees: the author's rules, or one operator that runs them."""
