"""`Subject`: a Function class, a completed Function or any callable, seen in one way.

What was typed at a prompt or in a notebook has a source too, and what that needs to run.
"""

import ast
import inspect
import linecache
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch

from pullback.errors import ArgumentTypeError
from pullback.internal._operator import (
    definer,
    definition,
    is_operator,
    registered_rules,
    resolve,
)
from pullback.internal._syntax import parse
from pullback.recording.locator import Locator, global_names
from pullback.recording.locator import definition as written
from pullback.tensor import Function, Intent

__all__ = ["Subject", "Typed", "typed_source"]


_INTENTS = ("exact", "surrogate", "nonlinear")


@dataclass(frozen=True)
class Subject:
    """What is checked."""

    target: Any  # the Function class or callable as it was given
    call: Callable[..., Any]  # calls it with its positional and keyword arguments
    function: type[torch.autograd.Function] | None  # ``None`` for another callable
    locator: Locator
    gradient: Intent | None  # the declared intent, or ``None``
    source: str  # ``file:line`` of its definition, or an empty text

    @classmethod
    def of(cls, target: Any, gradient: str | None = None) -> "Subject":
        """Look at a Function class, ``F.apply``, any callable, or an operator or its name.

        An intent that the caller declares wins over the class's own.

        Raises:
            ArgumentTypeError: the target cannot be called.
            ArgumentError: there is no such operator.

        Example:
            >>> class Twice(torch.autograd.Function):
            ...     pass
            >>> Subject.of(Twice.apply).function is Twice
            True
        """
        if is_operator(target):
            target = definition(resolve(target))
        if not callable(target):
            raise ArgumentTypeError(
                "There is nothing to check.",
                given=f"{type(target).__name__}: {target!r}",
                expected="a torch.autograd.Function subclass, a callable of tensors, or an "
                "operator such as 'mylib::scale'",
            )
        owner = getattr(target, "__self__", None)
        if _is_function(owner) and getattr(target, "__name__", "") == "apply":
            target = owner
        function = cast(type[torch.autograd.Function], target) if _is_function(target) else None
        declared = gradient or _declared(target)
        call: Callable[..., Any] = cast(Any, target if function is None else function.apply)
        return cls(
            target=target,
            call=call,
            function=function,
            locator=Locator.of(target),
            gradient=cast(Intent | None, declared),
            source=_source(target),
        )

    @property
    def name(self) -> str:
        """``"module:qualname"``; the script's file in place of ``__main__``."""
        return self.locator.name

    @property
    def operator(self) -> Any:
        """The operator of torch.library that it is, or ``None``."""
        return resolve(self.target) if is_operator(self.target) else None

    @property
    def structured(self) -> bool:
        """Whether nested arguments are differentiated: by `pullback.Function` and callables."""
        return self.function is None or issubclass(self.function, Function)

    def misfit(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """Why it does not take arguments, by its signature.

        An empty text where it takes them; ``None`` where nobody knows, as of what is made in C.
        """
        kind = self.function
        combined = kind is not None and kind.setup_context is torch.autograd.Function.setup_context
        try:
            taken = inspect.signature(self.target if kind is None else kind.forward)
        except (TypeError, ValueError):
            return None
        try:
            taken.bind(*([None] if combined else []), *args, **kwargs)
        except TypeError as error:
            return f"{error}: it takes {taken}"
        return ""

    def importable(self) -> bool:
        """Whether another process finds the same object by its locator."""
        wrapped = getattr(self.target, "__wrapped__", None)
        if self.locator.completed and not self.locator.names(self.target):
            return self.locator.names(wrapped)
        return self.locator.names(self.target)


def _is_function(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, torch.autograd.Function)


def _declared(target: Any) -> str | None:
    """The intent written on a class or callable; a bare torch Function declares nothing."""
    while isinstance(target, partial):
        target = target.func
    value = getattr(target, "gradient", None)
    return value if isinstance(value, str) and value in _INTENTS else None


def _source(target: Any) -> str:
    """Where the target is written; callables made in C or at a prompt have no source."""
    while isinstance(target, partial):
        target = target.func
    if is_operator(target):
        op = resolve(target)
        target = definer(op) or registered_rules(op).backward or target
    try:
        path = inspect.getsourcefile(target)
        line = _line_of(target)
    except (TypeError, OSError):
        typed = typed_source(target)
        if typed is not None:
            return typed.place
        module = sys.modules.get(getattr(target, "__module__", None) or "")
        return str(getattr(module, "__file__", "") or "")
    return f"{path}:{max(line, 1)}"


def _line_of(target: Any) -> int:
    """The first line of a class or function.

    To find a class `inspect` parses its whole file, each time: as long as a clause takes.
    """
    file = inspect.getsourcefile(target) or ""
    found = written(file, target.__qualname__) if inspect.isclass(target) else None
    if not isinstance(found, ast.ClassDef):
        return inspect.getsourcelines(target)[1]
    return min(node.lineno for node in (found, *found.decorator_list))


@dataclass(frozen=True)
class Typed:
    """The source of something that no file holds."""

    text: str  # the definition
    place: str  # the name of the input that it was typed in, and the line there
    # lines that bind the names of the prompt that it reads; ``None`` where one of them is neither a
    # module, something of a module, nor a plain number or text
    needs: tuple[str, ...] | None


def typed_source(target: Any) -> Typed | None:
    """The source of a class or function that was defined at a prompt; ``None`` of any other.

    IPython keeps what was typed, as does Python's own prompt from 3.13 on.
    """
    main = sys.modules.get("__main__")
    if getattr(target, "__module__", None) != "__main__" or hasattr(main, "__file__"):
        return None
    for code in _codes(target):
        lines = linecache.getlines(code.co_filename)
        found = _definition(lines, target.__name__, code.co_firstlineno)
        if found is not None:
            first = min([found.lineno, *(item.lineno for item in found.decorator_list)])
            text = "".join(lines[first - 1 : found.end_lineno]).rstrip("\n")
            needs = _bindings(target, global_names(found))
            return Typed(text, f"{code.co_filename}:{first}", needs)
    return None


def _codes(target: Any) -> Iterator[types.CodeType]:
    """The code of a function, or of what a class defines."""
    values = vars(target).values() if isinstance(target, type) else [target]
    for value in values:
        code = getattr(inspect.unwrap(getattr(value, "__func__", value)), "__code__", None)
        if isinstance(code, types.CodeType):
            yield code


def _definition(lines: list[str], name: str, line: int) -> ast.ClassDef | ast.FunctionDef | None:
    try:
        tree = parse("".join(lines))
    except SyntaxError:  # a cell with a magic of IPython's
        return None
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
            if first <= line <= (node.end_lineno or 0):
                return node
    return None


def _bindings(target: Any, names: set[str]) -> tuple[str, ...] | None:
    """Lines that bind the globals of the prompt among the names, but for torch and itself."""
    known = vars(sys.modules["__main__"])
    lines = []
    for name in sorted(names & set(known) - {"torch", target.__name__}):
        value = known[name]
        home = getattr(value, "__module__", None)
        if isinstance(value, types.ModuleType):
            alias = "" if value.__name__ == name else f" as {name}"
            lines.append(f"import {value.__name__}{alias}")
        elif isinstance(value, bool | int | float | str):
            lines.append(f"{name} = {value!r}")
        elif home not in (None, "__main__") and getattr(value, "__qualname__", "") == name:
            lines.append(f"from {home} import {name}")
        else:
            return None
    return tuple(lines)
