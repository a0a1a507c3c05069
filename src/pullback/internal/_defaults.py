"""The dtype and the device of new tensors: what a Function makes without naming either has them.

The recorder imports it whatever torch there is: what is not supported is said by `torch.py`, later.
"""

from typing import Any

import torch

__all__ = ["PLAIN", "device_named", "read_defaults", "set_defaults"]

PLAIN = ("float32", "cpu")
"""What `read_defaults` says where nobody has changed either."""


def read_defaults() -> tuple[str, str]:
    """The names of the default dtype and device of this process.

    Example:
        >>> read_defaults()
        ('float32', 'cpu')
    """
    return str(torch.get_default_dtype()).removeprefix("torch."), str(torch.get_default_device())


def set_defaults(dtype: str, device: str) -> None:
    """Make new tensors as another process did, which gave these names.

    Raises:
        ValueError: it is no floating dtype.
    """
    found = getattr(torch, dtype, None)
    if not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise ValueError(f"{dtype!r} is no floating dtype")
    if torch.get_default_dtype() != found:
        torch.set_default_dtype(found)
    if str(torch.get_default_device()) != device:  # torch follows each call where one is set
        torch.set_default_device(device_named(device))


def device_named(name: str) -> "torch.device":
    """The device of that name, or the CPU on a machine that has none such.

    Example:
        >>> device_named("cuda:99")
        device(type='cpu')
    """
    kind, _, index = name.partition(":")
    backend: Any = getattr(torch, kind, None)
    there = hasattr(backend, "device_count") and backend.is_available()
    there = kind == "meta" or (there and int(index or 0) < backend.device_count())
    return torch.device(name if there else "cpu")
