"""`check_calls`: one Function at each of several calls of it, and one report of all."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pullback.conformance._check import check
from pullback.errors import PullbackError
from pullback.internal._operator import signature_of_call
from pullback.report import Report, Verdict, merge_reports
from pullback.tensor import Intent

__all__ = ["Call", "bind", "check_calls"]

_INTENTS = ("exact", "surrogate", "nonlinear")

Call = tuple[Sequence[Any], Mapping[str, Any]]
"""The positional and the keyword arguments."""


def bind(function: Any, call: Call) -> Call:
    """A call with each argument at the place that the forward gives it, if it has one.

    Raises:
        PullbackError: they do not fit.
    """
    args, keywords = call
    if not keywords:
        return call
    try:
        bound = signature_of_call(function).bind(*args, **keywords)
    except (TypeError, ValueError) as error:
        raise PullbackError("The arguments do not fit it.", given=str(error)) from error
    bound.apply_defaults()
    return bound.args, bound.kwargs


def check_calls(
    function: Any, calls: Sequence[Call], *, gradient: Intent | None = None, **options: Any
) -> Report:
    """Check a Function at each call, and put what is found together.

    Arguments:
        function: as `check` takes it.
        calls: those that it is checked at.
        gradient: the intent; where it is inferred, the weakest that a call shows goes for all: one
            call may look exact (a scale of one) where another shows that it is not meant to be.
        options: others of `check`.

    Raises:
        PullbackError: at no call could it be checked, with the last reason.

    Example:
        >>> import torch
        >>> calls = [((torch.ones(2),), {}), ((torch.ones(3),), {})]
        >>> check_calls(torch.sin, calls, clauses="derivative").ok
        True
    """
    reports: list[Report] = []
    fault: PullbackError | None = None
    for call in calls:
        if reports and (reports[-1].unfinished or _has_hung(reports[-1])):
            break  # the other calls would take as long
        try:
            args, keywords = bind(function, call)
            report = check(function, *args, kwargs=keywords, gradient=gradient, **options)
        except PullbackError as error:
            fault = error
            continue
        if reports and reports[0].inferred and report.gradient != reports[0].gradient:
            weakest: Any = max(report.gradient, reports[0].gradient, key=_INTENTS.index)
            found = check_calls(function, calls, gradient=weakest, **options)
            return replace(found, inferred=True)
        reports.append(report)
    told = [report for report in reports if len(report)]
    if not told:
        unfinished = reports[0].unfinished if reports else ""
        raise fault or PullbackError(unfinished or "no call could be replayed")
    return merge_reports(told)


def _has_hung(report: Report) -> bool:
    crashes = (finding for finding in report if finding.verdict is Verdict.CRASHES)
    return any("no answer within" in finding.detail for finding in crashes)
