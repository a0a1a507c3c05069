"""`Weights`: which factors of products are parameters of the model, or views of them."""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from pullback.internal.torch import (
    are_functorch_transforms_active,
    base_of,
    innermost,
    parameters_of,
    storage_of,
)

__all__ = ["Weights"]


class Weights:
    """The parameters that a model uses, and what stands in their place, while it runs.

    In inference mode and under `torch.func` no view tells what it was made of, and
    `torch.func.functional_call` puts plain tensors in the place of parameters: these are known by
    their memory.
    """

    def __init__(self, modules: Callable[[], Iterable[nn.Module]]) -> None:
        self._modules = modules
        self._used: dict[nn.Parameter, None] = {}
        self._storages: dict[Tensor, int | None] = {}

    def see(self, args: Iterable[object]) -> None:
        """Look at the arguments of a function, which may return a view of a parameter."""
        if torch.is_inference_mode_enabled() or are_functorch_transforms_active():
            self._used |= dict.fromkeys(each for each in args if isinstance(each, nn.Parameter))

    def hold(self, x: Tensor) -> bool:
        """Whether a factor is one of them, or lies in the memory of one."""
        if isinstance(x, nn.Parameter) or isinstance(base_of(x), nn.Parameter):
            return True
        known = [*self._used, *self._plain_tensors()]
        storage = _storage(x) if known else None
        if storage is None:
            return False
        return any(self._storage(each) == storage and _within(x, each) for each in known)

    @functools.cached_property
    def _all_modules(self) -> list[nn.Module]:
        return list(self._modules())

    def _plain_tensors(self) -> Iterator[Tensor]:
        for module in self._all_modules:
            for each in parameters_of(module):
                if each is not None and type(each) is not nn.Parameter:
                    yield each

    def _storage(self, known: Tensor) -> int | None:
        if known not in self._storages:
            self._storages[known] = _storage(known)
        return self._storages[known]


def _storage(x: Tensor) -> int | None:
    try:
        return storage_of(innermost(x))
    except RuntimeError:  # sparse, nested, or a subclass without memory of its own
        return None


def _within(x: Tensor, whole: Tensor) -> bool:
    """Whether the first and the last number of a tensor are numbers of another in its storage."""
    x, whole = innermost(x), innermost(whole)
    first: Any = x.storage_offset()
    last = first + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    return _reaches(whole, first) and _reaches(whole, last)


def _reaches(whole: Tensor, place: int) -> bool:
    """Whether a tensor has the number at a place of its storage."""
    rest = place - whole.storage_offset()
    for step, n in sorted(zip(whole.stride(), whole.shape, strict=True), reverse=True):
        rest -= step * max(0, min(rest // step, n - 1)) if step else 0
    return rest == 0
