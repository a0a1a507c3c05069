"""Semi-public helpers without a stability promise."""
