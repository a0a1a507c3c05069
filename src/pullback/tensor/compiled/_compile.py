"""Compiled: Dynamo traces the author's rules; what it cannot trace stands in the graph as one call.

Dynamo has a way of its own for Functions, which knows classes of torch's own metaclass alone. The
classes here have another, so that Dynamo traces `Function.apply` as it traces any method, and
comes to `follow`, which decides by what it sees:

- **traced**: a bare Function, the *twin*, calls the author's rules. Dynamo takes it in its own way,
  and guards what the rules read. This is what torch does with the Function as published.
- **opaque**: where Dynamo cannot trace the rules, or a bare Function has no such arguments (nested,
  by keyword), and the graph must not end (``fullgraph=True``), an operator runs them when the
  graph runs (`pullback.tensor.compiled._opaque`). What they read is read then. So it is below
  transforms of torch.func, where torch drops the backward of what it traces
  (`pullback.tensor.compiled._composed`).
- **not compiled**: otherwise the graph ends before the call, as torch's does.

Which of the first two it is, is found by trying: the twin alone is given to `torch.compile`, with
a backend that stops before anything runs. Nothing is read off the author's code.
"""

import enum
import inspect
from typing import Any

import torch

from pullback.internal.torch import (
    CHANGES_OF_VIEWS_ARE_LOST,
    INTERMEDIATES_ARE_OUTPUTS,
    are_functorch_transforms_active,
    can_trace,
    constant_in_graph,
    graph_break,
    is_exporting,
    never_compile,
    pytree,
)
from pullback.tensor.compiled import _opaque
from pullback.tensor.compiled._site import example_of, find, keep, last_shown, may_be_operator, show
from pullback.tensor.values._levels import is_differentiable

__all__ = ["Traceable", "follow", "prepare"]

_base: Any = torch.autograd.Function
# What a graph takes as an argument or a constant; anything else Dynamo follows, or refuses.
_GRAPHED = (torch.Tensor, int, float, complex, str, bytes, type(None), enum.Enum)
_GRAPHED += (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
_CONTAINERS = (dict, list, tuple)
_REFUSAL = (
    "UnsupportedError: torch.compile of a torch.func transform is refused for a Function that "
    "takes an object as argument: its backward would be dropped. Compile it without the "
    "transform, or transform it without compiling."
)


class Traceable(type(torch.autograd.Function)):
    """The metaclass of Functions whose `apply` Dynamo traces as it is written."""


def prepare(function: Any) -> None:
    """Make what Dynamo traces in the place of a Function, when its class is defined."""
    function._twin = _twin(function)
    function._handle = keep(function)


def follow(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply a Function in code that Dynamo traces.

    Where Dynamo ends its graph within, this runs, and nothing below it is compiled: `apply` would
    be compiled once more, and end there again, without end.
    """
    if not torch.compiler.is_dynamo_compiling():
        return function.apply(*args, **kwargs)
    composed = are_functorch_transforms_active()
    leaves = pytree.tree_leaves((args, kwargs))
    if not all(isinstance(leaf, _GRAPHED) for leaf in leaves):
        if composed:
            graph_break(_REFUSAL)
        return function._twin.apply(*args, **kwargs)  # an object is no argument of an operator
    if kwargs:
        names = _order(function._handle, len(args), tuple(kwargs))
        if names is not None:
            args, kwargs = (*args, *[kwargs[name] for name in names]), {}
    if not (kwargs or composed) and not any(isinstance(arg, _CONTAINERS) for arg in args):
        for leaf in args:
            show(leaf)
        if _is_traced(function._handle, len(args)):
            return function._twin.apply(*_distinct(args))
    if not may_be_operator(composed):
        graph_break("A Function whose rules Dynamo cannot trace, or that takes nested tensors.")
    return _opaque.follow(function._handle, args, kwargs, composed=composed)


never_compile(follow)


def _distinct(args: tuple[Any, ...]) -> list[Any]:
    """The arguments, with a view where a tensor is given twice, which Dynamo refuses."""
    found: list[Any] = []
    for arg in args:
        again = isinstance(arg, torch.Tensor) and any(arg is other for other in found)
        found.append(arg.view_as(arg) if again else arg)
    return found


def _twin(function: Any) -> Any:
    """A bare Function with the rules of another one, whatever they are when it is traced."""
    split = function.setup_context is not _base.setup_context
    name = _name_of_backward(function)
    boxed = bool(getattr(function, "boxed_grads_call", False))

    def forward(ctx: Any, *args: Any) -> Any:
        output = function.forward(*args) if split else function.forward(ctx, *args)
        nested = isinstance(output, _CONTAINERS) and type(output) is not tuple
        if nested or (type(output) is tuple and any(isinstance(y, _CONTAINERS) for y in output)):
            graph_break("A bare Function has no nested outputs.")
        if CHANGES_OF_VIEWS_ARE_LOST and _returns_one_of(args, output):
            graph_break("This torch loses the gradient of a view that forward changes in place.")
        if INTERMEDIATES_ARE_OUTPUTS:
            if type(output) is tuple and not split:
                graph_break("What forward marks may not be copied: see INTERMEDIATES_ARE_OUTPUTS.")
            output = _copied(output)
        if split:
            function.setup_context(ctx, args, output)
        return output

    # Where nothing needs a gradient Dynamo leaves the context out if forward has as many parameters
    # as there are arguments, and ``*args`` counts as one.
    vars(forward)["__signature__"] = inspect.Signature()

    def backward(ctx: Any, *cotangents: Any) -> Any:
        return getattr(function, name)(ctx, *([list(cotangents)] if boxed else cotangents))

    rules = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(function.__name__, (_base,), rules)


def _returns_one_of(args: Any, output: Any) -> bool:
    """Whether forward returns an argument as it is, as it does with one that it has changed."""
    entries = output if isinstance(output, tuple) else (output,)
    return any(entry is arg for entry in entries for arg in args)


def _copied(output: Any) -> Any:
    """The outputs as tensors of their own: no operation of forward returned any of them."""
    if isinstance(output, tuple):
        return tuple([_copied(entry) for entry in output])
    floats = isinstance(output, torch.Tensor) and is_differentiable(output)
    return output.clone() if floats else output


def _name_of_backward(function: Any) -> str:
    """Which of the two names of one rule the author has written."""
    for cls in function.__mro__[: function.__mro__.index(_base)]:
        for name in ("backward", "vjp"):
            if isinstance(vars(cls).get(name), (staticmethod, classmethod)):
                return name
    return "backward"


@constant_in_graph
def _order(handle: str, count: int, names: tuple[str, ...]) -> tuple[str, ...] | None:
    """The keywords as positional arguments; ``None`` if a default stands between them."""
    function = find(handle)
    split = function.setup_context is not _base.setup_context
    parameters = list(inspect.signature(function.forward, follow_wrapped=split).parameters.values())
    rest = parameters[count + (not split) :][: len(names)]
    fits = {p.name for p in rest if p.kind is p.POSITIONAL_OR_KEYWORD} == set(names)
    return tuple(p.name for p in rest) if fits else None


@constant_in_graph
def _is_traced(handle: str, count: int) -> bool:
    """Whether Dynamo can trace the rules on the arguments that were shown last."""
    examples = [example_of(argument) for argument in last_shown(count)]
    twin = find(handle)._twin
    if is_exporting():  # as torch exports the Function as published; nothing is compiled there
        return True

    def applied(*args: Any) -> Any:
        return twin.apply(*args)

    return can_trace(applied, examples)
