"""What rules round on the way is no part of the map that they compute.

A rule may cast to a narrow dtype and back, as low-precision code does. Autograd's derivative of a
cast is the cast: rounding is noise to it, of the size of that dtype, and so it is to a comparison
of derivatives. With steps of finite differences far below that size nothing but the noise would
be seen. So an audit runs the rules with every cast to a dtype narrower than their arguments' left
wide.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["Unrounded", "coarsest", "smallest"]

_tensor: Any = torch.Tensor
_CASTS = {
    _tensor.bfloat16: torch.bfloat16,
    _tensor.half: torch.float16,
    _tensor.float: torch.float32,
    _tensor.chalf: torch.complex32,
    _tensor.cfloat: torch.complex64,
}
_AUTOCAST = ("cpu", "cuda")
_LIKE = {_tensor.to, _tensor.type_as}


class Unrounded(TorchFunctionMode):
    """While active, no function of torch is asked for a dtype that is coarser than one dtype.

    Arguments:
        dtype: the floating or complex dtype that takes the place of coarser ones.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype.to_real()
        self._eps = torch.finfo(dtype).eps

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _CASTS:
            return _tensor.to(args[0], self._wide(_CASTS[func]), **kwargs)
        if func in _LIKE and len(args) > 1 and isinstance(args[1], torch.Tensor):
            device, dtype = args[1].device, self._wide(args[1].dtype)
            return _tensor.to(args[0], device, dtype, *args[2:], **kwargs)
        args = tuple(map(self._wide, args))
        kwargs = {key: self._wide(value) for key, value in kwargs.items()}
        if not any(map(torch.is_autocast_enabled, _AUTOCAST)):
            return func(*args, **kwargs)
        device = next((t.device.type for t in args if isinstance(t, torch.Tensor)), "cpu")
        if device in _AUTOCAST and torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    def _wide(self, value: Any) -> Any:
        """A dtype, or the wider one in its place; anything else as it is."""
        if not isinstance(value, torch.dtype) or coarsest([value]) <= self._eps:
            return value
        return (
            torch.promote_types(self._dtype, torch.complex32) if value.is_complex else self._dtype
        )


def coarsest(dtypes: Iterable[torch.dtype]) -> float:
    """The largest relative distance between neighbours of the floating ones, or zero."""
    floating = (dtype for dtype in dtypes if dtype.is_floating_point or dtype.is_complex)
    return max((torch.finfo(dtype).eps for dtype in floating), default=0.0)


def smallest(dtypes: Iterable[torch.dtype]) -> float:
    """The largest distance between neighbours of zero, of the floating ones; or zero."""
    known = [torch.finfo(d) for d in dtypes if d.is_floating_point or d.is_complex]
    return max((dtype.smallest_normal * dtype.eps for dtype in known), default=0.0)
