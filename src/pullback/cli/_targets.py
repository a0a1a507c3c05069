"""Turn the words of the command line into tasks: a Function, a package, a recording, or ours."""

import importlib.util
import math
import os
import sys
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Any

import torch

from pullback.cli._tasks import Loaded, Task, tasks_of_recording
from pullback.errors import ArgumentError, ArgumentTypeError, PullbackError
from pullback.recording import Locator, discover, find
from pullback.tensor import Case

__all__ = [
    "evaluate",
    "find_target",
    "function_task",
    "package_tasks",
    "shipped_tasks",
]


def function_task(target: str, inputs: str | None, timeout: float) -> Task:
    """The task of ``package.module:Function`` or ``script.py:Function``.

    Where no inputs are given some are looked for, for so many seconds.

    Raises:
        ArgumentError: the module or name does not exist, or the expression cannot be evaluated.
        ArgumentTypeError: the name is not a Function and not a callable.
    """
    function = find_target(target)
    if inputs is None:
        if not _is_function(function):
            raise ArgumentError(
                f"Inputs for {target} are needed.",
                given="a callable that is not a torch.autograd.Function, and no --input",
                mend=f'pullback check {target} --input "torch.randn(3, 4, dtype=torch.float64)"',
            )
        module, _, qualname = target.rpartition(":")
        if module.endswith(".py"):
            module = os.path.abspath(module)
        tasks, _ = package_tasks(module, timeout, only=qualname)
        nothing = Task(
            target, lambda: (function, []), (target,), reason="it has no forward and backward"
        )
        return replace(tasks[0], rerun=(target,)) if tasks else nothing
    args = evaluate(inputs)
    return Task(target, lambda: (function, [(args, {})]), (target, "--input", inputs))


def package_tasks(
    package: str, timeout: float, only: str | None = None
) -> tuple[list[Task], list[str]]:
    """The tasks of the Functions of an installed package, and what could not be looked into."""
    found = discover(package, only=only, timeout=timeout)
    tasks = tasks_of_recording(found.recording, "")
    return [replace(task, rerun=(task.name,), guessed=True) for task in tasks], found.problems


def shipped_tasks() -> list[Task]:
    """The cases that pullback and other installed packages offer by an entry point.

    Raises:
        PullbackError: an entry point cannot be loaded or offers something else than cases.
    """
    tasks = []
    for entry in sorted(entry_points(group="pullback.cases"), key=lambda item: item.name):
        try:
            cases = list(entry.load()())
        except Exception as error:
            raise PullbackError(
                f"The cases of {entry.value} cannot be loaded.",
                given=f"{type(error).__name__}: {error}",
                mend="Mend or uninstall the package that offers them.",
            ) from error
        for case in cases:
            if not isinstance(case, Case):
                raise ArgumentTypeError(
                    f"{entry.value} offers something that is not a case.",
                    given=type(case).__name__,
                    expected="pullback.tensor.Case",
                )
            tasks.append(_case_task(case))
    return tasks


def _case_task(case: Case) -> Task:
    def load() -> Loaded:
        return case.function, [(case.inputs(torch.Generator().manual_seed(0)), {})]

    rerun = ("--only", case.name)
    return Task(case.name, load, rerun, gradient=case.gradient, isolated=False)


def find_target(target: str) -> Any:
    """What ``package.module:name`` or ``script.py:name`` names.

    Raises:
        ArgumentError: the module or name does not exist.
        ArgumentTypeError: it is neither a Function nor a callable.
    """
    # As `python -m` does: modules of the folder one stands in are found.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        locator = Locator.parse(target)
    except ValueError as error:
        raise ArgumentError(
            f"{target!r} names no Function.",
            expected="package.module:Function, or script.py:Function",
        ) from error
    function = find(locator)
    if not callable(function) or (isinstance(function, type) and not _is_function(function)):
        raise ArgumentTypeError(
            f"{target} is not a Function.",
            given=f"{type(function).__name__} {getattr(function, '__name__', function)!r}",
            expected="a torch.autograd.Function subclass, or a callable of tensors",
        )
    return function


def _is_function(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, torch.autograd.Function)


def evaluate(text: str) -> tuple[Any, ...]:
    """Evaluate the expression of the inputs, which the user typed for this very purpose."""
    names: dict[str, Any] = {"torch": torch, "math": math}
    if importlib.util.find_spec("numpy") is not None:
        import numpy

        names.update(np=numpy, numpy=numpy)
    torch.manual_seed(0)
    try:
        return tuple(eval(f"({text},)", names))  # noqa: S307 - the user's own expression
    except SyntaxError as error:
        raise ArgumentError(
            "The expression of the inputs does not parse.",
            given=text,
            expected='positional arguments, such as "torch.randn(3, 4, dtype=torch.float64), 0.5"',
            mend=f"{error.msg}; check quotes and parentheses.",
        ) from error
    except (Exception, SystemExit) as error:
        raise ArgumentError(
            "The expression of the inputs cannot be evaluated.",
            given=f"{text}  ({type(error).__name__}: {error})",
            expected='positional arguments, such as "torch.randn(3, 4, dtype=torch.float64), 0.5"',
        ) from error
