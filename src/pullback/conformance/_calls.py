"""What a rule calls as it runs: methods of objects, properties, and functions that others hold.

Which class an object has, and what a table of functions holds, is known as the rule runs.
"""

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

__all__ = ["CALLED", "call_others", "codes_run", "is_copy", "reads_private"]

# What is told of a function that is called.
CALLED, _OTHER, _ATTRIBUTE = "__called__", "__other__", "__attribute__"
_FRAMES = ("super", "locals", "vars", "globals", "eval", "exec", "dir")  # these ask who calls them
_PRIVATE = re.compile(r"_\w+?__\w*[^_]$|_\w+?__\w*[^_]_$")  # within its class it has a short name

Methods = Mapping[Any, Callable[..., Any]]


def _called(value: Any) -> tuple[Any, tuple[Any, ...]]:
    """The function that a call of a value runs, and the object that it is handed first."""
    if isinstance(value, MethodType):
        return value.__func__, (value.__self__,)
    if isinstance(value, (FunctionType, type)):
        return value, ()
    compiled = inspect.getattr_static(value, "py_func", None)
    if compiled is not None:  # by numba
        return getattr(value, "py_func", None), ()
    own = inspect.getattr_static(type(value), "__call__", None)
    return (own, (value,)) if isinstance(own, FunctionType) else (None, ())


def call_others(scope: dict[str, Any], tree: ast.AST, methods: Methods) -> None:
    """Call others in the place of some functions, and tell who asks of each that is called.

    Arguments:
        scope: the names that the tree reads; of `CALLED` what is told.
        tree: the code, which is changed.
        methods: by the author's functions what is called instead.
    """
    told = scope.get(CALLED)
    tell: Callable[[Any], object] = told if callable(told) else lambda _: None

    def other(value: Any) -> Any:
        function, owner = _called(value)
        tell(function)
        instead = methods.get(function) if isinstance(function, FunctionType) else None
        return value if instead is None else partial(instead, *owner)

    def attribute(owner: Any, name: str) -> Any:
        getter = getattr(inspect.getattr_static(type(owner), name, None), "fget", None)
        tell(getter)
        instead = methods.get(getter) if isinstance(getter, FunctionType) else None
        return getattr(owner, name) if instead is None else instead(owner)

    scope |= {_OTHER: other, _ATTRIBUTE: attribute}
    names = None if callable(told) else {function.__name__ for function in methods}
    _Calling(names).visit(tree)


class _Calling(ast.NodeTransformer):
    """Looks at what is called, and at attributes with some names, or at all of them."""

    def __init__(self, names: set[str] | None) -> None:
        self._names = names

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if not (name.startswith("__") or name in _FRAMES):
            node.func = ast.Call(ast.Name(_OTHER, ast.Load()), [node.func], [])
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        self.generic_visit(node)
        wanted = self._names is None or node.attr in self._names
        if not wanted or not isinstance(node.ctx, ast.Load):
            return node
        asked: list[ast.expr] = [node.value, ast.Constant(node.attr)]
        return ast.Call(ast.Name(_ATTRIBUTE, ast.Load()), asked, [])


def is_copy(function: FunctionType) -> bool:
    """Whether a function is no longer that of its module: compiled again, to be watched."""
    module = sys.modules.get(function.__module__ or "")
    return module is None or function.__globals__ is not vars(module)


def reads_private(function: FunctionType) -> bool:
    """Whether it reads names that its class alone spells so."""
    return any(_PRIVATE.match(name) for name in function.__code__.co_names)


@contextmanager
def codes_run() -> Iterator[set[CodeType]]:
    """The code of functions of Python that run within."""
    found: set[CodeType] = set()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: found.add(frame.f_code) if event == "call" else None)
    try:
        yield found
    finally:
        sys.setprofile(before)
