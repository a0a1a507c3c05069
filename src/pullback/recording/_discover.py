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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pullback.errors import ArgumentError
from pullback.internal._processes import describe_end, supervise
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
        package: the name of an installed package or module, or the path of a script.
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
        folder, found = Path(name), dict[str, dict[str, Any]]()
        while True:
            end = _run_explorer(
                folder, {"package": package, "only": only, "skip": [*found]}, timeout
            )
            said = _said(folder)
            found |= {message["name"]: message["data"] for message in said if "name" in message}
            begun = [data for data in found.values() if data["reasons"] is None]
            if not (end and begun):
                break
            begun[0]["reasons"] = {f"its trial calls {end}": 1}  # that is what ended the process
        faults = [message for message in said if "fault" in message]
        if faults or end:
            told = faults[0] if faults else {"fault": f"its import {end}", "missing": ""}
            shows = f'Mend its import first: python -c "import {package}" shows all of it.'
            missing = f"pip install {told['missing']}, where it is published under that name."
            raise ArgumentError(
                f"{package} cannot be imported.",
                given=told["fault"],
                mend=missing if told["missing"] else shows,
            )
        (folder / "counts-0.json").write_text(json.dumps([*found.values()]), encoding="utf-8")
        problems = dict.fromkeys(message["problem"] for message in said if "problem" in message)
        return Discovery(Recording.collect(folder, ["trial", package]), [*problems])


def _must_exist(package: str) -> None:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does
    if package.endswith(".py"):
        return  # what is wrong with a script is told by whoever takes definitions out of it
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


def _said(folder: Path) -> list[dict[str, Any]]:
    """What the process has said so far, in whole lines."""
    text = (folder / "said.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _run_explorer(folder: Path, request: dict[str, Any], timeout: float) -> str:
    """Run the process once; how it died, or an empty text."""
    (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
    (folder / "said.jsonl").write_text("")
    child = start_worker("pullback.recording._explore", folder)
    work = WorkTime(child.pid)
    seen, since = 0, 0.0

    def give_up() -> str:
        nonlocal seen, since
        said = _said(folder)
        if len(said) != seen:
            seen, since = len(said), work.seconds
        begun = bool(said) and "name" in said[-1]
        limit = timeout if begun else max(timeout, _IMPORT_SECONDS)
        return f"gave no answer within {limit:g} s" if work.seconds - since > limit else ""

    status, reason = supervise(child, give_up)
    said = describe_end(status, child.log)
    return reason or (said and f"ended: {said}")
