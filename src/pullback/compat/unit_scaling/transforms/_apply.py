"""Graph transforms of modules, which may be chained, over torch.compile's tracer.

A transformed module keeps what was done to it under unit_scaling's own names, ``backends`` and
``base_forward``, so that its transforms and ours chain. A backend that is a function gives a graph
for the next one; one that is an object looks on or compiles, and is the last.
"""

import copy
import itertools
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, fx, nn

from pullback.errors import ArgumentTypeError, UnsupportedError
from pullback.internal.torch import graph_break, never_compile

__all__ = ["apply_transform", "compile"]

Module = TypeVar("Module", bound=nn.Module)

_TORCH = str(Path(torch.__file__).parent)
_CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint
_numbers = itertools.count()


def apply_transform(module: Module, backend: Any) -> Module:
    """Return a copy of a module whose forward is traced into one graph and given to a backend."""
    if not isinstance(module, nn.Module):
        raise ArgumentTypeError(
            "Only modules can be transformed.",
            given=f"a {type(module).__name__}",
            expected="an nn.Module",
        )
    for name, part in module.named_modules():
        if isinstance(vars(part).get("forward"), types.FunctionType) and part is not module:
            raise _set_forward(name)
    transformed: Any = copy.deepcopy(module)
    earlier = vars(transformed).get("backends", [])
    if not all(isinstance(each, types.FunctionType) for each in earlier):
        raise UnsupportedError(
            "The module is tracked or compiled, and what does that comes last.",
            mend="Apply track_scales or compile after the other transforms, and one of them only.",
        )
    base = vars(transformed).get("base_forward", transformed.forward)
    if isinstance(base, types.FunctionType):
        raise _set_forward(type(module).__name__)
    transformed.backends, transformed.base_forward = [*earlier, backend], base
    transformed.forward = _Runner(transformed)
    return transformed


def _set_forward(name: str) -> UnsupportedError:
    return UnsupportedError(
        "A forward that was set on a module may hold the module, so that a copy would run the "
        "original.",
        given=f"a function that was set on {name}",
        mend="Make a class with this forward.",
    )


class _Runner:
    """Runs a module's forward through its backends, traced anew for each shape of its inputs."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.compiled: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            graph_break(
                "A transformed module is traced by its own transforms, which an outer "
                "torch.compile would lose. Compile without fullgraph=True, and it runs as it is, "
                "or use pullback.compat.unit_scaling.compile."
            )
        for backend in self.module.backends:
            if hasattr(backend, "begin"):
                args, kwargs = backend.begin(args, kwargs)
        values = (*args, *kwargs.values())
        key = tuple(value.shape for value in values if isinstance(value, Tensor))
        if key not in self.compiled:
            self.compiled[key] = _trace(self.module.base_forward, self.module.backends)
        return self.compiled[key](*args, **kwargs)

    def __reduce__(self) -> Any:  # a copy traces for itself
        return _Runner, (self.module,)


never_compile(_Runner.__call__)


def _trace(forward: Any, backends: list[Any]) -> Callable[..., Any]:
    """Return a forward that goes through backends as one graph, or refuses if none ran.

    torch.compile runs eagerly without a word where it is turned off and under a dispatch mode.
    """
    ran = []

    def run_all(graph_module: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        result: Any = graph_module
        try:
            _refuse_checkpoints(graph_module)
            for backend in backends:
                result = backend(result, example_inputs)
        except UnsupportedError as error:  # which torch.compile would wrap if it rose here
            return _raises(error)

        def run(*args: Any) -> Any:
            ran.append(True)
            return result(*args)

        return run

    bound = (forward.__self__,) if isinstance(forward, types.MethodType) else ()
    traced = torch.compile(
        _frame_of(getattr(forward, "__func__", forward)),
        backend=run_all, dynamic=False, fullgraph=True,
    )  # fmt: skip

    def run_traced(*args: Any, **kwargs: Any) -> Any:
        ran.clear()
        value = traced(*bound, *args, **kwargs)
        if not ran:
            raise UnsupportedError(
                "torch.compile traced nothing, so that nothing was transformed.",
                given="code or a mode that it does not trace",
                mend="Use pullback.tracking, which needs no graph: Tracker, or simulate_format.",
            )
        return value

    return run_traced


def _raises(error: UnsupportedError) -> Callable[..., NoReturn]:
    def refuse(*_: Any) -> NoReturn:
        raise error

    return refuse


def _refuse_checkpoints(graph_module: fx.GraphModule) -> None:
    """Refuse what runs again outside of a compiler: it would draw other random numbers."""
    if any(node.target is _CHECKPOINT for node in graph_module.graph.nodes):
        raise UnsupportedError(
            "Transforms do not reach into activation checkpoints.",
            given="torch.utils.checkpoint in the forward",
            mend="Turn checkpointing off, or use pullback.tracking, which needs no graph.",
        )


def _frame_of(forward: Any) -> Callable[..., Any]:
    """Return a forward as a function with a code object of its own: its cache is no other's.

    torch.compile skips frames whose file is torch's, so that a root like nn.Sequential would not
    be traced at all; such a forward is called from a frame of ours.
    """
    code = getattr(forward, "__code__", None)
    if code is None or code.co_filename.startswith(_TORCH):

        def frame(*args: Any, **kwargs: Any) -> Any:
            return forward(*args, **kwargs)

        return _frame_of(frame)
    code = code.replace(co_name=f"forward_{next(_numbers)}")
    fresh = types.FunctionType(
        code, forward.__globals__, forward.__name__, forward.__defaults__, forward.__closure__
    )
    fresh.__kwdefaults__ = forward.__kwdefaults__
    return fresh


class _Compilation:
    """Compiles what the other backends give."""

    def __call__(self, graph_module: Any, example_inputs: list[Any]) -> Any:
        return torch.compile(graph_module, dynamic=False)


def compile(module: Module) -> Module:  # noqa: A001 - the name that callers use
    """Return a copy of a module that torch.compile compiles, with its other transforms.

    ``torch.compile`` itself runs a transformed module as it is.

    Arguments:
        module: the module, which is left as it is.

    Raises:
        ArgumentTypeError: no module.
        UnsupportedError: the module is tracked or compiled already.

    Example:
        >>> import torch
        >>> from pullback.compat.unit_scaling import compile, simulate_fp8
        >>> model = compile(simulate_fp8(torch.nn.Linear(2, 2)))
        >>> len(model.backends)
        2
    """
    return apply_transform(module, _Compilation())
