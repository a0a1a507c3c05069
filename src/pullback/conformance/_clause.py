"""`Clause`: one promise of the contract, and how it is run so that nothing escapes it.

The file of a clause finds here all that every one of them speaks of: what it looks at, and what it
says.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from pullback.conformance.cause._causes import fold
from pullback.conformance.cause._repair import Right
from pullback.conformance.cause._wrong_derivative import edit_of
from pullback.conformance.probing._probe import Probe, Tensors
from pullback.conformance.process._failure import Fault, attempt, classify, describe
from pullback.conformance.process._guard import guarded, unpatched
from pullback.conformance.process._limits import limited
from pullback.conformance.script._repro import verify
from pullback.report import Finding, Verdict

__all__ = [
    "CAUSES", "COMPILING", "Clause", "Finding", "Probe", "Tensors", "Verdict", "clause",
    "run_clause", "run_clauses",
]  # fmt: skip

CAUSES = "causes"
"""What is told where a clause would be, while the causes of what failed are looked for."""

# It compiles, which takes as long as all others together.
COMPILING = ("compile",)
# One may end what uses a GPU.
_LAST = ("index-width", "compositions", "cuda-graph", *COMPILING)

# The scripts of these take long, or print other numbers each time: that is what they show.
_NOT_RUN_AGAIN = (*_LAST, "deterministic")

_MORE = 3  # times that `state` is tested again: what another thread writes shows by chance

# These use inputs once. Others read them again, which ends the process where forward frees them.
_OF_FRESH_INPUTS = ("mutation", "derivative", "linear", "form", "deterministic", "once")

# What is said of an error that no clause foresaw.
_UNFORESEEN = "Let forward and backward take any tensor that torch hands them, and fail by name."

# A clause gives its finding, or yields what it looks at one after the other: the first one counts.
Test = Callable[[Probe], Finding] | Callable[[Probe], Iterator[Finding | None]]


@dataclass(frozen=True)
class Clause:
    """One promise of the contract.

    Arguments:
        id: the stable id, for example ``"derivative"``.
        promise: what the clause promises, one sentence.
        why: what goes wrong for whoever relies on it.
        breach: how a breach shows itself, after "A breach shows".
        mend: how a breach is usually mended.
        test: looks at a probe and gives a finding, or yields ``None`` until there is one.
        gradient: whether it needs an input and an output that are differentiated.
    """

    id: str
    promise: str
    why: str
    breach: str
    mend: str
    test: Test
    gradient: bool = True


def clause(
    *, why: str, breach: str, mend: str, promise: str = "", gradient: bool = True
) -> Callable[[Test], Clause]:
    """Make a `Clause` of the test below, whose name is its id.

    What it promises is what the docstring of its file says after the id, where nothing else does.

    Example:
        >>> @clause(promise="It is kind.", why="Why not?", breach="at once.", mend="Smile.")
        ... def kind(probe):
        ...     return probe.holds("Yes.")
        >>> kind.id
        'kind'
    """

    def made(test: Test) -> Clause:
        id_ = test.__name__.rstrip("_").replace("_", "-")
        said = promise or (test.__globals__["__doc__"] or id_).partition(": ")[2] or id_
        return Clause(id_, said[:1].upper() + said[1:], why, breach, mend, test, gradient)

    return made


def run_clause(clause: Clause, probe: Probe, bearing: str = "") -> Finding:
    """Run one clause; an error of the checked code becomes a verdict.

    After the seconds that it may take the verdict is ``crashes``. ``bearing`` is the clause that
    reports a plain backward which does not run: all others that build on it are skipped.
    """
    probe = replace(probe, clause=clause.id)
    try:
        finding = _judged(clause, probe, bearing)
    finally:
        probe.inputs.put_back()
    if finding.verdict in (Verdict.HOLDS, Verdict.SKIPPED):
        return finding
    return replace(finding, why=clause.why, hint=finding.hint or clause.mend)


def _judged(clause: Clause, probe: Probe, bearing: str) -> Finding:
    """The finding of one clause as it says it."""
    if probe.fault is not None and (clause.gradient or probe.fault.fails == "forward"):
        return _faulty(probe, probe.fault, bearing)
    if probe.erratic and clause.gradient:
        said = f"{probe.unwritten} holds memory that nothing has written" if probe.unwritten else (
            "The same call gives other numbers each time")  # fmt: skip
        return probe.skipped(f"{said[:1].upper()}{said[1:]}: see deterministic.")
    if probe.frees and clause.id not in _OF_FRESH_INPUTS:
        return probe.skipped("Forward frees the memory of its inputs: see mutation.")
    if probe.inputs.values and not any(value.numel() for value in probe.inputs.values):
        return probe.skipped("Nothing can be shown: every input is empty.")
    if clause.gradient and not (probe.inputs.differentiable and probe.outputs):
        said = ("no output carries a gradient" if probe.inputs.differentiable
                else "no input that the function takes has a gradient")  # fmt: skip
        return probe.skipped(f"Nothing is differentiated here: {said}.")
    return _run(clause, probe)


def run_clauses(
    clauses: Sequence[Clause],
    probe: Probe,
    *,
    asked: Sequence[Clause] = (),
    replaced: Sequence[str] = (),
    started: Callable[[str], object] = lambda id_: None,
    known: Sequence[Finding] = (),
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[Finding]:
    """Run clauses, those that compile last, and tell what of torch the checked code replaces.

    Arguments:
        clauses: the clauses.
        probe: the subject with its inputs.
        asked: all that were asked for, some of which another process runs; these if none is named.
        replaced: what it has replaced already.
        started: is told the id of each clause before it runs, and ``causes`` before theirs are
            looked for.
        known: causes that another process has found: they may be those of what fails here.
        is_over: whether there is no time for another clause, but to find the causes of what failed.

    Yields:
        One finding for each; `torch` is put back before the next one runs. At the end, once more,
        those that are told otherwise once all are known: consequences name their cause, and
        scripts have been run.
    """
    found: list[Finding] = []
    asked = asked or clauses
    ids = [clause.id for clause in asked]
    # One cause gives one finding: a plain forward or backward that does not run is told by the
    # first clause that needs one, what of the process is changed by `state`, and that numbers are
    # others each time by `deterministic` alone.
    bearing = next((clause.id for clause in asked if clause.gradient), ids[0])
    teller = "state" if "state" in ids else ids[0]
    probe = replace(probe, erratic=probe.erratic and "deterministic" in ids)
    # Those that compile at the end, so that the others are known soon.
    last = [clause for id_ in _LAST for clause in clauses if clause.id == id_]
    for clause in [*(clause for clause in clauses if clause not in last), *last]:
        if is_over():
            break
        started(clause.id)
        with unpatched() as more:
            finding = run_clause(clause, probe, bearing)
        patched = [*replaced, *more]
        if patched and clause.id == teller:
            finding = _patching(replace(probe, clause=clause.id), clause, patched)
        found.append(finding)
        yield finding
    if any(finding.verdict.is_bad for finding in found):
        started(CAUSES)
    by_id = {clause.id: clause for clause in asked}
    yield from _concluded(by_id, probe, found, known)


def _concluded(
    by_id: Mapping[str, Clause], probe: Probe, found: Sequence[Finding], known: Sequence[Finding]
) -> Iterator[Finding]:  # fmt: skip
    """The findings that differ once all are known."""
    latest = {finding.clause: finding for finding in found if finding.verdict.is_bad}

    def again(id_: str, there: Probe) -> Finding:
        """Whether it holds elsewhere: no edit is looked for."""
        there = replace(there, brief=True)
        finding = run_clause(by_id[id_], there)
        for _ in range(_MORE if id_ == "state" else 0):
            if not finding.verdict.is_bad:
                finding = run_clause(by_id[id_], there)
        return finding

    with unpatched():
        for finding in fold(probe, found, again, known, by_id) if latest else ():
            if finding.clause in latest:  # what is known is told already
                latest[finding.clause] = finding
        for finding in latest.values():
            told = finding.cause or finding.clause in _NOT_RUN_AGAIN
            shown = verify(finding, 0.0 if told else probe.patience)
            if shown not in found:
                yield shown


def _patching(probe: Probe, clause: Clause, replaced: Sequence[str]) -> Finding:
    names = ", ".join(replaced[:5])
    finding = probe.broken(
        f"A call replaced {names}, for the whole process and whatever else runs in it.",
        expected="torch as it was",
        got=f"another {names}",
        hint="Call what is meant by another name; never assign to an attribute of torch.",
    )
    return replace(finding, why=clause.why)


def _faulty(probe: Probe, fault: Fault, bearing: str) -> Finding:
    """One cause gives one finding."""
    if bearing not in ("", probe.clause):
        return probe.skipped(f"Plain {fault.fails or 'backward'} does not run: see {bearing}.")
    if fault.verdict is Verdict.SKIPPED:
        return probe.skipped(fault.said)
    if fault.verdict is Verdict.LACKING:
        return replace(probe.lacking(fault.said, fault.hint), fails=fault.fails)
    # Of what does not run nobody knows in which precision it would.
    wide = probe.at(probe.inputs.cast(torch.float64))
    edit = edit_of(wide) if fault.misfits else Right()
    said, hint = f"{fault.said} {edit.said}".strip(), edit.mend or fault.hint
    return replace(probe.crashes(said, hint, fault.script), fails=fault.fails)


def _run(clause: Clause, probe: Probe) -> Finding:
    try:
        with guarded(), limited(probe.timeout or math.inf, probe.timeout):
            found = clause.test(probe)
            return found if isinstance(found, Finding) else next(filter(None, found))
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # the checked code may raise anything
        if isinstance(error, NotImplementedError) and _gives_float8(probe):
            return probe.skipped("An output is of float8, in which torch computes nothing.")
        # Its clause foresees a refused transform; here types have met that do not fit.
        if classify(error, transform=not isinstance(error, TypeError)) is Verdict.LACKING:
            return probe.lacking(f"It says {describe(error)}", _UNFORESEEN)
        return probe.raised(error, describe(error), _UNFORESEEN)


def _gives_float8(probe: Probe) -> bool:
    with guarded():
        return attempt(lambda: any(y.element_size() == 1 for y in probe.output_values()), False)
