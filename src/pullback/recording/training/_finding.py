"""`ParameterFinding`: what is wrong with one parameter, and what a program says of all, as data."""

import json
from dataclasses import dataclass
from pathlib import Path

__all__ = ["KINDS", "ParameterFinding", "Training"]

KINDS = {
    "cut": (2, "is used, and its gradient is cut"),
    "unused": (3, "is in no loss"),
    "zero": (5, "has a gradient of exactly zero"),
    "not finite": (1, "has a gradient that is not finite"),
    "not held": (2, "gets gradients, and no optimiser holds it"),
    "replaced": (3, "was replaced after the optimiser was made, which holds the old one"),
    "no gradient": (3, "had no gradient at a step, as all that its optimiser holds"),
}
"""Kind -> how many steps it takes to tell (a gradient may be zero at first), and what it says."""


@dataclass(frozen=True)
class ParameterFinding:
    """What is wrong with one parameter.

    Arguments:
        name: its name from the outermost module, ``"Net.layers.0.weight"``.
        kind: one of `KINDS`.
        detail: what was seen.
        operation: what cuts its gradient, or makes it zero; an empty text where that is not known.
        place: ``"file:line"`` of that operation, or an empty text.

    Example:
        >>> print(ParameterFinding("Net.gate.weight", "unused", "in 40 steps"))
        Net.gate.weight is in no loss, in 40 steps
    """

    name: str
    kind: str
    detail: str
    operation: str = ""
    place: str = ""

    def __str__(self) -> str:
        where = " at ".join(filter(None, (self.operation, self.place)))
        return f"{self.name} {KINDS[self.kind][1]}, {self.detail}{where and ': '}{where}"


@dataclass(frozen=True)
class Training:
    """What the processes of a program have found in training.

    Arguments:
        findings: what is wrong, each once.
        steps: how many steps the optimisers of all processes have made.
        fault: why a process could not be watched, or an empty text.
    """

    findings: tuple[ParameterFinding, ...] = ()
    steps: int = 0
    fault: str = ""

    @classmethod
    def collect(cls, directory: str | Path) -> "Training":
        """Put together what the processes have left in a directory."""
        found: dict[ParameterFinding, None] = {}
        steps, fault = 0, ""
        for path in sorted(Path(directory).glob("training-*.json")):
            data = json.loads(path.read_text(encoding="utf-8"))
            found |= dict.fromkeys(ParameterFinding(**item) for item in data["findings"])
            steps, fault = steps + data["steps"], fault or data["fault"]
        return cls(tuple(found), steps, fault)
