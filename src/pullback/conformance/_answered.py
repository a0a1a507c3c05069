"""Which inputs are differentiated, where nobody says so: those that backward answers for."""

from collections.abc import Sequence

import torch

from pullback.conformance._arguments import is_continuous
from pullback.conformance._failure import classify, raised
from pullback.conformance._nodes import returned
from pullback.conformance._probe import Probe
from pullback.report import Verdict

__all__ = ["answered"]


def answered(probe: Probe) -> list[int]:
    """The inputs that the backward answers with a gradient; a ``None`` declares a constant.

    Only asked where the caller did not choose by ``requires_grad``. An answer to any way of asking
    counts: all inputs at once, each alone, and laid out otherwise; a ``None`` that comes and
    goes with these declares nothing. Nor is one whose gradient fails however it is asked for, as
    that of another shape does, a constant: it is for the clauses to report.
    """
    every = list(probe.inputs.differentiable)
    found, failed, none = set[int](), set[int](), set[int]()
    points = probe.inputs.points()
    turned = [x.mT.contiguous().mT if x.ndim >= 2 else x.clone() for x in points]
    ways = [(points, set(every)), (turned, set(every)), *((points, {k}) for k in every)]
    for values, wanted in ways:
        leaves = [
            x.detach().clone(memory_format=torch.preserve_format).requires_grad_(k in wanted)
            for k, x in zip(every, values, strict=True)
        ]
        answers = _asked(probe, leaves)
        found |= {k for k in wanted if (answers or {}).get(k) is not None}
        none |= {k for k in wanted if answers is not None and answers.get(k) is None}
        failed |= wanted if answers is None and len(wanted) == 1 else set()
        if len(found) == len(every):
            break
    # A backward that answers for no input at all declares no constants: it has lost its gradient.
    return sorted(found | (failed - none)) or every


def _asked(probe: Probe, leaves: Sequence[torch.Tensor]) -> dict[int, torch.Tensor | None] | None:
    """What one backward answers for each input; ``None`` where it fails in what nobody foresaw.

    Or where the author's backward answers, and torch takes no such gradient.
    """
    answers: dict[int, torch.Tensor | None] = {}
    try:
        outputs = [y for y in probe.run(leaves) if y.requires_grad and is_continuous(y)]
    except (Exception, SystemExit):  # refused
        return answers
    try:
        found = probe.answers(leaves, probe.cotangents(outputs), outputs)
    except (Exception, SystemExit) as error:
        refuses = classify(error) is Verdict.LACKING and raised(lambda: [*returned(outputs)])
        return answers if refuses else None
    return dict(zip(probe.inputs.differentiable, found, strict=True))
