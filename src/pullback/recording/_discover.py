"""Find every Function of an installed package and make inputs for it by trial.

Importing a stranger's modules and calling their Functions with made-up inputs may print, hang or
kill the process, so it happens in a process of its own, which spools what it found as a program
that is recorded does; the answer is a `Recording`.
"""

import importlib.util
import json
import os
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pullback.errors import ArgumentError
from pullback.internal._processes import supervise, tail
from pullback.internal._work_time import WorkTime
from pullback.internal._workers import start_worker
from pullback.recording._recording import Recording

__all__ = ["Discovery", "discover"]

_IMPORT_SECONDS = 120.0  # that the package itself may take to be imported


@dataclass(frozen=True)
class Discovery:
    """What was found.

    Arguments:
        recording: every Function, with the calls that trial found.
        problems: modules that could not be imported, one line each.
    """

    recording: Recording
    problems: list[str]


def discover(package: str, only: str | None = None, timeout: float = 60.0) -> Discovery:
    """Find the Functions of a package or module and inputs that fit them.

    Arguments:
        package: the name of an installed package or module.
        only: the qualified name of one Function in it; all if ``None``.
        timeout: seconds of work that the trial calls of one Function may take.

    Returns:
        The Functions; those that no inputs were found for have the reason instead of calls.

    Raises:
        ArgumentError: there is no such package, or it cannot be imported.
        Stopped: this process was asked to end.
    """
    _must_exist(package)
    with tempfile.TemporaryDirectory(prefix="pullback-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        trying, done = folder / "trying", folder / "done"
        done.touch()
        killed: dict[str, str] = {}
        while True:
            tried = [*killed, *done.read_text(encoding="utf-8").splitlines()]
            end = _run_explorer(folder, {"package": package, "only": only, "skip": tried}, timeout)
            if not end or not trying.exists():
                break
            killed[trying.read_text(encoding="utf-8")] = f"its trial calls {end}"
            trying.unlink()
        _refuse_faults(package, folder, end)
        recording = Recording.collect(folder, ["trial", package])
        for item in recording:
            if item.name in killed:
                item.reasons[killed[item.name]] = 1
        problems = folder / "problems.json"
        lines = json.loads(problems.read_text(encoding="utf-8")) if problems.exists() else []
        return Discovery(recording, lines)


def _refuse_faults(package: str, folder: Path, end: str) -> None:
    """Say what kept the package from being imported."""
    path = folder / "fault"
    if not (path.exists() or end):
        return
    fault = {"said": f"its import {end}", "missing": ""}
    if path.exists():
        fault = json.loads(path.read_text(encoding="utf-8"))
    raise ArgumentError(
        f"{package} cannot be imported.",
        given=fault["said"],
        mend=f"pip install {fault['missing']}, where it is published under that name."
        if fault["missing"]
        else f'Mend its import first: python -c "import {package}" shows all of it.',
    )


def _must_exist(package: str) -> None:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        found = importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        raise ArgumentError(
            f"There is no package {package}.",
            given=package,
            expected="an installed package, package.module:Function, or a recording (calls.pt)",
            mend=f"pip install {package}, or check the spelling"
            if package.isidentifier()
            else "Check the spelling.",
        )


def _run_explorer(folder: Path, request: dict[str, Any], timeout: float) -> str:
    """Run the process once; how it died, or an empty text."""
    (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
    child = start_worker("pullback.recording._explore", folder)
    trying = folder / "trying"
    work = WorkTime(child.pid)
    seen, since = "", 0.0

    def give_up() -> str:
        nonlocal seen, since
        now = ""
        with suppress(FileNotFoundError):  # the explorer may take it away at any moment
            now = trying.read_text(encoding="utf-8")
        if now != seen:
            seen, since = now, work.seconds
        limit = timeout if seen else max(timeout, _IMPORT_SECONDS)
        late = work.seconds - since > limit
        return f"gave no answer within {limit:g} s" if late else ""

    status, reason = supervise(child, give_up)
    if reason or status == 0:
        return reason
    last = tail(child.log)
    return f"ended the process with status {status}{f': {last}' if last else ''}"
