"""`find`: the object that a `Locator` names, by import or out of a script that is not run.

A Function written in the script itself lives in ``__main__``. The script may train for hours when
it is run, guarded by ``if __name__ == "__main__"`` or not, so it is not run again: only the
statements that the definition needs are executed (imports, assignments, other definitions), found
by following names. What those statements do not define is reported as missing.
"""

import ast
import contextlib
import importlib
import operator
import os
import symtable
import sys
import types
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch

from pullback.errors import ArgumentError
from pullback.internal._files import package_around
from pullback.internal._syntax import parse
from pullback.recording.locator._locator import SHIM_PREFIX, Locator
from pullback.recording.locator._source import is_main_guard
from pullback.tensor import complete

__all__ = [
    "find", "global_names", "load_module", "load_script", "only_defines", "refuse_lost",
]  # fmt: skip


def find(locator: Locator) -> Any:
    """Return the Function or callable that a locator names.

    Raises:
        ArgumentError: it cannot be found, with the reason.

    Example:
        >>> find(Locator("math", "sqrt"))(4.0)
        2.0
    """
    refuse_lost(locator)
    first = locator.qualname.partition(".")[0]
    module = load_module(locator.home, locator.file, first)
    try:
        found = operator.attrgetter(locator.qualname)(module)
    except AttributeError as error:
        functions = [name for name, value in vars(module).items() if _is_function(value)]
        raise ArgumentError(
            f"{locator.home} has no {locator.qualname}.",
            given=locator.name,
            expected=f"one of its Functions: {', '.join(functions)}" if functions else None,
            mend="Check the spelling; a class that is made while the program runs is not found.",
        ) from error
    return complete(cast(type[torch.autograd.Function], found)) if locator.completed else found


def refuse_lost(locator: Locator) -> None:
    """Refuse what no name leads to.

    Raises:
        ArgumentError: it is defined inside a function, or in a program that has no file.
    """
    if "<locals>" in locator.qualname:
        outer = locator.qualname.partition(".<locals>")[0]
        raise ArgumentError(
            f"{locator.name} is defined inside {outer} and cannot be imported.",
            mend="Check it where it runs: pullback check -- python ..., or pytest --pullback.",
        )
    if locator.module == "__main__" and not locator.file:
        raise ArgumentError(
            f"{locator.qualname} was defined in a program that has no file.",
            mend="Put it in a module, so that it can be imported.",
        )


def load_module(name: str, file: str = "", wanted: str | None = None) -> types.ModuleType:
    """Import a module, or take the definitions out of a script.

    Arguments:
        name: the name of the module, or the path of a script.
        file: its file; where the module is on no path, its definitions are taken out of it.
        wanted: the name that is needed from a script, or ``None`` for every definition.

    Raises:
        ArgumentError: it cannot be imported, with the reason.
    """
    if os.path.isabs(name):
        return load_script(name, wanted)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if error.name != name or not file:
            raise _not_importable(name, error) from error
        return load_script(file, wanted)
    except (Exception, SystemExit) as error:  # scripts inside packages leave that way
        raise _not_importable(name, error) from error


def _not_importable(name: str, error: BaseException) -> ArgumentError:
    top = name.partition(".")[0]
    missing = isinstance(error, ImportError) and error.name in (name, top)
    return ArgumentError(
        f"There is no module {name}." if missing else f"The module {name} cannot be imported.",
        given=f"{type(error).__name__}: {error}",
        mend="Check the spelling, or run pullback with the Python that has it installed.",
    )


def _is_function(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, torch.autograd.Function)


