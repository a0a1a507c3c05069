"""`describe_environment`: what a report of a fault needs to say about the machine."""

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

__all__ = ["describe_environment"]

_EXTRAS = {"tensor": ("torch", "numba", "numpy"), "plot": ("matplotlib",)}


def describe_environment() -> str:
    """Return the versions of pullback, Python, the platform and every extra, line by line.

    Example:
        >>> describe_environment().splitlines()[0].startswith("pullback ")
        True
    """
    lines = [
        f"pullback {_version_of('pullback')}",
        f"python   {platform.python_version()} {platform.python_implementation()} {sys.executable}",
        f"platform {platform.platform()}",
    ]
    for extra, packages in _EXTRAS.items():
        parts = [f"{package} {_version_of(package)}" for package in packages]
        lines.append(f"[{extra}]".ljust(9) + ", ".join(parts))
    return "\n".join(lines)


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
