"""Started by Python itself in every process of a recorded program, before the program.

The folder of this file is put first on PYTHONPATH by ``pullback record`` and ``pullback check --``.
It starts the recorder when the program has imported torch, and hands over to the ``sitecustomize``
that it hides, if any.
"""

import errno
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(_HERE))
_PACKAGES = ("internal", "recording", "recording.codec", "recording.locator", "recording.training")
_DIRECTORY = os.environ.get("PULLBACK_RECORD_DIRECTORY", "")


def _import_copy(name: str) -> ModuleType:
    """Import a module of ours, apart from the pullback that the program has, or has not.

    Packages are bare: what they export may need what the program cannot import.
    """
    theirs = {key: sys.modules.pop(key) for key in _ours()}
    for key in ("pullback", *(f"pullback.{package}" for package in _PACKAGES)):
        package = sys.modules[key] = ModuleType(key)
        package.__path__ = [os.path.join(_ROOT, *key.split(".")[1:])]
    try:
        return importlib.import_module(name)
    finally:
        for key in _ours():
            module = sys.modules.pop(key)
            module.__name__ = f"_{key}"  # by which Dynamo finds the globals of a function
            sys.modules[module.__name__] = module
        sys.modules.update(theirs)


def _ours() -> list[str]:
    return [key for key in sys.modules if key.partition(".")[0] == "pullback"]


def _tell(name: str, text: str = "") -> None:
    """Tell the parent. On a full disk the file is empty: that it is there says enough."""
    try:
        with open(os.path.join(_DIRECTORY, name), "w", encoding="utf-8") as file:
            file.write(text)
    except Exception as error:  # the program may have made something else of what this needs
        sys.stderr.write(f"pullback: this process is not recorded: {error!r}\n")


def _guarded(action: Callable[..., Any]) -> Callable[..., Any]:
    """An action that raises nothing into the program, which runs, recorded or not."""

    def act(*arguments: Any) -> Any:
        try:
            return action(*arguments)
        except Exception as error:
            if isinstance(error, OSError):
                _tell(f"unwritten-{os.getpid()}-{error.errno or errno.EIO}")
            _tell(f"failed-{os.getpid()}", f"{type(error).__name__}: {error}")

    return act


def _record(torch: ModuleType) -> None:
    inside = os.environ.get("PULLBACK_RECORD_INSIDE", "")
    whole = bool(os.environ.get("PULLBACK_RECORD_WHOLE"))
    if inside and importlib.util.find_spec("pullback") is None:
        if whole:
            raise ImportError("pullback is not installed for the program's Python: see --inside")
        inside = ""
    spool, limits = _import_copy("pullback.recording._spool"), os.environ["PULLBACK_RECORD_LIMITS"]
    spool.record_this_process(_DIRECTORY, limits, inside, _guarded, whole=whole)


def _start() -> None:
    _tell(f"started-{os.getpid()}")
    # Only when all of torch is there: what it applies by itself is not of interest.
    when_imported = _import_copy("pullback.internal._when_imported").WhenImported
    when_imported("torch", _guarded(_record))


def _hand_over() -> None:
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.path.isdir(_DIRECTORY):
    _start()
_hand_over()