def load_script(file: str, wanted: str | None) -> types.ModuleType:
    """Load what the definition of ``wanted`` needs from a script, without running the script.

    Arguments:
        file: the path of the script.
        wanted: a name that its top level defines; ``None`` for every definition and import.

    Returns:
        A module; in another process a `Locator` leads to one like it.

    Raises:
        ArgumentError: the script is gone, does not parse, or the statements raise.
    """
    if not os.path.isfile(file):
        raise ArgumentError(
            f"There is no script {file}." if file else "The program has no file.",
            mend="Check the spelling, or put the Function in a module, which can be imported.",
        )
    file = os.path.abspath(file)
    with _readable(file):
        source = Path(file).read_bytes()
    # An edited script is another module; all that is taken out of one is of one module.
    name = f"{SHIM_PREFIX}{zlib.crc32(source, zlib.crc32(os.fsencode(file))):08x}"
    packages, folder = package_around(Path(file))
    for place in (os.path.dirname(file), str(folder)):  # as Python does for a script, and with -m
        if place not in sys.path:
            sys.path.append(place)
    if name not in sys.modules:
        with _readable(file):
            _left[name] = parse(source, file).body
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__file__ = file  # where `inspect` finds the source
        sys.modules[name].__package__ = ".".join(packages)  # from which it imports relatively
    try:
        needed = _needed(_left[name], wanted)
        code = compile(ast.Module(needed, []), file, "exec", dont_inherit=True)
        exec(code, vars(sys.modules[name]))  # noqa: S102 - the user's own script, chosen statements
        _left[name] = [item for item in _left[name] if item not in needed or _is_future(item)]
    except (Exception, SystemExit) as error:  # as scripts leave that lack an argument
        raise ArgumentError(
            f"What {wanted or 'the recording'} needs cannot be taken out of the script {file}.",
            given=f"{type(error).__name__}: {error}",
            mend="Move the Function into a module that the script imports.",
        ) from error
    return sys.modules[name]


@contextlib.contextmanager
def _readable(file: str) -> Iterator[None]:
    """Refuse a script that cannot be read, or that no Python can run."""
    try:
        yield
    except OSError as error:
        raise ArgumentError(
            f"{file} cannot be read.", given=error.strerror, mend="Make it readable."
        ) from error
    except (SyntaxError, ValueError) as error:
        raise ArgumentError(
            f"{file} is no code that this Python runs.",
            given=f"{type(error).__name__}: {error}",
            mend=f"Make it run by itself first: python {file}",
        ) from error


def only_defines(file: str) -> bool:
    """Whether a script does nothing but import and define when it is imported.

    Apart from what it guards with ``if __name__ == "__main__":``.
    """
    try:
        body = parse(Path(file).read_bytes(), file).body
    except (OSError, SyntaxError, ValueError):
        return False
    return all(map(_is_quiet, body))


def _is_quiet(statement: ast.stmt) -> bool:
    if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Expr)):
        return not any(isinstance(node, ast.Call) for node in ast.walk(statement))
    if isinstance(statement, ast.ImportFrom) and statement.level:
        return False  # it runs as a part of its package alone
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return not statement.decorator_list  # one may register it, which goes once
    return isinstance(statement, (ast.Import, ast.ImportFrom)) or is_main_guard(statement)


_left: dict[str, list[ast.stmt]] = {}  # of each script, what nobody has needed yet


def _needed(body: list[ast.stmt], wanted: str | None) -> list[ast.stmt]:
    """Return the top-level statements that bind ``wanted`` and, in turn, what they use."""
    left = [(item, _bound(item)) for item in body if not is_main_guard(item)]
    names = {wanted}
    if wanted is None:
        definitions = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
        names = {name for item, bound in left if isinstance(item, definitions) for name in bound}
    chosen: set[ast.stmt] = set()
    while found := [item for item, bound in left if names & bound or _always(item)]:
        chosen |= set(found)
        names |= {name for item in found for name in global_names(item)}
        left = [(item, bound) for item, bound in left if item not in chosen]
    return [item for item in body if item in chosen]


def _always(statement: ast.stmt) -> bool:
    """Star imports, ``__future__``, and changes of ``sys.path`` that imports may need."""
    if isinstance(statement, ast.ImportFrom):
        return _is_future(statement) or any(a.name == "*" for a in statement.names)
    return isinstance(statement, ast.Expr) and "sys.path." in ast.unparse(statement)


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


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


def _bound(statement: ast.stmt) -> set[str]:
    """Return the names that a top-level statement binds, not looking into definitions."""
    symbols = next(_tables(statement)).get_symbols()
    return {s.get_name() for s in symbols if s.is_assigned() or s.is_imported()}
