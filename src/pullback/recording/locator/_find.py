"""`find`: the object that a `Locator` names, by import or out of a script that is not run."""

import importlib
import importlib.util
import operator
import os
import sys
from types import ModuleType
from typing import Any, cast

import torch

from pullback.errors import ArgumentError
from pullback.recording.locator._locator import Locator
from pullback.recording.locator._script import load_script
from pullback.tensor import complete

__all__ = ["find", "load_module"]


def find(locator: Locator) -> Any:
    """Return the Function or callable that a locator names.

    Raises:
        ArgumentError: it cannot be found, with the reason.

    Example:
        >>> find(Locator("math", "sqrt"))(4.0)
        2.0
    """
    if "<locals>" in locator.qualname:
        outer = locator.qualname.partition(".<locals>")[0]
        raise ArgumentError(
            f"{locator.name} is defined inside {outer} and cannot be imported.",
            mend="Define it at the top level of its module, or use the pytest plugin.",
        )
    if locator.module == "__main__" and not locator.file:
        raise ArgumentError(
            f"{locator.qualname} was defined in a program that has no file.",
            mend="Put it in a module, so that it can be imported.",
        )
    first = locator.qualname.partition(".")[0]
    module = load_module(locator.script or locator.module, locator.file, first)
    try:
        found = operator.attrgetter(locator.qualname)(module)
    except AttributeError as error:
        raise ArgumentError(
            f"{locator.name} is not there any more.",
            given=str(error),
            mend="Record again; or the class is made while the program runs.",
        ) from error
    return complete(cast(type[torch.autograd.Function], found)) if locator.completed else found


def load_module(name: str, file: str = "", wanted: str | None = None) -> ModuleType:
    """Import a module, or take the definitions out of a script.

    Arguments:
        name: the name of the module, or the path of a script.
        file: the file of a module that is on no path.
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
        return _load_file(name, file)
    except Exception as error:
        raise _not_importable(name, error) from error


def _load_file(name: str, file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not os.path.exists(file):
        raise _not_importable(name, FileNotFoundError(file))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _not_importable(name, error) from error
    return module


def _not_importable(name: str, error: Exception) -> ArgumentError:
    return ArgumentError(
        f"The module {name} cannot be imported.",
        given=f"{type(error).__name__}: {error}",
        mend="Run the check with the Python that ran the program.",
    )
