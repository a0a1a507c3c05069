"""What `main` hands to the commands beside their options."""

__all__ = ["program"]

program: list[str] | None = None
"""The words after ``--``: a program to run, or ``None`` if there was no ``--``."""
