"""`complete`: give any `torch.autograd.Function` the transforms it lacks."""

import ast
import contextlib
import functools
import importlib
import inspect
import pkgutil
import sys
import textwrap
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch

from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.internal.torch import applied_class, are_functorch_transforms_active, replaces_apply
from pullback.tensor import _habits
from pullback.tensor._case import Intent
from pullback.tensor._definition import without_once
from pullback.tensor._function import Function

__all__ = ["complete", "completed"]

_base: Any = torch.autograd.Function
_known: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def complete(
    function: type[torch.autograd.Function],
    *,
    gradient: Intent | None = None,
    batching: Literal["auto", "derived", "loop"] = "auto",
) -> type[Function]:
    """Return a Function with the same values and gradients that works under every transform.

    The original is not changed. Its forward and backward run as they are, so outputs and
    first-order gradients are equal to the last bit. Added are `torch.func` (``grad``, ``vjp``,
    ``jacrev``, ``hessian``, ``vmap``), forward mode, a right second derivative also where
    intermediates were saved or `once_differentiable` was declared, and
    ``torch.compile(fullgraph=True)``. What cannot be derived, because backward leaves torch, is
    refused by name when it is asked for.

    Arguments:
        function: a subclass of `torch.autograd.Function`, old style or new, yours or not.
        gradient: its intent, if you want to declare one.
        batching: how vmap runs its rules: ``"derived"`` on batched tensors, ``"loop"`` item by
            item, ``"auto"`` on batched tensors where torch can and item by item where not.

    Returns:
        A subclass of both `pullback.Function` and ``function``.

    Raises:
        ArgumentTypeError: ``function`` is not a Function class.
        UnsupportedError: it replaces ``apply`` by its own.

    Example:
        >>> import torch
        >>> class Square(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.x = x
        ...         return x * x
        ...
        ...     @staticmethod
        ...     def backward(ctx, cotangent):
        ...         return 2 * ctx.x * cotangent
        >>> torch.func.hessian(complete(Square).apply)(torch.tensor(3.0))
        tensor(2.)
    """
    if not isinstance(function, type) or not issubclass(function, torch.autograd.Function):
        raise ArgumentTypeError(
            "complete takes a Function class.",
            given=repr(function),
            expected="a subclass of torch.autograd.Function",
            mend="Pass the class, not its apply or an instance.",
        )
    if issubclass(function, Function):
        return function
    if replaces_apply(function):
        raise UnsupportedError(
            f"{function.__name__} defines its own apply, which complete would bypass.",
            mend="Complete the Function that its apply calls, or write a pullback.Function.",
        )
    plain = gradient is None and batching == "auto"
    if plain and function in _known:
        return _known[function]
    traced = _calls_an_argument(function)
    body: dict[str, Any] = {
        "__module__": function.__module__,
        "__qualname__": function.__qualname__,
        "__doc__": function.__doc__,
        "__wrapped__": function,
        "gradient": gradient or getattr(function, "gradient", None),
        "autocast": "ambient",
        "batching": batching,
        "_lenient": True,
        "_traced": traced,
    }
    if traced:
        body["forward"] = staticmethod(_refuse_composition(function))
    body |= _rules_without_once(function)
    result = types.new_class(
        function.__name__, (Function, function), exec_body=lambda namespace: namespace.update(body)
    )
    if plain:
        _known[function] = result
    return result


_habits.completer = complete


def _rules_without_once(function: Any) -> dict[str, Any]:
    rules = {name: getattr(function, name) for name in ("backward", "vjp")}
    return {
        name: staticmethod(without_once(rule))
        for name, rule in rules.items()
        if rule is not getattr(_base, name)
    }


