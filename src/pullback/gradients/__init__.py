"""The room gradients."""
