"""Functions of Variables, run back with feedback."""

from pullback.compat.afnio.autodiff import decorators, function, graph
from pullback.compat.afnio.autodiff.function import Function
from pullback.compat.afnio.autodiff.grad_mode import is_grad_enabled, no_grad, set_grad_enabled
from pullback.compat.afnio.autodiff.utils import backward, grad

__all__ = [
    "Function",
    "backward",
    "decorators",
    "function",
    "grad",
    "graph",
    "is_grad_enabled",
    "no_grad",
    "set_grad_enabled",
]
