"""What a module defines, read from its source: nothing is imported to find out."""

import ast
import functools
import importlib.machinery
import importlib.util
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from pullback.internal._syntax import parse

__all__ = ["definition", "derives_from_function", "is_main_guard", "source_of"]

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign


def source_of(module: str, path: Sequence[str] | None = None) -> str:
    """The source file of a module, found without importing it or its packages.

    Arguments:
        module: its full name.
        path: folders to look for its top package in; those of this Python if ``None``.

    Returns:
        An absolute path, or an empty text for a module of the standard library, one without
        source, or one that is not there.

    Example:
        >>> source_of("pullback.recording.locator").endswith("__init__.py"), source_of("os")
        (True, '')
    """
    first, *rest = module.split(".")
    if not all(part.isidentifier() for part in (first, *rest)) or first in sys.stdlib_module_names:
        return ""
    try:
        if path is None:
            spec = importlib.util.find_spec(first)
        else:
            spec = importlib.machinery.PathFinder.find_spec(first, path)
        name = first
        for part in rest:
            if spec is None or spec.submodule_search_locations is None:
                return ""
            name = f"{name}.{part}"
            locations = list(spec.submodule_search_locations)
            spec = importlib.machinery.PathFinder.find_spec(name, locations)
    except (ImportError, ValueError, AttributeError):
        return ""
    origin = None if spec is None else spec.origin
    return os.path.realpath(origin) if origin and origin.endswith(".py") else ""


def definition(file: str, qualname: str) -> Definition | None:
    """The statement of a source file that defines a name.

    Arguments:
        file: the path of the source.
        qualname: a name at the top level, or a path through classes.

    Returns:
        The last such statement: a class, a function, or an assignment; ``None`` if there is none.

    Example:
        >>> type(definition(__file__, "definition")).__name__
        'FunctionDef'
    """
    try:
        found: Any = _parsed(file, os.path.getmtime(file))
    except (OSError, SyntaxError, ValueError):
        return None
    for part in qualname.split("."):
        inside = _definitions(found) if isinstance(found, (ast.Module, ast.ClassDef)) else ()
        found = next((item for item in reversed([*inside]) if part in _names(item)), None)
    return found


def derives_from_function(file: str, qualname: str, module: str = "", depth: int = 8) -> bool:
    """Whether a source file defines a class whose bases lead to a class named ``...Function``.

    Bases are followed by name through the file and through what it imports, in the sources alone.

    Arguments:
        file: the path of the source.
        qualname: the name of the class.
        module: the name of the module, for its relative imports.
        depth: how many bases are followed at most.

    Example:
        >>> derives_from_function(__file__, "definition")
        False
    """
    found = definition(file, qualname)
    if not isinstance(found, ast.ClassDef) or depth == 0:
        return False
    outer = qualname.rpartition(".")[0]
    for base in found.bases:
        name = ast.unparse(base).partition("[")[0]
        if name.rpartition(".")[2].endswith("Function"):
            return True
        here = [(file, inner, module) for inner in {f"{outer}.{name}".strip("."), name}]
        there = ((source_of(home), inner, home) for home, inner in _imported(file, name, module))
        if any(derives_from_function(*p, depth - 1) for p in itertools.chain(here, there)):
            return True
    return False


def _imported(file: str, name: str, module: str) -> Iterator[tuple[str, str]]:
    """The modules and names that a name of a file may have been imported from."""
    package = module if file.endswith("__init__.py") else module.rpartition(".")[0]
    for statement in ast.walk(_parsed(file, os.path.getmtime(file))):
        if not isinstance(statement, (ast.Import, ast.ImportFrom)):
            continue
        for alias in statement.names:
            bound = alias.asname or alias.name
            rest = name.removeprefix(bound).removeprefix(".")
            if not f"{name}.".startswith(f"{bound}."):
                continue
            if isinstance(statement, ast.Import):
                yield alias.name, rest
                continue
            with suppress(ImportError):  # it leads out of the package
                dots = "." * statement.level + (statement.module or "")
                origin = importlib.util.resolve_name(dots, package)
                # A class, or a module of a package.
                yield (f"{origin}.{alias.name}", rest) if rest else (origin, alias.name)


@functools.lru_cache(maxsize=64)
def _parsed(file: str, modified: float) -> ast.Module:
    del modified  # only tells one state of the file from another
    with open(file, "rb") as source:
        return parse(source.read(), file)


def is_main_guard(statement: ast.AST) -> bool:
    """Whether a statement asks whether its file is the program."""
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)
    )


def _definitions(node: ast.AST) -> Iterator[Definition]:
    """What a module or class defines, under ``if``, ``try`` and ``with`` too.

    What a program defines for itself alone is not taken out of its file: see `load_script`.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield child
        elif isinstance(child, (ast.stmt, ast.ExceptHandler)) and not is_main_guard(child):
            yield from _definitions(child)


def _names(found: Definition) -> list[str]:
    if isinstance(found, ast.Assign):
        parts = [part for target in found.targets for part in ast.walk(target)]
        return [part.id for part in parts if isinstance(part, ast.Name)]
    return [found.name]
