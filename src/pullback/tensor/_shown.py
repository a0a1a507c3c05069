"""What Dynamo knows of the arguments of a call, shown to code that decides how it is traced.

Code that Dynamo traces sees neither types nor shapes. A function whose result is a constant in the
graph runs while it traces, and is given constants alone. torch's own way from the first to the
second is `comptime`.
"""

from typing import Any

import torch

from pullback.internal.torch import (
    constant_in_graph,
    hint_of,
    is_exporting,
    is_whole,
    while_tracing,
)

__all__ = ["constant_of", "example_of", "is_tensor", "last_shown", "may_be_operator", "show"]

_shown: list[Any] = []  # one graph is traced at a time, in whichever thread


def show(leaf: Any) -> None:
    """Show an argument to what Dynamo calls next."""
    while_tracing(_note)


def _note(context: Any) -> None:
    _shown.append(context.get_local("leaf", stacklevel=1))


def may_be_operator(composed: bool) -> bool:
    """Whether an operator may stand in the graph, which is asked for only where it must not end.

    To learn the shapes it runs forward once; where the graph may end, nothing is run.
    """
    while_tracing(_note_whole)
    return _is_allowed(composed)


def _note_whole(context: Any) -> None:
    _shown.append(is_whole(context))


@constant_in_graph
def _is_allowed(composed: bool) -> bool:
    # An exported program goes to processes that do not have the Function.
    return (_shown.pop() or composed) and not is_exporting()


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
    example.requires_grad_(fake.requires_grad)
    return example.clone() if _may_be_changed(argument, fake) else example


def _may_be_changed(argument: Any, fake: torch.Tensor) -> bool:
    """Whether a traced Function may change a tensor in place, which it may not do to a leaf.

    torch loses the gradient where what it changes lies in memory that the graph is given. Where
    all tensors that are given are leaves, that is an error of torch's.
    """
    nodes = argument.as_proxy().node.graph.nodes
    given = (n.meta.get("example_value") for n in nodes if n.op in ("placeholder", "get_attr"))
    tensors = (value for value in given if isinstance(value, torch.Tensor))
    return not fake.is_leaf and all(tensor.is_leaf for tensor in tensors)
