"""`Subject`: a Function class, a completed Function or any callable, seen in one way."""

import ast
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch

from pullback.conformance._prompt import typed_source
from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal._operator import (
    definer,
    definition,
    is_operator,
    registered_rules,
    resolve,
)
from pullback.recording.locator import Locator
from pullback.recording.locator import definition as written
from pullback.tensor import Function, Intent

__all__ = ["Subject"]

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
            ArgumentError: the intent is unknown, or there is no such operator.

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
        if gradient not in (None, *_INTENTS):
            raise ArgumentError(
                "The gradient intent is unknown.",
                given=f"gradient={gradient!r}",
                expected="'exact', 'surrogate', 'nonlinear' or None to infer it",
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
