"""Functions that record nothing, or record whatever is around them."""

from pullback.tape import enable_grad, no_grad, once_differentiable, set_grad_enabled

__all__ = ["enable_grad", "no_grad", "once_differentiable", "set_grad_enabled"]
