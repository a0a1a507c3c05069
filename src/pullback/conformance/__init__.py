"""The room conformance."""
