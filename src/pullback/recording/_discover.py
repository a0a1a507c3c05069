"""Find every Function of an installed package and make inputs for it by trial.

Importing a stranger's modules and calling their Functions with made-up inputs may print, hang or
kill the process, so it happens in a process of its own, which spools what it found as a program
that is recorded does; the answer is a `Recording`.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pullback.errors import ArgumentError
from pullback.recording._recording import Recording

__all__ = ["Discovery", "discover"]

_SECONDS = 300.0
_RESTARTS = 20


@dataclass(frozen=True)
class Discovery:
    """What was found.

    Arguments:
        recording: every Function, with the calls that trial found.
        problems: modules that could not be imported, one line each.
    """

    recording: Recording
    problems: list[str]


def discover(package: str, only: str | None = None) -> Discovery:
    """Find the Functions of a package or module and inputs that fit them.

    Arguments:
        package: the name of an installed package or module.
        only: the qualified name of one Function in it; all if ``None``.

    Returns:
        The Functions; those that no inputs were found for have the reason instead of calls.

    Raises:
        ArgumentError: there is no such package, or it cannot be imported.
    """
    _must_exist(package)
    with tempfile.TemporaryDirectory(prefix="pullback-") as name:
        folder = Path(name)
        killed: dict[str, str] = {}
        for _ in range(_RESTARTS):
            end = _run_explorer(folder, package, only, list(killed))
            trying = folder / "trying"
            if not end or not trying.exists():
                break
            killed[trying.read_text(encoding="utf-8")] = end
            trying.unlink()
        fault = folder / "fault"
        if fault.exists():
            raise ArgumentError(
                f"{package} cannot be imported.",
                given=fault.read_text(encoding="utf-8"),
                mend="Import it in Python first; its own message is above.",
            )
        recording = Recording.collect(folder, ["trial", package])
        for item in recording:
            if item.name in killed:
                item.reasons[killed[item.name]] = 1
        problems = folder / "problems.json"
        lines = json.loads(problems.read_text(encoding="utf-8")) if problems.exists() else []
        return Discovery(recording, lines)


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


def _run_explorer(folder: Path, package: str, only: str | None, skip: list[str]) -> str:
    """Run the process once; how it died, or an empty text."""
    request = {"package": package, "only": only, "skip": skip}
    (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
    paths = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-W", "ignore", "-m", "pullback.recording._explore", str(folder)],
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"its trial calls gave no answer within {_SECONDS:g} s"
    if done.returncode == 0:
        return ""
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    last = f": {lines[-1]}" if lines else ""
    return f"its trial calls ended the process with status {done.returncode}{last}"
