"""The words of the command line: those of a program, and what to type where one is misread."""

import ast
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from pullback.errors import ArgumentError
from pullback.internal._files import package_around
from pullback.internal._syntax import parse
from pullback.internal._text import printable

__all__ = ["is_recording", "program", "refuse_misread", "refuse_program", "say"]

program: list[str] | None = None
"""The words after ``--``: a program to run, or ``None`` if there was no ``--``."""


def refuse_program(words: Sequence[str]) -> None:
    """Refuse a program that was not set apart: its options would be read as ours."""
    command, rest = words[:1], words[1:]
    if command not in (["check"], ["record"], ["track"]) or not rest:
        return
    is_script = rest[0].endswith(".py")
    python = not is_script and len(rest) > 1 and Path(rest[0]).name.startswith("python")
    if python or (is_script and command != ["check"]):  # which takes the name of one
        run = ["python", *rest] if is_script else rest
        raise ArgumentError(
            "A program to run goes after --.",
            given=shlex.join(rest),
            mend=f"pullback {command[0]} -- {shlex.join(run)}",
        )


def refuse_misread(targets: Sequence[str]) -> None:
    """Refuse a program, a file of a package or a folder that was given as a target of ``check``."""
    for word in targets:
        path, name = _split(word)
        if path.is_dir() and not word.isidentifier():  # a plain word names a package
            _refuse_folder(path)
        elif path.suffix == ".py":
            _refuse_file(path, name)


def _split(word: str) -> tuple[Path, str]:
    path, colon, name = word.rpartition(":")
    return (Path(path), name) if colon and path.endswith(".py") else (Path(word), "")


def _refuse_folder(path: Path) -> None:
    if (path / "__init__.py").is_file():
        raise ArgumentError(
            f"{path} is the folder of a package.",
            expected="the name that it is imported by",
            mend=_command(path),
        )
    raise ArgumentError(
        f"{path} is a folder.",
        expected="a package, package.module:Function, script.py:Function, or a recording",
    )


def _refuse_file(path: Path, name: str) -> None:
    if not path.is_file():
        raise ArgumentError(f"There is no file {path}.", mend="Check the spelling.")
    if (path.parent / "__init__.py").is_file() and path.name != "__main__.py":
        raise ArgumentError(
            f"{path} is a module of a package.",
            expected="the name that it is imported by",
            mend=_command(path, name),
        )
    if not name:
        found = _functions(path)
        run = shlex.join(["python", str(path)])
        raise ArgumentError(
            f"{path} is a program; it is run, or a Function in it is named.",
            expected=f"{path}:{found[0] if found else 'Function'}, or a program after --",
            mend=f"pullback check -- {run}",
        )


def _command(path: Path, name: str = "") -> str:
    """The command that checks a file or folder of a package by the name it is imported by."""
    path = path.resolve()
    parts, folder = package_around(path)
    parts += [] if path.name == "__init__.py" else [path.stem]
    command = f"pullback check {'.'.join(parts)}{':' if name else ''}{name}"
    reached = {Path(entry or os.curdir).resolve() for entry in (os.getcwd(), *sys.path)}
    return command if folder in reached else f"cd {shlex.quote(str(folder))} && {command}"


def _functions(path: Path) -> list[str]:
    """The classes of a file whose base is called Function, read from its source."""
    try:
        tree = parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError, OSError):
        return []
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).rpartition(".")[2].endswith("Function") for base in node.bases)
    ]


def is_recording(word: str) -> bool:
    """Whether a word of the command line is meant as a file."""
    if ".py:" in word:
        return False
    return word.endswith(".pt") or (os.sep in word) or Path(word).is_file()


def say(text: str) -> None:
    """Write a failure where a program's messages go."""
    sys.stderr.write(f"pullback: {printable(text)}\n")
