"""Graph transforms of modules, which may be chained, over torch.compile's tracer."""

import copy
import inspect
import itertools
import types
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn

from pullback.errors import ArgumentTypeError

__all__ = ["Backend", "apply_transform"]

Backend = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]
"""What makes a runnable of a traced graph."""

Module = TypeVar("Module", bound=nn.Module)

_BACKENDS = "_pullback_backends"
_numbers = itertools.count()
_STARS: dict[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


def apply_transform(
    module: Module, backend: Backend, runs: Callable[[], Any] | None = None
) -> Module:
    """Return a copy of a module whose forward is traced into graphs and given to a backend.

    The copy may be transformed again: its backends run one after the other.

    Arguments:
        module: the module, which is left as it is.
        backend: what becomes of each graph.
        runs: called before each forward.

    Raises:
        ArgumentTypeError: no module.
    """
    if not isinstance(module, nn.Module):
        raise ArgumentTypeError(
            "Only modules can be transformed.",
            given=f"a {type(module).__name__}",
            expected="an nn.Module",
        )
    before: tuple[Backend, ...] = getattr(module, _BACKENDS, ())
    transformed = copy.deepcopy(module)
    if before:  # the forward of an earlier transform belongs to another copy
        del transformed.__dict__["forward"]
    backends = (*before, backend)
    setattr(transformed, _BACKENDS, backends)
    transformed.__dict__["forward"] = _Runner(transformed, _compose(backends), runs)
    return transformed


class _Runner:
    """Runs a module's forward through a backend, traced anew for each kind of input."""

    def __init__(self, module: nn.Module, backend: Backend, runs: Callable[[], Any] | None) -> None:
        self.module = module
        self.backend = backend
        self.runs = runs
        self.compiled: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.runs is not None:
            self.runs()
        key = (
            _kind(args),
            _kind(tuple(kwargs.items())),
            torch.is_grad_enabled(),
            *(child.training for child in self.module.modules()),
        )
        if key not in self.compiled:
            # A code object of its own, whose cache no other module fills up: past its limit
            # torch.compile runs eagerly without a word, and nothing would be transformed.
            self.compiled[key] = torch.compile(
                _frame_of(self.module), backend=self.backend, dynamic=False
            )
        return self.compiled[key](self.module, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Runner":
        return _Runner(copy.deepcopy(self.module, memo), self.backend, self.runs)


def _kind(value: Any) -> Any:
    if isinstance(value, Tensor):
        return (tuple(value.shape), tuple(value.stride()), value.dtype, value.requires_grad)
    if isinstance(value, list | tuple):
        return (type(value), *(_kind(item) for item in value))
    if isinstance(value, dict):
        return (dict, *((key, _kind(item)) for key, item in value.items()))
    return value if isinstance(value, int | float | str | bool | None) else type(value)


def _compose(backends: Iterable[Callable[..., Any]]) -> Backend:
    def run_all(graph_module: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        result: Any = graph_module  # each but the last returns a graph
        for backend in backends:
            result = backend(result, example_inputs)
        return result

    return run_all


def _frame_of(module: nn.Module) -> Callable[..., Any]:
    """Return the class's forward as a function with a code object of its own.

    torch.compile skips frames whose file is torch's, so that a root like nn.Sequential would not
    be traced at all; such a forward is called from a frame of ours with the same arguments.
    """
    forward = type(module).forward
    if forward.__module__.startswith("torch."):
        return _frame_around(forward)
    code = forward.__code__.replace(co_name=f"forward_{next(_numbers)}")
    frame = types.FunctionType(
        code, forward.__globals__, forward.__name__, forward.__defaults__, forward.__closure__
    )
    frame.__kwdefaults__ = forward.__kwdefaults__
    return frame


def _frame_around(forward: Callable[..., Any]) -> Callable[..., Any]:
    parameters = inspect.signature(forward).parameters.values()
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    passed = []
    for parameter in bare:
        star = _STARS.get(parameter.kind, "")
        keyword = f"{parameter.name}=" if parameter.kind is parameter.KEYWORD_ONLY else ""
        passed.append(f"{star}{keyword}{parameter.name}")
    names = ", ".join(str(p.replace(default=p.empty)) for p in bare)
    space: dict[str, Any] = {"inner": forward}
    source = f"def frame({names}):\n    return inner({', '.join(passed)})\n"
    exec(compile(source, __file__, "exec"), space)  # noqa: S102 - names from a signature only
    frame = space["frame"]
    frame.__defaults__ = getattr(forward, "__defaults__", None)
    frame.__kwdefaults__ = getattr(forward, "__kwdefaults__", None)
    return frame
