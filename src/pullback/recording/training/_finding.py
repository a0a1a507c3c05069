"""`ParameterFinding`: what is wrong with one parameter, as data.

This file is also loaded by path into programs that have no pullback (``_recorder.py``).
"""

from dataclasses import dataclass

__all__ = ["KINDS", "ParameterFinding"]

KINDS = {
    "cut": "is used, and its gradient is cut",
    "unused": "is in no loss",
    "zero": "has a gradient of exactly zero",
    "not finite": "has a gradient that is not finite",
    "not held": "gets gradients, and no optimiser holds it",
    "replaced": "was replaced after the optimiser was made, which holds the old one",
}
"""Kind -> what it says of a parameter."""


@dataclass(frozen=True)
class ParameterFinding:
    """What is wrong with one parameter.

    Arguments:
        name: its name from the outermost module, ``"Net.layers.0.weight"``.
        kind: ``"cut"``, ``"unused"``, ``"zero"``, ``"not finite"``, ``"not held"`` or
            ``"replaced"``.
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
        return f"{self.name} {KINDS[self.kind]}, {self.detail}{where and ': '}{where}"
