"""Fold what fails for one cause into one finding, and let the mend follow from the cause.

The breach that is the cause is undone from outside (`_mends`), and the clauses that failed are
tested again: those that hold then failed because of it.
"""

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import FunctionType, MethodType
from typing import Any

import torch

from pullback.conformance.cause._repair import EDIT
from pullback.conformance.cause._trials import are_alike, tried
from pullback.conformance.cause._within import functions_in, mended_within, with_functions
from pullback.conformance.evidence._screen import every_output
from pullback.conformance.probing._mends import MENDS, Mend, around, changed
from pullback.conformance.probing._probe import Probe, Tensors
from pullback.conformance.probing._resize import larger
from pullback.conformance.process._forked import is_harmless
from pullback.conformance.process._limits import limited
from pullback.conformance.source._left import LEFT, shared_places
from pullback.conformance.source._slips import Rules, slips
from pullback.conformance.source._sources import written
from pullback.conformance.source._written import Edit, Expression, in_words
from pullback.report import Finding, Verdict

__all__ = ["fold", "shared_in"]

# These compile, which takes longer than all others together: tested again for one cause alone.
_SLOW = ("compositions", "compile", "cuda-graph")
# What an edit is to leave as it is, of what takes little time.
_KEPT = ("linear", "derivative", "cotangent", "mutation", "saved", "retain", "state", "stale",
         "needs-input-grad", "layout", "undefined", "double")  # fmt: skip

# What an edit may spoil, since what calls shared has hidden it, and what is said then.
_NEXT = {"double": "What it then saves is made in forward",
         "saved": "What its ctx then keeps has tensors in it"}  # fmt: skip

_SECONDS, _MOST = 4.0, 60  # of work that looking for an edit may take, and edits that are tried
_SHARED = 3  # places of what calls share that are named
_OF_SHAPES = ("rank", "batch")  # which are about other arguments than those given

Again = Callable[[str, Probe], Finding]


@dataclass(frozen=True)
class _Cause:
    """A breach, and the clauses that hold once it is undone."""

    mend: Mend
    probe: Probe
    healed: list[str]

    def follows_from(self, others: Iterable["_Cause"]) -> bool:
        """Whether another one heals its clause, which does not heal that one's."""
        return any(
            self.mend.clause in other.healed and other.mend.clause not in self.healed
            for other in others
        )


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
    edit = _edit_of_clause(probe, finding, healed, kept, again)
    if edit is None:
        return
    said, there = edit
    same = [f.clause for f in causes if _edit_in(f) == f"Write {said}"]
    if same:
        yield replace(finding, cause=same[0])
        return
    detail, hint = f"{finding.detail} It holds with {said}.", f"Write {said}. {finding.hint}"
    for other, why in _NEXT.items():
        if other in kept and again(other, there).verdict.is_bad:
            detail += f" {why}, so that `{other}` is to be mended next."
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
        roots = [cause for cause in causes if not cause.follows_from(causes)] or causes
        best = max(roots, key=lambda cause: len([id_ for id_ in cause.healed if id_ in left]))
        mend, there = best.mend, best.probe
        healed = [id_ for id_ in best.healed if id_ in left]
        causes = [cause for cause in causes if cause is not best]
        if mend.clause not in healed:  # it follows from another cause, which has not healed these
            continue
        slow = [id_ for id_ in left if id_ in _SLOW]
        healed += [id_ for id_ in slow if _is_mended(again(id_, there), mend)]
        first = mend.clause
        cause, where = failed[first], getattr(there.subject.function, LEFT, ["the class"])
        if cause.hint.startswith(EDIT):
            yield cause
        else:  # what the counterfactual has shown
            detail = f"{mend.said.format(left=', '.join(where))} {cause.detail}".strip()
            yield replace(cause, detail=detail, hint=mend.hint or cause.hint)
        yield from (replace(failed[id_], cause=first) for id_ in healed if id_ != first)
        left = [id_ for id_ in left if id_ not in healed]


