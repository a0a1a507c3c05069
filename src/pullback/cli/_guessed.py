"""Arguments that nobody gave: said as guessed, and tried in the forms that a domain may ask for.

A Function for symmetric matrices is right on these alone. What fails with a guess is tried again
with symmetric, positive definite, sorted and normalised ones before it is told.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pullback.cli._tasks import Task
from pullback.conformance import check
from pullback.errors import PullbackError
from pullback.recording import forms
from pullback.report import Finding, Report, Verdict

__all__ = ["describe_arguments", "guessed_report", "paste_inputs"]

# How a Function behaves, whatever the domain of its numbers is.
_ANYWHERE = ("saved", "leak", "stale", "mutation", "cotangent", "alias", "state", "retain")
_SHORT = 12  # entries that are written out


def guessed_report(task: Task, report: Report, options: Mapping[str, Any]) -> Report:
    """The report of a Function whose arguments were guessed, with the form in which it is right."""
    function, calls = task.load()
    args, _ = calls[0]
    if report.ok or any(_is_anywhere(finding) for finding in report.causes):
        return replace(report, guessed=describe_arguments(args))
    # What was inferred goes for every form: to infer it takes longer than all that follows.
    how: dict[str, Any] = {**options, "gradient": report.gradient}
    clauses = [finding.clause for finding in report.problems]
    least, best = len(clauses), (describe_arguments(args), args)
    for name, made in forms(args):
        watch = _Better(least, report.causes[0].clause)
        once: dict[str, Any] = {**how, "clauses": clauses, "on_finding": watch.see}
        with suppress(_Wrong, PullbackError):  # an error: not accepted
            found = check(function, *made, **once)
            if not found.unchecked:
                least, best = len(found.problems), (f"{describe_arguments(made)}, {name}", made)
        if not least:
            break
    # One that is wrong elsewhere, too, is told with what is as it should be.
    whole = check(function, *best[1], **how) if least < len(clauses) else report
    if whole.unchecked or len(whole.problems) >= len(clauses):
        return replace(report, guessed=describe_arguments(args))
    return replace(whole, guessed=best[0], inferred=report.inferred)


def _is_anywhere(finding: Finding) -> bool:
    """Whether what is wrong has nothing to do with where the numbers lie."""
    return finding.verdict is Verdict.BROKEN and finding.clause in _ANYWHERE


class _Wrong(Exception):
    """The Function is as wrong with this form, and why need not be found out."""


@dataclass
class _Better:
    """Ends a check that finds no fewer faults than another, or the first of them."""

    least: int  # faults of the other
    first: str
    bad: set[str] = field(default_factory=set)

    def see(self, finding: Finding) -> None:
        """Take in a finding."""
        self.bad |= {finding.clause} if finding.verdict.is_bad else set()
        if len(self.bad) >= self.least or self.first in self.bad:
            raise _Wrong


def describe_arguments(args: Sequence[Any]) -> str:
    """Arguments in few words.

    Example:
        >>> describe_arguments((torch.ones(3, 4), 0.5))
        '(float32 (3, 4), 0.5)'
    """
    return f"({', '.join(map(_describe, args))})"


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)}".replace("torch.", "")
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def paste_inputs(task: Task) -> str:
    """The guessed arguments as an expression for ``--input``; an example where there are none."""
    try:
        return ", ".join(_expression(value) for value in task.load()[1][0][0])
    except (PullbackError, IndexError):
        return "torch.randn(3, 4), ..."


def _expression(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    if value.is_floating_point() or value.is_complex():
        return f"torch.randn({tuple(value.shape)}, dtype={value.dtype})"
    if value.numel() <= _SHORT:
        return f"torch.tensor({value.tolist()})"
    return f"torch.randint(0, {int(value.max()) + 1}, {tuple(value.shape)}, dtype={value.dtype})"