@contextlib.contextmanager
def completed(package: types.ModuleType | str) -> Iterator[list[type[Function]]]:
    """Complete every Function of a module or package while the context is active.

    Calls of ``F.apply`` inside and outside the package run the completed Function, also through
    names that the package bound to ``F.apply`` when it was imported. Afterwards all is as before.

    Arguments:
        package: a module, or its name; submodules that are imported already are included, and
            those that can be imported are imported.

    Yields:
        The completed Functions. Functions that cannot be completed are left as they are.

    Raises:
        ArgumentError: the module cannot be imported.

    Example:
        >>> import torch, types
        >>> module = types.ModuleType("square")
        >>> with completed(module) as functions:
        ...     functions
        []
    """
    modules = _modules(package)
    roots = tuple({module.__name__.partition(".")[0] for module in modules})
    originals: list[Any] = []
    results: list[type[Function]] = []
    for found in _functions(modules, roots):
        with contextlib.suppress(UnsupportedError):
            results.append(complete(found))
            originals.append(found)
    aliases: list[tuple[Any, str, Any]] = [
        (module, name, value)
        for module in modules
        for name, value in list(vars(module).items())
        if applied_class(value) in originals
    ]
    try:
        for original, result in zip(originals, results, strict=True):
            original.apply = result.apply
        for module, name, value in aliases:
            setattr(module, name, value.__self__.apply)
        yield results
    finally:
        for original in originals:
            del original.apply
        for module, name, value in aliases:
            setattr(module, name, value)


def _calls_an_argument(function: Any) -> bool:
    """Whether a rule calls an argument of forward, directly or kept on the context.

    `torch.compile` can put tensors and numbers into a graph, not functions or modules. A Function
    that takes one is traced rule by rule, as torch does without pullback.
    """
    rules = (function.forward, function.setup_context, function.backward)
    nodes = [node for rule in rules for node in _syntax(rule)]
    names = set(inspect.signature(function.forward).parameters)
    for node in nodes:  # ctx.tree = tree
        if isinstance(node, ast.Assign) and getattr(node.value, "id", None) in names:
            names |= {t.attr for t in node.targets if isinstance(t, ast.Attribute)}
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    return any(getattr(c, "id", None) in names or getattr(c, "attr", None) in names for c in called)


def _syntax(rule: Any) -> list[ast.AST]:
    try:
        return list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(rule))))))
    except (OSError, TypeError, SyntaxError):
        return []


def _refuse_composition(function: Any) -> Callable[..., Any]:
    """The forward of a traced Function: below `torch.func`, Dynamo would drop its backward."""
    forward, name = function.forward, function.__name__

    @functools.wraps(forward)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling() and are_functorch_transforms_active():
            raise UnsupportedError(
                f"torch.compile of a torch.func transform of {name} is refused: {name} takes a "
                "function as argument, and its backward would be dropped.",
                mend="Compile the function without the transform, or transform without compiling.",
            )
        return forward(*args, **kwargs)

    return guarded


def _modules(package: types.ModuleType | str) -> list[types.ModuleType]:
    if isinstance(package, str):
        try:
            package = importlib.import_module(package)
        except ImportError as error:
            raise ArgumentError(
                f"The module {package!r} cannot be imported: {error}.",
                mend="Install it, or pass a module that is imported.",
            ) from error
    prefix = package.__name__ + "."
    for info in pkgutil.walk_packages(getattr(package, "__path__", []), prefix, lambda name: None):
        if not info.name.endswith("__main__"):
            # A submodule that needs something that is not installed has no Functions in use.
            with contextlib.suppress(Exception):
                importlib.import_module(info.name)
    names = [name for name in sys.modules if name == package.__name__ or name.startswith(prefix)]
    return [package, *(sys.modules[name] for name in names if sys.modules[name] is not package)]


def _functions(modules: list[types.ModuleType], roots: tuple[str, ...]) -> list[Any]:
    found: dict[Any, None] = {}
    for module in modules:
        for value in list(vars(module).values()):
            if (
                isinstance(value, type)
                and issubclass(value, torch.autograd.Function)
                and not issubclass(value, Function)
                and value.__module__.partition(".")[0] in roots
                and value.forward is not _base.forward
            ):
                found[value] = None
    return list(found)
