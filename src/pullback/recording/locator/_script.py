"""`load_script`: take a definition out of a script without running the script.

A Function written in the script itself lives in ``__main__``. The script may train for hours when
it is run, guarded by ``if __name__ == "__main__"`` or not, so it is not run again: only the
statements that the definition needs are executed (imports, assignments, other definitions), found
by following names. What those statements do not define is reported as missing.
"""

import ast
import atexit
import functools
import importlib
import os
import shutil
import symtable
import sys
import tempfile
import types
import zlib
from pathlib import Path
from typing import Any

from pullback.errors import ArgumentError
from pullback.recording.locator._locator import SHIM_PREFIX

__all__ = ["global_names", "load_script", "run_definitions"]


def load_script(file: str, wanted: str | None) -> types.ModuleType:
    """Load what the definition of ``wanted`` needs from a script, without running the script.

    Arguments:
        file: the path of the script.
        wanted: a name that its top level defines; ``None`` for every definition and import.

    Returns:
        A module, which worker processes find by its name too.

    Raises:
        ArgumentError: the script is gone, does not parse, or the statements raise.
    """
    if not file or not os.path.isfile(file):
        raise ArgumentError(
            "The Function was defined in a program that has no file.",
            given=file or "no file",
            mend="Put it in a module, so that it can be imported.",
        )
    file = os.path.abspath(file)
    call = f"run_definitions({file!r}, {wanted!r}, globals())"
    # An edited script is another module.
    edition = zlib.crc32(Path(file).read_bytes())
    source = f"from pullback.recording.locator import run_definitions\n\n{call}  # {edition:08x}\n"
    name = f"{SHIM_PREFIX}{zlib.crc32(source.encode()):08x}"
    try:
        if name not in sys.modules:
            folder = _folder()
            if str(folder) not in sys.path:  # not yet, or somebody has put an earlier path back
                sys.path.append(str(folder))
            (folder / f"{name}.py").write_text(source, encoding="utf-8")
            importlib.invalidate_caches()
        return importlib.import_module(name)
    except Exception as error:
        raise ArgumentError(
            f"What {wanted or 'the recording'} needs cannot be taken out of the script {file}.",
            given=f"{type(error).__name__}: {error}",
            mend="Move the Function into a module that the script imports.",
        ) from error


@functools.cache
def _folder() -> Path:
    """Where the modules lie that stand for scripts; workers, which inherit the path, find them."""
    folder = tempfile.mkdtemp(prefix="pullback-shims-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def run_definitions(file: str, wanted: str | None, namespace: dict[str, Any]) -> None:
    """Execute in ``namespace`` the statements of a script that define ``wanted``.

    Arguments:
        file: the path of the script.
        wanted: a name that its top level defines; ``None`` for every definition and import.
        namespace: the globals of the module that takes the definitions.

    Raises:
        SyntaxError: the script does not parse.
        Exception: whatever the statements raise.
    """
    namespace["__file__"] = file  # where `inspect` finds the source of what is defined here
    folder = os.path.dirname(file)
    if folder not in sys.path:
        sys.path.append(folder)  # as Python does for a script
    with open(file, "rb") as source:
        tree = ast.parse(source.read(), file)
    tree.body = _needed(tree.body, wanted)
    exec(compile(tree, file, "exec", dont_inherit=True), namespace)  # noqa: S102 - the user's own script, chosen statements


def _needed(body: list[ast.stmt], wanted: str | None) -> list[ast.stmt]:
    """Return the top-level statements that bind ``wanted`` and, in turn, what they use."""
    statements = [statement for statement in body if not _is_main_guard(statement)]
    if wanted is None:
        definitions = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
        names = {
            name for item in statements if isinstance(item, definitions) for name in _bound(item)
        }
    else:
        names = {wanted}
    chosen: set[int] = set()
    while True:
        grown = len(chosen)
        for number, statement in enumerate(statements):
            if number in chosen or not (names & _bound(statement) or _always(statement)):
                continue
            chosen.add(number)
            names |= global_names(statement)
        if len(chosen) == grown:
            return [statements[number] for number in sorted(chosen)]


def _is_main_guard(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)
    )


def _always(statement: ast.stmt) -> bool:
    """Star imports, ``__future__``, and changes of ``sys.path`` that imports may need."""
    if isinstance(statement, ast.ImportFrom):
        return statement.module == "__future__" or any(a.name == "*" for a in statement.names)
    return isinstance(statement, ast.Expr) and "sys.path." in ast.unparse(statement)


def global_names(statement: ast.stmt) -> set[str]:
    """Return the global names that a statement, or a function inside it, reads."""
    pending = [symtable.symtable(ast.unparse(statement), "<statement>", "exec")]
    names: set[str] = set()
    while pending:
        table = pending.pop()
        pending.extend(table.get_children())
        names |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            # The body of a module or class reads its own names, or else global ones.
            if symbol.is_global() or (symbol.is_referenced() and table.get_type() != "function")
        }
    return names


def _bound(statement: ast.stmt) -> set[str]:
    """Return the names that a top-level statement binds, not looking into definitions."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {(a.asname or a.name).partition(".")[0] for a in statement.names}
    names = {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.stmt):
            names |= _bound(child)
    return names
