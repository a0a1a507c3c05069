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
        said = folder / "said.jsonl"
        said.touch()
        tried: dict[str, dict[str, int]] = {}  # and why it was found no arguments
        while True:
            request = {"package": package, "only": only, "skip": [*tried]}
            end = _run_explorer(folder, request, timeout)
            messages = _messages(said)
            heads = {m["trying"]: m["head"] for m in messages if "trying" in m}
            tried |= {m["tried"]: m["reasons"] for m in messages if "tried" in m}
            ended = [name for name in heads if name not in tried]  # the process, by its calls
            if not (end and ended):
                break
            tried[ended[0]] = {f"its trial calls {end}": 1}
        _refuse_faults(package, [m for m in messages if "fault" in m], end)
        counts = [{**heads[name], "reasons": reasons} for name, reasons in tried.items()]
        (folder / "counts-0.json").write_text(json.dumps(counts), encoding="utf-8")
        problems = dict.fromkeys(m["problem"] for m in messages if "problem" in m)
        return Discovery(Recording.collect(folder, ["trial", package]), [*problems])


def _messages(said: Path) -> list[dict[str, Any]]:
    """What the process has said so far, in whole lines."""
    text = said.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _refuse_faults(package: str, faults: list[dict[str, Any]], end: str) -> None:
    """Say what kept the package from being imported."""
    if not (faults or end):
        return
    fault = faults[0] if faults else {"fault": f"its import {end}", "missing": ""}
    raise ArgumentError(
        f"{package} cannot be imported.",
        given=fault["fault"],
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
    work = WorkTime(child.pid)
    seen, since = 0, 0.0

    def give_up() -> str:
        nonlocal seen, since
        messages = _messages(folder / "said.jsonl")
        if len(messages) != seen:
            seen, since = len(messages), work.seconds
        begun = bool(messages) and "trying" in messages[-1]
        limit = timeout if begun else max(timeout, _IMPORT_SECONDS)
        late = work.seconds - since > limit
        return f"gave no answer within {limit:g} s" if late else ""

    status, reason = supervise(child, give_up)
    if reason or status == 0:
        return reason
    last = tail(child.log)
    return f"ended the process with status {status}{f': {last}' if last else ''}"
