"""Contracts over other values than tensors, which packages offer by an entry point.

The entry point is in the group ``pullback.contracts`` and names a module with two functions:
``takes(function)`` says whether it judges a function, and ``judge(function, inputs, gradient,
clauses, seed)`` gives its name, its intent and, for each clause, the verdict, what was seen and how
to mend it. They are plain words: who offers a contract needs nothing of the checker.
"""

import time
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import torch

from pullback.conformance._guard import environment
from pullback.errors import PullbackError
from pullback.report import Finding, Report, Verdict

__all__ = ["contract_of", "judged_elsewhere"]


def contract_of(function: Any) -> Any:
    """The contract that judges a function, or ``None`` for one of tensors.

    Raises:
        PullbackError: a contract that is installed cannot be loaded.

    Example:
        >>> contract_of(torch.sin) is None
        True
    """
    owner = getattr(function, "__self__", function)
    if not isinstance(owner, type) or issubclass(owner, torch.autograd.Function):
        return None
    return next((contract for contract in _contracts() if contract.takes(function)), None)


@cache
def _contracts() -> list[Any]:
    """What is installed; read once, which takes as long as a clause."""
    found = sorted(entry_points(group="pullback.contracts"), key=lambda entry: entry.name)
    return [_loaded(entry) for entry in found]


def _loaded(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except Exception as error:
        raise PullbackError(
            f"The contract of {entry.value} cannot be loaded.",
            given=f"{type(error).__name__}: {error}",
            mend="Mend or uninstall the package that offers it.",
        ) from error


def judged_elsewhere(judge: Callable[..., Any], clauses: Sequence[str], seed: int) -> Report:
    """The report of what a contract finds for each clause."""
    started = time.perf_counter()
    name, intent, judged = judge(clauses=clauses, seed=seed)
    findings = tuple(
        Finding(clause, Verdict(verdict), detail, hint=hint, seed=seed)
        for clause, (verdict, detail, hint) in zip(clauses, judged, strict=True)
    )
    spent = time.perf_counter() - started
    return Report(name, intent, False, findings, seed, spent, environment())
