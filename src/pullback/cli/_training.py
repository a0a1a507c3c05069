"""What was seen of a program's training, as one more row of the table."""

import shlex
from collections.abc import Sequence

from pullback.cli._tasks import Outcome
from pullback.internal._secrets import mask_secrets
from pullback.recording import KINDS, ParameterFinding, Training
from pullback.report import Finding, Report, Verdict

__all__ = ["training_outcome"]

_SHOWN = 8  # parameters of one kind
# A parameter that is in no loss makes no number wrong; the others train as nobody meant.
_VERDICTS = {"unused": Verdict.UNTIDY}
_MENDS = {
    "cut": "Let the gradient through, or take the parameter out of the optimiser.",
    "unused": "Use it, or take it out: requires_grad_(False), or not in the optimiser.",
    "zero": "Begin elsewhere than where the derivative is zero, or give it a gradient.",
    "not finite": "Keep that operation away from where its derivative is infinite.",
    "not held": "Give it to an optimiser, or freeze it: requires_grad_(False).",
    "replaced": "Make the optimiser after the last change of the model.",
    "no gradient": "Call backward() before the step, and zero_grad() before backward().",
}


def training_outcome(training: Training, program: Sequence[str]) -> list[Outcome]:
    """The report of a program's training; nothing where no optimiser made a step."""
    name = f"training of {shlex.join(mask_secrets(list(program)))}"
    if not training.steps:
        return []
    found = tuple(_finding(kind, training) for kind in KINDS)
    rerun = shlex.join(["pullback", "check", "--", *mask_secrets(list(program))])
    report = Report(name, "", False, found, 0, unjudged=training.fault)
    return [Outcome(name, report, rerun=rerun, training=True)]


def _finding(kind: str, training: Training) -> Finding:
    clause = kind.replace(" ", "-")
    items = [item for item in training.findings if item.kind == kind]
    enough, _ = KINDS[kind]
    if not items and training.steps < enough:
        return Finding(clause, Verdict.SKIPPED, f"it takes {enough} steps to tell")
    if not items:
        return Finding(clause, Verdict.HOLDS, f"no parameter in {training.steps} steps")
    places: dict[str, list[ParameterFinding]] = {}
    for item in items:
        places.setdefault(" at ".join(filter(None, (item.operation, item.place))), []).append(item)
    told = "; ".join(_told(where, some) for where, some in places.items())
    return Finding(
        clause, _VERDICTS.get(kind, Verdict.BROKEN), f"{told}.", source=items[0].place,
        hint=_MENDS[kind],
    )  # fmt: skip


def _told(where: str, items: list[ParameterFinding]) -> str:
    names = [item.name for item in items]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    said = f"{', '.join(names[:_SHOWN])}{more}: {KINDS[items[0].kind][1]}, {items[0].detail}"
    return f"{said} ({where})" if where else said
