"""`find`: the object that a `Locator` names, by import or out of a script that is not run."""

import importlib
import operator
import os
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


def load_module(name: str, file: str = "", wanted: str | None = None) -> ModuleType:
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
