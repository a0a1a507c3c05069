"""The pieces of a tensor, each a view of its own.

What `split`, `unbind` and their like return are views made together, and autograd allows no change
in place of these. The same pieces cut one by one may change, and are equal in all else.
"""

from typing import Any

import torch

__all__ = ["CUTS", "pieces"]

_tensor: Any = torch.Tensor
# The functions that cut a tensor, by where they take the dimension.
_CUT: dict[Any, int] = {
    function: 2
    for name in ("chunk", "split", "split_with_sizes", "tensor_split")
    for function in (getattr(torch, name), getattr(_tensor, name))
}
_UNBIND: dict[Any, int] = {torch.unbind: 1, _tensor.unbind: 1, _tensor.__iter__: 1}
# All of them.
CUTS = frozenset((*_CUT, *_UNBIND))


def pieces(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """What such a function returns."""
    place = _CUT.get(func, _UNBIND.get(func, 0))
    dim = args[place] if len(args) > place else kwargs.get("dim", 0)
    if func in _UNBIND:
        return tuple(args[0].select(dim, i) for i in range(args[0].shape[dim]))
    sizes = [piece.shape[dim] for piece in func(*args, **kwargs)]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(args[0].narrow(dim, *piece) for piece in zip(starts, sizes, strict=True))
