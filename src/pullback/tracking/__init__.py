"""The room tracking."""
