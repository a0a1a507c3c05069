"""Run a program in this process as Python itself would."""

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["run_as_main"]


def run_as_main(command: Sequence[str]) -> None:
    """Run a script, ``-m module`` or ``-c code``; what that sees in `sys` stays there."""
    first, *rest = command
    if first == "-m":
        sys.argv = list(rest)
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - that is what -c means
    else:
        sys.argv = list(command)
        sys.path.insert(0, str(Path(first).resolve().parent))
        runpy.run_path(first, run_name="__main__")
