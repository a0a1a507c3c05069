"""`check`: run every clause of the contract on one Function.

A contract over other values than tensors is offered by a package, by an entry point in the group
``pullback.contracts``. It names a module with two functions: ``takes(function)`` says whether it
judges a function, and ``judge(function, inputs, gradient, clauses, seed)`` gives its name, its
intent and, for each clause, the verdict, what was seen and how to mend it. They are plain words:
who offers a contract needs nothing of the checker.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, get_args

import torch

from pullback.conformance._clause import Clause
from pullback.conformance._isolate import CheckRun, Isolation
from pullback.conformance.clauses import CLAUSES, ClauseId
from pullback.conformance.inputs._arguments import Arguments, refuse_data, without_nan
from pullback.conformance.inputs._subject import Subject
from pullback.conformance.process._guard import environment
from pullback.conformance.process._limits import can_limit
from pullback.conformance.ranks._distributed import check_on_ranks
from pullback.conformance.ranks._ranks import Ranks, Several
from pullback.errors import ArgumentError, PullbackError
from pullback.internal._arguments import Within, checked
from pullback.internal._operator import signature_of_call
from pullback.report import Finding, Report, Verdict, merge_reports
from pullback.tensor import Intent

__all__ = ["Call", "bind", "check", "check_calls", "select_clauses"]

Seed = Annotated[
    int, Within("at most 63 bits", lambda n: isinstance(n, int) and -(2**63) <= n < 2**63)
]
Timeout = Annotated[float, Within("positive, and finite", lambda seconds: 0 < seconds < math.inf)]


@checked
def check(
    function: Any,
    *inputs: Any,
    gradient: Intent | None = None,
    clauses: Iterable[ClauseId] | str | None = None,
    without: Iterable[ClauseId] | str = (),
    thorough: bool = False,
    seed: Seed = 0,
    isolate: Isolation = False,
    timeout: Timeout | None = None,
    kwargs: Mapping[str, Any] | None = None,
    on_finding: Callable[[Finding], object] | None = None,
    on_start: Callable[[str], object] | None = None,
    ranks: Several | Ranks | None = None,
) -> Report:
    """Check a Function against every clause of the contract, without knowing its maths.

    Arguments:
        function: a `torch.autograd.Function` subclass, a completed one, or any callable; or what a
            package brings a contract of its own for, as `pullback.tape` does for its Functions:
            the clauses that make sense for any value are run.
        inputs: its positional arguments, nested or not. Tensors that require a gradient are
            differentiated; when none does, every floating tensor that backward answers for.
            Where the function allows it the check runs in float64.
        gradient: the intent, ``"exact"``, ``"surrogate"`` or ``"nonlinear"``; ``None`` takes the
            one declared on the class, or infers it.
        clauses: ids of the clauses to run, or one text with commas between; all by default.
        without: ids of clauses to leave out, for example ``"compile"``, in which most of the time
            goes; the report says so.
        thorough: compile with inductor and with shapes that change too, which takes several times
            as long.
        seed: seeds every random choice.
        isolate: run the clauses in a process of their own, so that a crash or a hang of the
            checked code is a verdict: ``True`` for a fresh process, or a copy of this one where
            the function or an input cannot be handed to a fresh one; ``"copy"`` for a copy.
        timeout: seconds of work that the check may take, or each clause where it is not isolated;
            ``None`` for no limit. What counts is its CPU time, and the time in which it sleeps:
            neither a busy machine nor being stopped changes a verdict. After a clause that hangs,
            the others get as long again; what is not run then is said in ``unfinished``.
        kwargs: keyword arguments.
        on_finding: called with each finding as soon as there is one; clauses that compile come
            last. Called once more with those that turn out to have the cause of another.
        on_start: called with the id of each clause before it runs; before all of them with
            ``prepare`` and ``infer``, before the causes of what failed are looked for with
            ``causes``, and where they run in a process of their own with ``starts`` before it does.
        ranks: check the clause ``distributed``, and no other, on so many processes of this machine;
            a `Ranks` says what each is given. Linux, and torch with gloo.

    Returns:
        A report with one finding for each clause. It is ok when nothing is silently wrong and
        nothing crashes.

    Raises:
        ArgumentError: an unknown clause or intent, a timeout that is not a time or cannot be kept
            here, or inputs that the function does not take.
        ArgumentTypeError: the function cannot be called, clauses are no ids, or there is no such
            isolation.
        PullbackError: a contract of another package cannot be loaded.

    Example:
        >>> import torch
        >>> class Square(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x * x
        ...     @staticmethod
        ...     def backward(ctx, cotangent):
        ...         return 3 * ctx.saved_tensors[0] * cotangent
        >>> check(Square, torch.randn(3), clauses="derivative").ok
        False
    """
    chosen = select_clauses(clauses, without)
    left_out = tuple(item.id for item in select_clauses(clauses) if item not in chosen)
    if timeout is not None and isolate is False and not can_limit():
        raise ArgumentError(
            "A timeout cannot be kept here without a process of its own.",
            given=f"timeout={timeout!r}, isolate=False", mend="Pass isolate=True.",
        )  # fmt: skip
    contract = _contract_of(function)
    if contract is not None:
        _check_few_options(isolate, timeout, kwargs, ranks)
        judge = partial(contract.judge, function, inputs, gradient)
        report = _judged_elsewhere(judge, [clause.id for clause in chosen], seed)
        return replace(report, without=left_out)
    subject = Subject.of(function, gradient)
    arguments = Arguments.of(inputs, kwargs)
    if ranks is not None:
        ids = [clause.id for clause in chosen]
        asked = ids[:3] if "distributed" not in ids else [] if clauses is None else ids
        return check_on_ranks(subject, arguments, ranks, asked, seed, timeout, on_finding)
    refuse_data(arguments)
    arguments, unjudged = without_nan(arguments)
    run = CheckRun(
        subject, arguments, chosen, seed, timeout, isolate, thorough, on_finding, on_start
    )
    return replace(run.report(), without=left_out, unjudged=unjudged)


def _check_few_options(isolate: object, timeout: object, kwargs: object, ranks: object) -> None:
    if isolate or timeout or kwargs or ranks is not None:
        raise ArgumentError(
            "A Function of other values than tensors is checked in this process, by its positional "
            "arguments.",
            given=f"isolate={isolate}, timeout={timeout}, kwargs={kwargs}, ranks={ranks}",
        )


@checked
def select_clauses(
    clauses: Iterable[str] | str | None = None, without: Iterable[str] | str = ()
) -> tuple[Clause, ...]:
    """The clauses with the given ids, in the order of the contract.

    Arguments:
        clauses: ids, or one text with commas between; ``None`` for all.
        without: ids of those to leave out, in the same way.

    Returns:
        The clauses.

    Raises:
        ArgumentError: an id is unknown, or none is left.
        ArgumentTypeError: they are no ids.

    Example:
        >>> [clause.id for clause in select_clauses("linear, derivative")]
        ['derivative', 'linear']
        >>> "compile" in [clause.id for clause in select_clauses(without="compile")]
        False
    """
    left_out = _ids(without)
    known = [clause.id for clause in CLAUSES]
    wanted = known if clauses is None else _ids(clauses)
    unknown = [name for name in (*wanted, *left_out) if name not in known]
    if unknown or not set(wanted) - set(left_out):
        raise ArgumentError(
            "There is no such clause." if unknown else "No clause is chosen.",
            given=", ".join(map(repr, unknown)) or f"clauses={clauses!r}, without={without!r}",
            expected=", ".join(known),
        )
    return tuple(item for item in CLAUSES if item.id in wanted and item.id not in left_out)


def _ids(given: Iterable[str] | str) -> list[str]:
    if isinstance(given, str):
        return [part.strip() for part in given.split(",") if part.strip()]
    return list(given)


def _contract_of(function: Any) -> Any:
    """The contract that judges a function, or ``None`` for one of tensors."""
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


def _judged_elsewhere(judge: Callable[..., Any], clauses: Sequence[str], seed: int) -> Report:
    """The report of what a contract finds for each clause."""
    started = time.perf_counter()
    name, intent, judged = judge(clauses=clauses, seed=seed)
    findings = tuple(
        Finding(clause, Verdict(verdict), detail, hint=hint, seed=seed)
        for clause, (verdict, detail, hint) in zip(clauses, judged, strict=True)
    )
    spent = time.perf_counter() - started
    return Report(name, intent, False, findings, seed, spent, environment())


# Several calls ------------------------------------------------------------------------------------

_INTENTS = get_args(Intent)

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

    def checked(call: Call, intent: Intent | None) -> Report:
        args, keywords = bind(function, call)
        return check(function, *args, kwargs=keywords, gradient=intent, **options)

    reports: list[tuple[Call, Report]] = []
    fault: PullbackError | None = None
    for call in calls:
        last = reports[-1][1] if reports else None
        if last is not None and (last.unfinished or any(f.fails == "time" for f in last)):
            break  # the other calls would take as long
        try:
            reports.append((call, checked(call, gradient)))
        except PullbackError as error:
            fault = error
    # That of a call which shows it knows what of it is held to the derivative all the same.
    intents: list[Any] = [report.gradient for _, report in reports if report.inferred]
    weakest = max(intents, key=_INTENTS.index, default=None)
    told = [
        replace(checked(call, weakest), inferred=True)
        if report.inferred and report.gradient != weakest else report
        for call, report in reports if len(report)
    ]  # fmt: skip
    if not told:
        unfinished = reports[0][1].unfinished if reports else ""
        raise fault or PullbackError(unfinished or "no call could be replayed")
    return merge_reports(told)
