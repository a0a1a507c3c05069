"""One subject run at one set of inputs, at others made from these, and with a breach undone."""
