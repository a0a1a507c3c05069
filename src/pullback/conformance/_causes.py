"""Fold what fails for one cause into one finding, and let the mend follow from the cause.

The breach that is the cause is undone from outside (`_mends`), and the clauses that failed are
tested again: those that hold then failed because of it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pullback.conformance._contract import as_edited, edit_of_clause
from pullback.conformance._left import LEFT
from pullback.conformance._mends import MENDS, Mend
from pullback.conformance._probe import Probe
from pullback.conformance._repair import EDIT
from pullback.conformance._within import mended_within
from pullback.report import Finding, Verdict

__all__ = ["fold"]

# These compile, which takes longer than all others together: tested again for one cause alone.
_SLOW = ("compositions", "compile", "cuda-graph")
# What an edit is to leave as it is, of what takes little time.
_KEPT = ("linear", "derivative", "cotangent", "mutation", "saved", "retain", "state", "stale",
         "needs-input-grad", "layout", "undefined", "double")  # fmt: skip

Again = Callable[[str, Probe], Finding]


@dataclass(frozen=True)
class _Cause:
    """A breach, and the clauses that hold once it is undone."""

    mend: Mend
    probe: Probe
    healed: list[str]


def fold(
    probe: Probe,
    findings: Sequence[Finding],
    again: Again,
    known: Sequence[Finding] = (),
    asked: Collection[str] = (),
) -> Iterator[Finding]:
    """Find causes, the fewest, of what failed.

    Arguments:
        probe: the subject with its inputs.
        findings: of all clauses that were run here.
        again: tests a clause again.
        known: what another process has found, which may be the cause of what failed here.
        asked: the clauses that can be tested again, those that run elsewhere too.

    Yields:
        The findings that have changed: those of consequences name the clause of their cause, that
        of the cause its own mend, with the edit in the author's source where one is found.
    """
    latest = {finding.clause: finding for finding in findings}
    for finding in _folded(probe, [*known, *findings], again):
        latest[finding.clause] = finding
        yield finding
    for clause in [finding.clause for finding in findings if finding.verdict.is_bad]:
        for told in _with_edit(probe, clause, latest, again, asked):
            latest[told.clause] = told
            yield told


def _with_edit(
    probe: Probe,
    clause: str,
    latest: Mapping[str, Finding],
    again: Again,
    asked: Collection[str],
) -> Iterator[Finding]:
    """A finding with the edit that mends it, and what holds with that as its consequences."""
    finding = latest[clause]
    if finding.cause or finding.hint.startswith(EDIT):
        return
    causes = [f for f in latest.values() if f.verdict.is_bad and not f.cause]
    # What refuses as it is may be anything with an edit: that it was hidden so far.
    fails = {f.clause for f in latest.values() if f.verdict.is_bad or f.verdict is Verdict.LACKING}
    kept = [other for other in _KEPT if other in asked and other not in fails]
    healed = [f.clause for f in latest.values() if f.cause == clause and f.clause not in _SLOW]
    edit = edit_of_clause(probe, finding, healed, kept, again)
    if edit is None:
        return
    said, there = edit
    same = [f.clause for f in causes if f.hint.partition(". ")[0] == f"Write {said}"]
    if same:
        yield replace(finding, cause=same[0])
        return
    detail, hint = f"{finding.detail} It holds with {said}.", f"Write {said}. {finding.hint}"
    if "double" in kept and again("double", there).verdict.is_bad:
        detail += " What it then saves is made in forward, so that `double` is to be mended next."
    yield replace(finding, detail=detail, hint=hint.strip())
    for other in causes:
        mended = other.hint.startswith(EDIT) or other.clause in (clause, *_SLOW)
        if not mended and again(other.clause, there).verdict is Verdict.HOLDS:
            yield replace(other, cause=clause)


def _folded(probe: Probe, findings: Sequence[Finding], again: Again) -> Iterator[Finding]:
    failed = {finding.clause: finding for finding in findings if finding.verdict.is_bad}
    for finding in _of_one_edit(failed.values()):
        del failed[finding.clause]
        yield finding
    left = list(failed)
    causes = [c for mend in MENDS if (c := _tried(mend, probe, failed, again)) is not None]
    while causes:
        best = max(causes, key=lambda cause: len([id_ for id_ in cause.healed if id_ in left]))
        healed = [id_ for id_ in best.healed if id_ in left]
        causes = [cause for cause in causes if cause is not best]
        if not healed:
            return
        healed += [
            id_ for id_ in left if id_ in _SLOW and _is_kept(again(id_, best.probe), best.mend)
        ]
        first = best.mend.clause if best.mend.clause in healed else healed[0]
        # What the counterfactual has shown.
        cause, mend = failed[first], best.mend
        where = getattr(best.probe.subject.function, LEFT, {"the class": None})
        said = mend.said.format(left=", ".join(where))
        yield replace(cause, detail=f"{said} {cause.detail}".strip(),
                      hint=mend.hint or cause.hint)  # fmt: skip
        yield from (replace(failed[id_], cause=first) for id_ in healed if id_ != first)
        left = [id_ for id_ in left if id_ not in healed]


def _of_one_edit(failed: Iterable[Finding]) -> list[Finding]:
    """The findings whose edit is that of an earlier one, as its consequences."""
    first: dict[str, str] = {}
    found = []
    for finding in failed:
        edit = finding.hint.partition(". ")[0] if finding.hint.startswith(EDIT) else ""
        clause = first.setdefault(edit, finding.clause)
        if edit and clause != finding.clause:
            found.append(replace(finding, cause=clause))
    return found


def _tried(
    mend: Mend, probe: Probe, failed: Mapping[str, Finding], again: Again
) -> _Cause | None:  # fmt: skip
    """What holds without a breach; ``None`` where the breach is not there, or nothing holds."""
    if mend.clause not in failed:
        return None
    there = _without(mend, probe, failed[mend.clause], again)
    if there is None:
        return None
    others = [
        id_
        for id_ in failed
        if id_ != mend.clause and id_ not in _SLOW and (not mend.of or id_ in mend.of)
    ]
    return _Cause(
        mend, there,
        [mend.clause, *(id_ for id_ in others if _is_kept(again(id_, there), mend))],
    )  # fmt: skip


def _without(mend: Mend, probe: Probe, finding: Finding, again: Again) -> Probe | None:
    """The subject without a breach; by the edit that mends it, where one is told.

    What an edit leaves as it is has another cause, and may hold once the whole rule is another.
    """
    told = finding.hint.startswith(EDIT)
    there = as_edited(probe, finding.hint.partition(". ")[0]) if told else None
    if there is not None and _is_kept(again(mend.clause, there), mend):
        return there
    subject = mended_within(probe, mend.undo)
    there = None if subject is None else replace(probe, subject=subject)
    return there if there is not None and _is_kept(again(mend.clause, there), mend) else None


def _is_kept(finding: Finding, mend: Mend) -> bool:
    """Whether a clause holds now: what torch notices instead is wrong for a cause that is left."""
    noticed = mend.noticed and finding.verdict is Verdict.LACKING
    return not (finding.verdict.is_bad or noticed)
