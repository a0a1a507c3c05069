"""What Dynamo knows of the arguments of a call, shown to code that decides how it is traced.

Code that Dynamo traces sees no types and shapes, only names for them; what runs while it traces (a
function whose result is a constant in the graph) is given constants alone. `torch._dynamo.comptime` is
torch's own way from the first to the second.
"""

from typing import Any

import torch

from pullback.internal.torch import hint_of

__all__ = ["constant_of", "example_of", "is_tensor", "last_shown", "show"]

_shown: list[Any] = []  # one graph is traced at a time, in whichever thread


def show(leaf: Any) -> None:
    """Show an argument to what Dynamo calls next."""
    torch._dynamo.comptime.comptime(_note)


def _note(context: Any) -> None:
    _shown.append(context.get_local("leaf"))


def last_shown(count: int) -> list[Any]:
    """The arguments that were shown last; the others were of a trace that has failed."""
    last = _shown[len(_shown) - count :]
    _shown.clear()
    return last


def is_tensor(argument: Any) -> bool:
    """Whether an argument is a tensor; Dynamo has tensors for some numbers too."""
    return issubclass(argument.python_type(), torch.Tensor)


def constant_of(argument: Any) -> Any:
    """The value of an argument that is no tensor; the graph is made anew for another one."""
    if not argument.is_python_constant():
        argument.force_static()
        return argument.python_type()(hint_of(argument.as_fake()))
    return argument.as_python_constant()


def example_of(argument: Any) -> Any:
    """A value with the type and the shape of an argument, for which there is no guard."""
    if argument.is_python_constant():
        return argument.as_python_constant()
    if not is_tensor(argument):
        return argument.python_type()(hint_of(argument.as_fake()))
    fake = argument.as_fake()
    size, stride = (tuple(map(hint_of, numbers)) for numbers in (fake.size(), fake.stride()))
    example = torch.empty_strided(size, stride, dtype=fake.dtype, device=fake.device)
    return example.requires_grad_(fake.requires_grad)
