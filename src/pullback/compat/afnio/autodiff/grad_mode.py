"""Whether operations are recorded."""

from pullback.tape import is_grad_enabled, no_grad, set_grad_enabled

__all__ = ["is_grad_enabled", "no_grad", "set_grad_enabled"]
