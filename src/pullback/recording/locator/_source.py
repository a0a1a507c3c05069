"""What a module defines, read from its source: nothing is imported to find out."""

import ast
import functools
import importlib.machinery
import importlib.util
import itertools
import os
import symtable
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from pullback.internal._syntax import parse

__all__ = [
    "bound_names", "definition", "derives_from_function", "global_names", "is_main_guard",
    "names_of_script", "source_of",
]  # fmt: skip

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


def _definitions(node: ast.AST) -> Iterator[Definition]:
    """What a module or class defines, under ``if``, ``try`` and ``with`` too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield child
        elif isinstance(child, (ast.stmt, ast.ExceptHandler)):
            yield from _definitions(child)


def _names(found: Definition) -> list[str]:
    if isinstance(found, ast.Assign):
        return [target.id for target in found.targets if isinstance(target, ast.Name)]
    return [found.name]


def names_of_script(file: str) -> frozenset[str]:
    """The names that can be taken out of a script; none of one that is not there, or in an archive.

    They are those that the statements of its top level bind, but for what only the program does.
    """
    try:
        return _names_at_top(file, os.path.getmtime(file))
    except (OSError, SyntaxError, ValueError):
        return frozenset()


@functools.lru_cache(maxsize=64)
def _names_at_top(file: str, modified: float) -> frozenset[str]:
    body = _parsed(file, modified).body
    return frozenset().union(*(bound_names(item) for item in body if not is_main_guard(item)))


def is_main_guard(statement: ast.stmt) -> bool:
    """Whether a statement asks whether its file is the program."""
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)
    )


def _tables(statement: ast.stmt) -> Iterator[symtable.SymbolTable]:
    """The names of a statement, and of the functions and classes in it."""
    pending = [symtable.symtable(ast.unparse(statement), "<statement>", "exec")]
    while pending:
        yield (table := pending.pop())
        pending.extend(table.get_children())


def global_names(statement: ast.stmt) -> set[str]:
    """Return the global names that a statement, or a function inside it, reads."""
    return {
        symbol.get_name()
        for table in _tables(statement)
        for symbol in table.get_symbols()
        # The body of a module or class reads its own names, or else global ones.
        if symbol.is_global() or (symbol.is_referenced() and table.get_type() != "function")
    }


def bound_names(statement: ast.stmt) -> set[str]:
    """Return the names that a top-level statement binds, not looking into definitions."""
    symbols = next(_tables(statement)).get_symbols()
    return {s.get_name() for s in symbols if s.is_assigned() or s.is_imported()}
