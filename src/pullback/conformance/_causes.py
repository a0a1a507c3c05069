"""Fold what fails for one cause into one finding, and let the mend follow from the cause.

The breach that is the cause is undone from outside (`_mends`), and the clauses that failed are
tested again: those that hold then failed because of it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pullback.conformance._mends import MENDS, Mend
from pullback.conformance._probe import Probe
from pullback.conformance._repair import EDIT
from pullback.conformance._within import mended_within
from pullback.report import Finding, Verdict

__all__ = ["fold"]

# These compile, which takes longer than all others together: tested again for one cause alone.
_SLOW = ("compositions", "compile", "cuda-graph")

Again = Callable[[str, Probe], Finding]


@dataclass(frozen=True)
class _Cause:
    """A breach, and the clauses that hold once it is undone."""

    mend: Mend
    probe: Probe
    healed: list[str]


def fold(probe: Probe, findings: Sequence[Finding], again: Again) -> Iterator[Finding]:
    """Find causes, the fewest, of what failed.

    Yields:
        The findings that have changed: those of consequences name the clause of their cause, that
        of the cause its own mend.
    """
    failed = {finding.clause: finding for finding in findings if finding.verdict.is_bad}
    for finding in _of_one_edit(failed.values()):
        del failed[finding.clause]
        yield finding
    left = list(failed)
    causes = [c for mend in MENDS if (c := _tried(mend, probe, left, again)) is not None]
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
        yield replace(cause, detail=f"{mend.said} {cause.detail}".strip(),
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


def _tried(mend: Mend, probe: Probe, failed: Sequence[str], again: Again) -> _Cause | None:
    """What holds without a breach; ``None`` where the breach is not there, or nothing holds."""
    if mend.clause not in failed:
        return None
    subject = mended_within(probe, mend.undo)
    if subject is None:
        return None
    there = replace(probe, subject=subject)
    if not _is_kept(again(mend.clause, there), mend):
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


def _is_kept(finding: Finding, mend: Mend) -> bool:
    """Whether a clause holds now: what torch notices instead is wrong for a cause that is left."""
    noticed = mend.noticed and finding.verdict is Verdict.LACKING
    return not (finding.verdict.is_bad or noticed)
