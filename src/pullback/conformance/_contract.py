"""The edit after which a clause of the contract holds, in the author's source.

As that of a derivative (`_repair`): written, compiled and judged, by the clause itself and by all
that held before.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import FunctionType, MethodType
from typing import Any

import torch

from pullback.conformance._forked import is_harmless
from pullback.conformance._mends import around, changed
from pullback.conformance._probe import Probe, Tensors
from pullback.conformance._screen import every_output
from pullback.conformance._slips import Rules, slips
from pullback.conformance._sources import Source, written
from pullback.conformance._within import functions_in, with_functions
from pullback.conformance._written import Edit, Expression, in_words
from pullback.report import Finding, Verdict

__all__ = ["as_edited", "edit_of_clause"]

_SECONDS, _MOST = 4.0, 60  # of work that looking for an edit may take, and edits that are tried
_OF_SHAPES = ("rank", "batch")  # which are about other arguments than those given

Again = Callable[[str, Probe], Finding]


def edit_of_clause(
    probe: Probe, finding: Finding, healed: Sequence[str], kept: Sequence[str], again: Again
) -> tuple[str, Probe] | None:
    """The edit after which a clause holds, and the subject with it; ``None`` if none was found.

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
        """Which of the edits it is; one that spoils the second derivative, if it is alone."""
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
            after = None if before is None else _answer(there, clause)
            if before is not None and not _are_alike(probe, before, after):
                continue
            spoilt = (k for k in kept if not _is_kept(probe, there, k, again, worst))
            which = next(spoilt, None)
            if which is None:
                return number
            if which == "double" and second is None and next(spoilt, None) is None:
                second = number
        return second

    with suppress(Exception):  # nothing but words depends on it
        number = probe.apart(first, None)
        if number is not None:
            edit, there = next(itertools.islice(_edits(probe, clause), number, None))
            return None if there is None else (in_words(edit), there)
    return None


def _edits(probe: Probe, clause: str) -> Iterator[tuple[Edit, Probe | None]]:
    """The edits that are tried for a clause, and the subject with each."""
    for kind in functions_in(probe):
        sources = _sources(probe, kind)
        for edit in itertools.islice(slips(clause, _rules(kind, sources)), _MOST):
            yield edit, _edited(probe, kind, sources, edit)


def _answer(probe: Probe, clause: str) -> Tensors | None:
    """What an edit for a clause is to leave of the answer to the arguments given.

    What forward returns is what its author means; what backward does may be what is wrong.
    """
    with suppress(Exception):  # it is that which is mended
        if not probe.erratic:
            return probe.answer() if clause in _OF_SHAPES else every_output(probe)
    return None


def _are_alike(probe: Probe, before: Tensors, after: Tensors | None) -> bool:
    if after is None or len(after) != len(before):
        return False
    return probe.differ(after, before, 1e4) is None


def as_edited(probe: Probe, said: str) -> Probe | None:
    """The subject with an edit made that is told in words; ``None`` where it is not found."""
    with suppress(Exception):
        for kind in functions_in(probe):
            sources = _sources(probe, kind)
            for rule in _rules(kind, sources).every:
                texts = rule.edited(said)
                if texts:
                    return _edited(
                        probe, kind, sources, {Expression(rule, n): t for n, t in texts.items()}
                    )
    return None


def _sources(probe: Probe, kind: type[torch.autograd.Function]) -> Mapping[str, Source]:
    """The rules of a Function, by what they do, with what they call in a run of theirs."""
    split = kind.setup_context is not torch.autograd.Function.setup_context
    own = kind.backward is not torch.autograd.Function.backward
    names = {"back": "backward" if own else "vjp", "fill": "setup_context" if split else "forward"}
    names |= {"forward": "forward"} if split else {}
    methods = {does: getattr(kind, name) for does, name in names.items()}
    read = {does: written(method) for does, method in methods.items()
            if isinstance(method, (FunctionType, MethodType))}  # fmt: skip
    sources = {does: source for does, source in read.items() if source is not None}
    there = _edited(probe, kind, sources, {})
    with suppress(Exception):  # of what fails, what it had called
        if there is not None:
            points = there.point(0)
            there.backward(points, there.spread(there.output_values(points), "sources"))
    return sources


def _rules(kind: type[torch.autograd.Function], sources: Mapping[str, Source]) -> Rules:
    back, fill = (sources[does].rule if does in sources else None for does in ("back", "fill"))
    every = {rule.function: rule for source in sources.values() for rule in source.rules}
    return Rules(kind, back, fill, [*every.values()])


def _edited(probe: Probe, kind: Any, sources: Mapping[str, Source], edit: Edit) -> Probe | None:
    """The subject with an edit in its source, or as it is; ``None`` where that is no code."""
    with suppress(Exception):
        methods: dict[str, Callable[..., Any]] = {}
        scopes: list[dict[str, Any]] = []
        edited = {rule.function for rule, _ in edit}
        for does, source in sources.items():
            if not edit or any(rule.function in edited for rule in source.rules):
                made = source.replaced(edit)
                scopes.append(getattr(made, "__globals__", {}))
                methods[does] = lambda method, *args, made=made, **kwargs: made(*args, **kwargs)
        other = changed(kind, [around(**methods)])
        for scope in scopes:  # a rule may apply its own Function
            scope.update((name, other) for name, value in [*scope.items()] if value is kind)
        subject = None if other is None else with_functions(probe.subject, {kind: other})
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
