"""Decorators of Functions."""

from pullback.compat.afnio.autodiff.function import Function
from pullback.internal._arguments import checked
from pullback.tape import enable_grad, no_grad, once_differentiable, set_grad_enabled

__all__ = ["enable_grad", "evaluator", "no_grad", "once_differentiable", "set_grad_enabled"]


@checked
def evaluator(cls: type[Function]) -> type[Function]:
    """Declare that a Function gives a score and an explanation, which runs back with no gradient.

    Raises:
        TypeError: it is no Function.
    """
    cls._is_evaluator = True
    return cls
