"""The room trajectory."""