def _of_one_edit(failed: Iterable[Finding]) -> list[Finding]:
    """The findings whose edit is that of an earlier one, as its consequences."""
    first: dict[str, str] = {}
    told = [finding for finding in failed if finding.hint.startswith(EDIT)]
    owners = [first.setdefault(_edit_in(finding), finding.clause) for finding in told]
    pairs = zip(told, owners, strict=True)
    return [replace(finding, cause=of) for finding, of in pairs if of != finding.clause]


def _edit_in(finding: Finding) -> str:
    """The edit that a finding tells."""
    return finding.hint.partition(". ")[0]


def _tried(
    mend: Mend, probe: Probe, failed: Mapping[str, Finding], again: Again
) -> _Cause | None:  # fmt: skip
    """What holds without a breach; ``None`` where the breach is not there, or nothing holds."""
    there = _without(mend, probe, failed[mend.clause], again) if mend.clause in failed else None
    if there is None:
        return None
    others = [id_ for id_ in failed if id_ not in (mend.clause, *_SLOW)]
    asked = [id_ for id_ in others if not mend.of or id_ in mend.of]
    if mend.whole and not failed[mend.clause].hint.startswith(EDIT):
        asked = [id_ for id_ in asked if failed[id_].verdict is Verdict.BROKEN]
    healed = [id_ for id_ in asked if _is_mended(again(id_, there), mend)]
    return _Cause(mend, there, [mend.clause, *healed])


def _without(mend: Mend, probe: Probe, finding: Finding, again: Again) -> Probe | None:
    """The subject without a breach; by the edit that mends it, where one is told.

    What an edit leaves as it is has another cause, and may hold once the whole rule is another.
    """
    if finding.hint.startswith(EDIT):
        there = _as_edited(probe, _edit_in(finding))
        if there is not None and _is_mended(again(mend.clause, there), mend):
            return there
    subject = mended_within(probe, mend.undo)
    there = None if subject is None else replace(probe, subject=subject)
    return there if there is not None and _is_mended(again(mend.clause, there), mend) else None


def _is_mended(finding: Finding, mend: Mend) -> bool:
    """Whether a clause holds now: what torch notices instead is wrong for a cause that is left."""
    noticed = mend.noticed and finding.verdict is Verdict.LACKING
    return not (finding.verdict.is_bad or noticed)


# Edits --------------------------------------------------------------------------------------------


def _edit_of_clause(
    probe: Probe, finding: Finding, healed: Sequence[str], kept: Sequence[str], again: Again
) -> tuple[str, Probe] | None:
    """The edit after which a clause holds, and the subject with it; ``None`` if none was found.

    As that of a derivative (`_repair`): written, compiled and judged, by the clause itself and by
    all that held before.

    Arguments:
        probe: the subject with its inputs.
        finding: that of the clause that fails.
        healed: what fails for the same cause, and is to hold then.
        kept: what is to be as it was, or hold.
        again: tests a clause again.

    Returns:
        The edit in words, ``"`new` for `old` at file:line"``, and the subject with it.
    """
    clause = finding.clause
    worst = 1 if finding.got == "None" else 0  # what held of no gradient may refuse one

    def first() -> int | None:
        """Which of the edits it is; one with which another fault shows, if it is alone."""
        until, second = time.process_time() + _SECONDS, None
        before = _answer(probe, clause)
        for number, (_, there) in enumerate(_edits(probe, clause)):
            if time.process_time() > until:
                break
            if there is None or not is_harmless():
                continue
            if again(clause, there).verdict is not Verdict.HOLDS:
                continue
            if any(again(other, there).verdict.is_bad for other in healed):
                continue
            if before is not None and not are_alike(probe, before, _answer(there, clause)):
                continue
            spoilt = (k for k in kept if not _is_kept(probe, there, k, again, worst))
            which = next(spoilt, None)
            if which is None:
                return number
            if second is None and which in _NEXT and all(k in _NEXT for k in spoilt):
                second = number
        return second

    with suppress(Exception):  # nothing but words depends on it
        number = tried(probe, first, None)
        if number is not None:
            edit, there = next(itertools.islice(_edits(probe, clause), number, None))
            return None if there is None else (in_words(edit), there)
    return None


def _edits(probe: Probe, clause: str) -> Iterator[tuple[Edit, Probe | None]]:
    """The edits that are tried for a clause, and the subject with each."""
    for kind in functions_in(probe):
        rules = _rules(probe, kind)
        for edit in itertools.islice(slips(clause, rules), _MOST):
            yield edit, _edited(probe, rules, edit)


