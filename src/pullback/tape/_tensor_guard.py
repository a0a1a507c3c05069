"""What the bridges between the tape and torch refuse: derivatives that neither would carry on."""

from typing import Any

import torch

from pullback.errors import UnsupportedError
from pullback.internal.torch import (
    are_functorch_transforms_active,
    get_unwrapped,
    is_functorch_wrapped_tensor,
)
from pullback.tape._variable import Variable, describe

__all__ = ["refuse_derivative", "refuse_inside_transform"]


def refuse_derivative(tensor: torch.Tensor) -> None:
    """Refuse a tensor that carries a derivative which is lost on the tape.

    Raises:
        UnsupportedError: torch.func differentiates it, or it has a forward-mode tangent.
    """
    inner: Any = tensor
    while is_functorch_wrapped_tensor(inner) and not inner.requires_grad:
        inner = get_unwrapped(inner)
    if inner.requires_grad and is_functorch_wrapped_tensor(tensor):
        what = "a transform of torch.func differentiates"
    elif torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None:
        what = "has a tangent of torch's forward mode"
    else:
        return
    raise UnsupportedError(
        f"A tensor that {what} was put on the tape, where that derivative would be lost.",
        given=f"shape {tuple(tensor.shape)}",
        mend="Use grad, jvp and vmap of pullback.tape, or tensor.detach() if it is a constant.",
    )


def refuse_inside_transform(variable: Variable) -> None:
    """Refuse to take a value with a history off the tape where torch.func transforms a callable.

    Raises:
        UnsupportedError: a transform is active.
    """
    if are_functorch_transforms_active():
        raise UnsupportedError(
            "A value with a history on the tape was taken off it inside a transform of torch.func, "
            "which cannot follow it.",
            given=describe(variable),
            mend="Use grad, jvp and vmap of pullback.tape, or detach() if it is a constant.",
        )
