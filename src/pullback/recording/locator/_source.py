"""What a module defines, read from its source: nothing is imported to find out."""

import ast
import functools
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence

__all__ = ["definition", "derives_from_function", "source_of"]

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
        body = _parsed(file, os.path.getmtime(file)).body
    except (OSError, SyntaxError, ValueError):
        return None
    found: Definition | None = None
    for part in qualname.split("."):
        if found is not None:
            if not isinstance(found, ast.ClassDef):
                return None
            body = found.body
        found = None
        for statement in _statements(body):
            if part in _defined(statement):
                found = statement
        if found is None:
            return None
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
    for base in found.bases:
        name = ast.unparse(base).partition("[")[0]
        if name.rpartition(".")[2].endswith("Function"):
            return True
        outer = qualname.rpartition(".")[0]
        if derives_from_function(file, f"{outer}.{name}".strip("."), module, depth - 1):
            return True
        if outer and derives_from_function(file, name, module, depth - 1):
            return True
        place = _imported(file, name, module)
        if place is not None and derives_from_function(
            source_of(place[0]), place[1], place[0], depth - 1
        ):
            return True
    return False


def _imported(file: str, name: str, module: str) -> tuple[str, str] | None:
    """The module and name that a name of a file was imported from."""
    first, _, rest = name.partition(".")
    package = module if file.endswith("__init__.py") else module.rpartition(".")[0]
    for statement in ast.walk(_parsed(file, os.path.getmtime(file))):
        if isinstance(statement, ast.ImportFrom):
            origin = statement.module or ""
            if statement.level:
                parts = package.split(".")
                parents = parts[: len(parts) - statement.level + 1]
                origin = ".".join([*parents, *([origin] if origin else [])])
            for alias in statement.names:
                if (alias.asname or alias.name) == first:
                    # A class, or a module of a package.
                    return (f"{origin}.{alias.name}", rest) if rest else (origin, alias.name)
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                if alias.asname == first and rest:
                    return alias.name, rest
                if alias.asname is None and rest and name.startswith(f"{alias.name}."):
                    return alias.name, name.removeprefix(f"{alias.name}.")
    return None


@functools.lru_cache(maxsize=64)
def _parsed(file: str, modified: float) -> ast.Module:
    del modified  # only tells one state of the file from another
    with open(file, "rb") as source:
        return ast.parse(source.read(), file)


def _statements(body: Sequence[ast.stmt]) -> Iterator[Definition]:
    """Definitions of a body, those under ``if``, ``try`` and ``with`` too."""
    for statement in body:
        if isinstance(statement, Definition):
            yield statement
            continue
        for name in ("body", "orelse", "finalbody", "handlers"):
            inner = getattr(statement, name, [])
            yield from _statements([item for item in inner if isinstance(item, ast.stmt)])
            for handler in inner:
                if isinstance(handler, ast.ExceptHandler):
                    yield from _statements(handler.body)


def _defined(statement: Definition) -> list[str]:
    if isinstance(statement, ast.Assign):
        return [target.id for target in statement.targets if isinstance(target, ast.Name)]
    return [statement.name]
