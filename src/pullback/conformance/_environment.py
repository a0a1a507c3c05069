"""The versions and devices a report was made with."""

import platform
from importlib.metadata import PackageNotFoundError, version

import torch

__all__ = ["environment"]


def environment() -> dict[str, str]:
    """Versions of Python, torch, numpy and pullback, and the devices.

    Returns:
        Name to text.

    Example:
        >>> "torch" in environment()
        True
    """
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("pullback", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    found["platform"] = f"{platform.system()} {platform.machine()}"
    cuda = torch.cuda.is_available()
    found["device"] = torch.cuda.get_device_name() if cuda else "cpu"
    return found
