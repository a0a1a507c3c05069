"""Wrong arguments in each place of calls that are right otherwise: what each ends in."""

import asyncio
import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from pullback.errors import PullbackError


async def _late():
    """What is not awaited."""


WRONG: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "whole": lambda: 7,
    "negative": lambda: -1,
    "text": lambda: "text",
    "nan": lambda: math.nan,
    "list": lambda: [object()],
    "empty": list,
    "coroutine": _late,
    "class": lambda: asyncio.Queue,
    "object": object,
}
RIGHT = {str: "text", int: "whole", float: "whole"}


@dataclass(frozen=True)
class Call:
    """A call that is right: made anew each time.

    Arguments:
        function: what is called.
        given: its arguments by their names.
        also: for some of them, which of WRONG they take nevertheless.
        free: those that take anything.
        choices: those that take a few values alone, and no others of their type.
    """

    function: Callable[..., Any]
    given: dict[str, Any]
    also: dict[str, str] = field(default_factory=dict)
    free: str = ""
    choices: str = ""


def in_order(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, its arguments given by any names, in their order."""
    return lambda **given: function(*given.values())


def wrong_answers(make: Callable[[], Call]) -> Iterator[str]:
    """Each wrong argument that ends in no error of ours."""
    first = make()
    for name, value in first.given.items():
        if name in first.free.split():
            continue
        right = None if name in first.choices.split() else RIGHT.get(type(value))
        taken = {right, *first.also.get(name, "").split()}
        if value is None or _default(first.function, name) is None:
            taken.add("none")
        if inspect.isroutine(value) or isinstance(value, type):
            taken.add("class")
        for kind in WRONG.keys() - taken:
            given = WRONG[kind]()
            call = make()
            try:
                call.function(**{**call.given, name: given})
            except PullbackError:
                continue
            except Exception as error:
                yield f"{name}={kind}: {type(error).__name__}: {error}"
            else:
                yield f"{name}={kind}: nothing"
            finally:
                if inspect.iscoroutine(given):
                    given.close()


def _default(function: Any, name: str) -> Any:
    found = inspect.signature(function).parameters.get(name)
    return inspect.Parameter.empty if found is None else found.default


def public_calls(*rooms: ModuleType) -> set[str]:
    """Every public function, constructor and method that takes something, by its name."""
    found = set()
    for room in rooms:
        for name in room.__all__:
            value = getattr(room, name)
            if inspect.isclass(value) and not issubclass(value, Exception):
                found |= {f"{name}.{verb}" for verb in _methods(value)}
            if callable(value) and inspect.signature(value).parameters:
                found.add(name)
    return found


def _methods(kind: type) -> Iterator[str]:
    for name, value in vars(kind).items():
        function = getattr(value, "__func__", value)
        if inspect.isfunction(function) and not name.startswith("_"):
            own = not isinstance(value, staticmethod)
            if len(inspect.signature(function).parameters) > own:
                yield name
