"""Changes in place that autograd does not take, written so that it does.

What `split`, `unbind` and their like return are views made together, and autograd allows no change
in place of these: the same pieces cut one by one may change. `copy_`, where it is made pure, has
no derivative: adding to zeros has one. Both cost more, so that this serves only where a rule needs
it (`pullback.tensor._levels.out_of_place`).
"""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["Writable"]

_tensor: Any = torch.Tensor
# The functions that cut a tensor, by where they take the dimension.
_CUT: dict[Any, int] = {
    function: 2
    for name in ("chunk", "split", "split_with_sizes", "tensor_split")
    for function in (getattr(torch, name), getattr(_tensor, name))
}
_UNBIND: dict[Any, int] = {torch.unbind: 1, _tensor.unbind: 1, _tensor.__iter__: 1}


class Writable(TorchFunctionMode):
    """While active, each piece of a tensor is a view of its own, and a copy is a sum."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _tensor.copy_ and all(map(_is_real, args[:2])):
            return args[0].zero_().add_(args[1].to(args[0]))
        place = _CUT.get(func, _UNBIND.get(func))
        if place is None or not args:
            return func(*args, **kwargs)
        dim = args[place] if len(args) > place else kwargs.get("dim", 0)
        if func in _UNBIND:
            views = tuple(args[0].select(dim, i) for i in range(args[0].shape[dim]))
            return iter(views) if func is _tensor.__iter__ else views
        sizes = [piece.shape[dim] for piece in func(*args, **kwargs)]
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return tuple(args[0].narrow(dim, *piece) for piece in zip(starts, sizes, strict=True))


def _is_real(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()
