"""Functions of Variables, run back with feedback."""

from pullback.compat.afnio._variable import backward, grad
from pullback.compat.afnio.autodiff import decorators, function, graph
from pullback.compat.afnio.autodiff.function import Function
from pullback.tape import is_grad_enabled, no_grad, set_grad_enabled

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
