"""Look below the wrappers that transforms put around tensors."""

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["concrete", "vjp"]

# torch.func.vjp without auxiliary output: its annotation does not tell the two apart.
vjp: Any = torch.func.vjp


_functorch = torch._C._functorch


def concrete(tensor: torch.Tensor) -> torch.Tensor | None:
    """The plain tensor with values below all transforms, or ``None`` while tracing.

    Below `torch.func.vmap` the result has its batch dimensions wherever they are stored.
    """
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or isinstance(tensor, FakeTensor):
        return None
    if tensor.is_meta:
        return None
    return tensor.detach()
