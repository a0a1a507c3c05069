"""A kernel that is an operator of torch's where something watches, and a plain call elsewhere."""

from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import torch

from pullback.internal.kernels._backend import is_plain

__all__ = ["Kernel", "register_kernel"]

P = ParamSpec("P")
R = TypeVar("R")


class Kernel(Generic[P, R]):
    """A function of tensors, and the operator of `torch.library` that stands for it in graphs.

    The first call of such an operator imports torch's compiler, which takes 2 to 4 seconds, and
    each call costs some 20 microseconds. So the function is called itself unless a graph is traced,
    or a transform or a mode is active, which see operators only.

    Arguments:
        name: ``"namespace::operator"``.
        function: takes its arguments by position and mutates none of them.
    """

    def __init__(self, name: str, function: Callable[P, R]) -> None:
        self.__doc__ = function.__doc__
        self._function = function
        self._operator: Any = torch.library.custom_op(name, function, mutates_args=())
        self.register_fake = self._operator.register_fake
        self.register_vmap = self._operator.register_vmap

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return (self._function if is_plain(*args) else self._operator)(*args, **kwargs)


def register_kernel(name: str) -> Callable[[Callable[P, R]], Kernel[P, R]]:
    """Return a decorator that makes a `Kernel` of a function.

    Example:
        >>> import torch
        >>> @register_kernel("pullback_example::double")
        ... def double(x: torch.Tensor) -> torch.Tensor:
        ...     return x + x
        >>> double(torch.ones(2))
        tensor([2., 2.])
    """
    return lambda function: Kernel(name, function)
