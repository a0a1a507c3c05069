"""A rule as its author wrote it, and what may have been meant by each part of it."""