def shared_in(probe: Probe) -> str:
    """What backward reads that forward writes and calls share, as it is written; or nothing."""
    found: dict[str, None] = {}
    with suppress(Exception):  # nothing but words depends on it
        for kind in functions_in(probe):
            sources = _rules(probe, kind).sources
            writers = [r for does, s in sources.items() if does != "back" for r in s.rules]
            readers = sources["back"].rules if "back" in sources else ()
            found |= dict.fromkeys(shared_places(writers, readers))
    return "; ".join([*found][:_SHARED])


def _answer(probe: Probe, clause: str) -> Tensors | None:
    """What an edit for a clause is to leave of the answer to the arguments given.

    What forward returns is what its author means; what backward does may be what is wrong. It is
    right of calls that share state where there is but one: of two sizes, one after the other, or
    what an earlier call has left might do for all.
    """
    with suppress(Exception):  # it is that which is mended
        if clause == "state" and not probe.erratic:
            other = larger(probe.inputs, probe.generator("answer"))
            return [*probe.answer(), *([] if other is None else probe.at(other).answer())]
        if not probe.erratic:
            return probe.answer() if clause in _OF_SHAPES else every_output(probe)
    return None


def _as_edited(probe: Probe, said: str) -> Probe | None:
    """The subject with an edit made that is told in words; ``None`` where it is not found."""
    with suppress(Exception):
        for kind in functions_in(probe):
            rules = _rules(probe, kind)
            for rule in rules.every:
                if texts := rule.edited(said):
                    edit = {Expression(rule, node): text for node, text in texts.items()}
                    return _edited(probe, rules, edit)
    return None


def _rules(probe: Probe, kind: type[torch.autograd.Function]) -> Rules:
    """The rules of a Function, with what they call in a run of theirs."""
    split = kind.setup_context is not torch.autograd.Function.setup_context
    own = kind.backward is not torch.autograd.Function.backward
    names = {"back": "backward" if own else "vjp", "fill": "setup_context" if split else "forward"}
    names |= {"forward": "forward"} if split else {}
    methods = {does: getattr(kind, name) for does, name in names.items()}
    read = {does: written(method) for does, method in methods.items()
            if isinstance(method, (FunctionType, MethodType))}  # fmt: skip
    rules = Rules(kind, {does: source for does, source in read.items() if source is not None})
    there = _edited(probe, rules, {})
    with suppress(Exception), limited(_SECONDS):  # of what fails, what it had called
        if there is not None:
            points = there.point(0)
            there.backward(points, there.spread(there.output_values(points), "sources"))
    return rules


def _edited(probe: Probe, rules: Rules, edit: Edit) -> Probe | None:
    """The subject with an edit in its source, or as it is; ``None`` where that is no code."""
    with suppress(Exception):
        methods: dict[str, Callable[..., Any]] = {}
        scopes: list[dict[str, Any]] = []
        # All of them, or what one leaves on its class another one would not find there.
        for does, source in rules.sources.items():
            made = source.replaced(edit)
            scopes.append(getattr(made, "__globals__", {}))
            methods[does] = lambda method, *args, made=made, **kwargs: made(*args, **kwargs)
        other = changed(rules.kind, [around(**methods)])
        for scope in scopes:  # a rule may apply its own Function
            scope.update((name, other) for name, value in [*scope.items()] if value is rules.kind)
        subject = None if other is None else with_functions(probe.subject, {rules.kind: other})
        # That numbers are others each time is asked anew, and what was not judged for it.
        return None if subject is None else replace(probe, subject=subject, erratic=False)
    return None


def _is_kept(probe: Probe, there: Probe, clause: str, again: Again, worst: int) -> bool:
    """Whether a clause is no worse than it was: what only an edit refuses did hold."""
    found = _badness(again(clause, there).verdict)
    judged = replace(probe, erratic=False)
    return found <= worst or found <= _badness(again(clause, judged).verdict)


def _badness(verdict: Verdict) -> int:
    return 2 if verdict.is_bad else int(verdict is Verdict.LACKING)
