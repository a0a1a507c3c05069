"""Graph transforms of modules, which may be chained, over torch.compile's tracer.

A transformed module keeps what was done to it under unit_scaling's own names, ``backends`` and
``base_forward``, so that its transforms and ours chain in either order.
"""

import contextlib
import copy
import functools
import itertools
import threading
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, fx, nn

from pullback.compat.unit_scaling._checkpoint import preserve_random_state
from pullback.errors import ArgumentTypeError, UnsupportedError
from pullback.internal.torch import are_functorch_transforms_active, graph_break, never_compile

__all__ = ["Transform", "apply_transform", "in_graph"]

Module = TypeVar("Module", bound=nn.Module)

_TORCH = str(Path(torch.__file__).parent)
_numbers = itertools.count()


class Transform:
    """What becomes of each graph of a module.

    Attributes:
        name: what the user called, for messages.
        rank: where it stands among others: 0 replaces functions, 1 rounds, 2 looks on, 3 compiles.
        needs_graph: whether a forward that is not traced at all must be refused.
    """

    name: str
    rank: int
    needs_graph = True
    __qualname__: str  # unit_scaling asks every transform for it

    def __init__(self) -> None:
        self.__qualname__ = self.name

    def __call__(self, graph_module: fx.GraphModule, example_inputs: list[Any]) -> Any:
        """Return the transformed graph, or what runs it where no transform can follow."""
        preserve_random_state(graph_module)
        return self.transform(graph_module)

    def transform(self, graph_module: fx.GraphModule) -> Any:
        """Return the same for a graph that may be run as it is."""
        raise NotImplementedError

    def around(self) -> contextlib.AbstractContextManager[Any]:
        """Return what a forward runs in: it acts on what is in no graph."""
        return contextlib.nullcontext()

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the arguments of a call, as forward shall get them."""
        return args, kwargs


def apply_transform(module: Module, transform: Transform) -> Module:
    """Return a copy of a module whose forward is traced into graphs and given to a transform.

    The copy may be transformed again: its transforms run one after the other, by rank.

    Raises:
        ArgumentTypeError: no module.
        UnsupportedError: a part of the module is transformed already or has a function set as
            its forward, or the transforms exclude each other.
    """
    if not isinstance(module, nn.Module):
        raise ArgumentTypeError(
            "Only modules can be transformed.",
            given=f"a {type(module).__name__}",
            expected="an nn.Module",
        )
    _refuse_transformed_parts(module, transform)
    _refuse_set_forwards(module)
    transformed: Any = copy.deepcopy(module)
    earlier = vars(transformed).get("backends", []) if is_transformed(transformed) else []
    base = vars(transformed)["base_forward"] if earlier else transformed.forward
    transformed.backends = _order([*earlier, transform])
    transformed.base_forward = base
    transformed.forward = _Runner(transformed)
    return transformed


def is_transformed(module: nn.Module) -> bool:
    """Whether a module was transformed, by us or by unit_scaling."""
    return {"backends", "base_forward"} <= vars(module).keys()


def _refuse_transformed_parts(module: nn.Module, transform: Transform) -> None:
    for name, part in module.named_modules():
        if part is not module and is_transformed(part):
            raise UnsupportedError(
                f"{transform.name} was given a module a part of which is transformed already; "
                "one of the two transforms would be lost.",
                given=f"{type(module).__name__}, whose {name} is transformed",
                mend="Build the module from parts as they are, and transform it as a whole.",
            )


def _refuse_set_forwards(module: nn.Module) -> None:
    """Refuse functions that were set as forward: in a copy they would run the original."""
    for name, part in module.named_modules():
        forward = vars(part).get("forward")
        if isinstance(forward, types.FunctionType) and not is_transformed(part):
            raise UnsupportedError(
                "A forward that was set on a module may hold the module, so that a copy of it "
                "would run the original.",
                given=f"{forward.__qualname__}, set on {name or type(module).__name__}",
                mend="Make a class with this forward.",
            )


def _order(transforms: list[Any]) -> list[Any]:
    """Unit scaling, then rounding, then what looks on or compiles, each as often as it was asked.

    Of several that look on the last does: the earlier ones belong to other copies.
    """
    looking = [t for t in transforms if _rank(t) == 2]
    compiling = [t for t in transforms if _rank(t) == 3]
    if looking and compiling:
        raise UnsupportedError(
            "A module cannot be both tracked and compiled: compiled code has no values to look at.",
            given=f"{looking[0].name} and {compiling[0].name}",
            mend="Track the module as it is, and compile another copy.",
        )
    kept = [t for t in transforms if _rank(t) < 2] + looking[-1:] + compiling[-1:]
    return sorted(kept, key=_rank)


def _rank(transform: Any) -> int:
    if isinstance(transform, Transform):
        return transform.rank
    if not isinstance(transform, types.FunctionType):
        raise UnsupportedError(
            "A transform of unit_scaling cannot be followed by one of ours: it looks on or "
            "compiles, and so comes last.",
            given=f"a {type(transform).__name__}",
            mend="Apply it last, or take ours of the same name.",
        )
    return 0 if "unit_scaling_backend" in transform.__qualname__ else 1


class _Runner:
    """Runs a module's forward through its transforms, traced anew for each kind of input."""

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
        needs_graph = any(getattr(each, "needs_graph", True) for each in self.module.backends)
        if needs_graph and are_functorch_transforms_active():
            raise _untraced(self.module.base_forward)
        for transform in self.module.backends:
            if isinstance(transform, Transform):
                args, kwargs = transform.begin(args, kwargs)
        key = (
            _kind(args),
            _kind(tuple(kwargs.items())),
            torch.is_grad_enabled(),
            *(child.training for child in self.module.modules()),
        )
        if key not in self.compiled:
            self.compiled[key] = _compile(self.module.base_forward, self.module.backends)
        return self.compiled[key](*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Runner":
        return _Runner(copy.deepcopy(self.module, memo))

    def __reduce__(self) -> Any:
        return _Runner, (self.module,)


never_compile(_Runner.__call__)


def _compile(forward: Callable[..., Any], transforms: Sequence[Any]) -> Callable[..., Any]:
    """Return a forward that goes through transforms, or refuses if no graph of it ran.

    torch.compile runs eagerly without a word where it is turned off, inside of torch.func, under
    a dispatch mode, and past its limit of recompilations.
    """

    def run_all(graph_module: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        result: Any = graph_module  # each but the last returns a graph
        try:
            for transform in transforms:
                result = transform(result, example_inputs)
        except UnsupportedError as error:  # which torch.compile would wrap if it rose here
            return functools.partial(_refuse, error)
        return functools.partial(_graphs.run, result)

    function, bound = _unbind(forward)
    # A code object of its own, whose cache no other module fills up.
    compiled = torch.compile(_frame_of(function), backend=run_all, dynamic=False)
    needs_graph = any(getattr(transform, "needs_graph", True) for transform in transforms)

    def run(*args: Any, **kwargs: Any) -> Any:
        before = _graphs.count
        with contextlib.ExitStack() as around:
            for transform in transforms:
                if isinstance(transform, Transform):
                    around.enter_context(transform.around())
            result = compiled(*bound, *args, **kwargs)
        if needs_graph and _graphs.count == before:
            raise _untraced(function)
        return result

    return run


def _refuse(error: UnsupportedError, *args: Any) -> NoReturn:
    raise error


def _untraced(forward: Callable[..., Any]) -> UnsupportedError:
    name = getattr(forward, "__qualname__", type(forward).__name__)
    return UnsupportedError(
        f"torch.compile traced nothing of {name}, so that nothing was transformed.",
        given="code or a mode that it does not trace, such as torch.func around it",
        mend="Track it as it runs with pullback.tracking.Tracker, which needs no graph.",
    )


class _Graphs(threading.local):
    """The graphs that run in this thread."""

    def __init__(self) -> None:
        self.count = 0  # how many have run
        self.depth = 0  # how many are running

    def run(self, graph: Callable[..., Any], *args: Any) -> Any:
        """Run a graph."""
        self.count += 1
        self.depth += 1
        try:
            return graph(*args)
        finally:
            self.depth -= 1


_graphs = _Graphs()


def in_graph() -> bool:
    """Whether what is called is part of a transformed graph, traced or running."""
    return torch.compiler.is_compiling() or _graphs.depth > 0


def _kind(value: Any) -> Any:
    if isinstance(value, Tensor):
        return (tuple(value.shape), tuple(value.stride()), value.dtype, value.requires_grad)
    if isinstance(value, list | tuple):
        return (type(value), *(_kind(item) for item in value))
    if isinstance(value, dict):
        return (dict, *((key, _kind(item)) for key, item in value.items()))
    return value if isinstance(value, int | float | str | bool | None) else type(value)


def _unbind(forward: Any) -> tuple[Any, tuple[Any, ...]]:
    if isinstance(forward, types.MethodType):
        return forward.__func__, (forward.__self__,)
    return forward, ()


def _frame_of(forward: Any) -> Callable[..., Any]:
    """Return a forward as a function with a code object of its own.

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
