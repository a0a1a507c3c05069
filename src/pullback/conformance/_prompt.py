"""What was typed at a prompt or in a notebook: its source, and what the source needs to run."""

import ast
import inspect
import linecache
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pullback.internal._syntax import parse
from pullback.recording.locator import global_names

__all__ = ["Typed", "typed_source"]


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
