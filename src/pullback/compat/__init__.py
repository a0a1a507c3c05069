"""The room compat."""
