"""One Function on several ranks."""
