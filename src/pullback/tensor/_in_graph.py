"""Let `torch.compile` put a Function into its graph whole.

Dynamo refuses to trace a Function that has a forward-mode rule, and drops its backward inside
`torch.func` transforms. A Function allowed in the graph is called by the tracer below Dynamo
with all its rules intact, so reverse mode, forward mode and composed transforms are right.

Dynamo takes a second to import. Functions defined before it is imported wait in a list that a
finder, active until then, hands over once.
"""

import ast
import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import sys
import textwrap
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from pullback.errors import UnsupportedError
from pullback.internal.torch import are_functorch_transforms_active, graph_break, pytree

__all__ = [
    "allow_in_graph",
    "may_change",
    "reads_a_tensor",
    "refuse_change",
    "refuse_composition",
    "refuse_constants",
    "takes_an_object",
]

_DYNAMO = "torch._dynamo"
_base: Any = torch.autograd.Function
# What tensors and the other values that a graph takes have themselves.
_GRAPHED = (torch.Tensor, torch.Size, torch.dtype, torch.device, int, float, complex, str)
_KNOWN = frozenset(name for kind in (*_GRAPHED, list, tuple, dict, slice) for name in dir(kind))
_waiting: weakref.WeakSet[type] = weakref.WeakSet()


def allow_in_graph(function: type[torch.autograd.Function]) -> None:
    """Register the Function with Dynamo, now or as soon as Dynamo is imported."""
    if _DYNAMO in sys.modules and hasattr(sys.modules[_DYNAMO], "allow_in_graph"):
        torch.compiler.allow_in_graph(function)
        return
    _waiting.add(function)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def takes_an_object(function: Any) -> bool:
    """Whether a rule calls an argument of forward, or looks into one that is no tensor.

    `torch.compile` can put tensors and numbers into a graph, not functions, modules or objects. A
    Function that takes one is traced rule by rule, as torch does without pullback.
    """
    rules = (function.forward, function.setup_context, function.backward)
    nodes = [node for rule in rules for node in _syntax(rule)]
    split = function.setup_context is not _base.setup_context
    names = set(list(inspect.signature(function.forward).parameters)[0 if split else 1 :])
    looked = [n for n in nodes if isinstance(n, ast.Attribute) and n.attr not in _KNOWN]
    called = [node for node in nodes if isinstance(node, ast.Call)]
    looked += [c for c in called if getattr(c.func, "id", None) == "getattr" and c.args]
    if any(getattr(_looked_at(node), "id", None) in names for node in looked):
        return True
    for node in nodes:  # ctx.tree = tree
        if isinstance(node, ast.Assign) and getattr(node.value, "id", None) in names:
            names |= {t.attr for t in node.targets if isinstance(t, ast.Attribute)}
    return any(
        getattr(c.func, "id", None) in names or getattr(c.func, "attr", None) in names
        for c in called
    )


def _looked_at(node: Any) -> ast.AST:
    return node.value if isinstance(node, ast.Attribute) else node.args[0]


def reads_a_tensor(function: Any) -> bool:
    """Whether a rule reads a tensor that is no argument: a global, or one of an outer function.

    In a graph that takes the Function whole it could only be a constant, wrong as soon as it
    changes. A Function that reads one is traced too: Dynamo makes it an input, and guards it.
    """
    seen: set[int] = set()
    waiting = [function.forward, function.setup_context, function.backward]
    while waiting:
        rule = inspect.unwrap(waiting.pop())
        if id(rule) in seen or not isinstance(rule, types.FunctionType):
            continue
        seen.add(id(rule))
        for value in _read(rule):
            if isinstance(value, types.FunctionType) and value.__module__ == rule.__module__:
                waiting.append(value)  # a helper reads for the rule
            elif isinstance(value, torch.nn.Module) or (
                isinstance(value, (torch.Tensor, list, tuple, dict))
                and any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))
            ):
                return True
    return False


def _read(rule: types.FunctionType) -> Iterator[Any]:
    for cell in rule.__closure__ or ():
        with contextlib.suppress(ValueError):  # it is empty still
            yield cell.cell_contents
    for name in rule.__code__.co_names:
        if name in rule.__globals__:
            yield rule.__globals__[name]


def _syntax(rule: Any) -> list[ast.AST]:
    try:
        return list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(rule))))))
    except (OSError, TypeError, SyntaxError):
        return []


def refuse_composition(function: Any) -> Callable[..., Any]:
    """The forward of a traced Function: below `torch.func`, Dynamo would drop its backward."""
    forward, name = function.forward, function.__name__
    if hasattr(forward, "refuses_composition"):
        return forward

    @functools.wraps(forward)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling() and are_functorch_transforms_active():
            graph_break(
                f"torch.compile of a torch.func transform of {name} is refused: {name} takes a "
                "function or an object as argument, or reads a tensor that is no argument, and "
                "its backward would be dropped. Compile the function without the transform, or "
                "transform without compiling."
            )
        return forward(*args, **kwargs)

    guarded.refuses_composition = True  # type: ignore[attr-defined]
    guarded.__signature__ = inspect.signature(forward, follow_wrapped=False)  # type: ignore[attr-defined]
    return guarded


def may_change(tensor: torch.Tensor) -> bool:
    """Whether a Function may change a tensor in place in the graph that is being traced.

    What the graph made may change. Of its inputs, their views and what was changed before, the
    compiler (AOTAutograd) believes that autograd does not see the change, and drops the backward.
    """
    root = tensor._base if tensor._base is not None else tensor
    made = root.grad_fn is not None and "Error" not in root.grad_fn.name()
    return not tensor.requires_grad or (made and root._version == 0)


@contextlib.contextmanager
def refuse_constants(name: str) -> Iterator[None]:
    """Refuse by name a tensor that a rule reads and `reads_a_tensor` could not see."""
    try:
        yield
    except AssertionError as error:
        if "allow_non_fake_inputs" not in str(error):
            raise
        raise UnsupportedError(
            f"{name} reads a tensor that is no argument, and torch.compile takes {name} into its "
            "graph whole, where that tensor would be a constant.",
            mend="Pass the tensor as an argument, or bind it before the class is defined.",
        ) from error


def refuse_change(name: str) -> UnsupportedError:
    """The error for a change in place that the compiler would differentiate wrongly."""
    return UnsupportedError(
        f"{name} changes a tensor in place that the compiled graph takes as an input, or that "
        "was changed before: torch.compile would drop its backward.",
        mend="Apply it to a clone, or without compiling.",
    )


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: it wraps the loader of Dynamo, once."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _DYNAMO:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Loads Dynamo with its own loader, then registers the Functions that wait."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        while _waiting:
            torch.compiler.allow_in_graph(_waiting.pop())


_finder = _Finder()
