"""`Observation`: one tensor at one moment; its `Key` says which, its `Place` when."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from pullback.tracking.measure._layout import Direction
from pullback.tracking.measure._statistics import Statistics

__all__ = ["ROOT", "Key", "Observation", "Phase", "Place", "Sink", "Source"]

ROOT = "(root)"
"""What a model itself is called among its modules."""

Phase = Literal["training", "evaluation"]
Source = Literal["module", "parameter", "state", "update"]


class Key(NamedTuple):
    """Which tensor: the part of an identity that comes back at every step.

    Arguments:
        name: the module or record, with the path into a nested output, ``"encoder.0[1]"``.
        call: the number of the call within a pass, for modules used more than once.
        direction: ``"forward"`` for a value, ``"backward"`` for its gradient, ``"tangent"``
            for its forward-mode derivative.
        order: of differentiation: 0 a value, 1 its gradient or tangent, 2 the gradient of one.
        recomputed: seen while activation checkpointing computed a forward pass again.
        visit: how often the same call was seen before within one microbatch, for a graph that
            is differentiated more than once.
        phase: ``"training"``, or ``"evaluation"`` where the model was in evaluation mode when
            its forward pass began.
        source: ``"module"`` for what a module, a function or the program itself gave,
            ``"parameter"``, ``"state"`` of the optimizer or ``"update"`` of a parameter.
    """

    name: str
    call: int = 0
    direction: Direction = "forward"
    order: int = 0
    recomputed: bool = False
    visit: int = 0
    phase: Phase = "training"
    source: Source = "module"

    def __str__(self) -> str:
        parts = (
            f"call {self.call}" if self.call else "",
            f"order {self.order}" if self.order > 1 else "",
            "recomputed" if self.recomputed else "",
            f"visit {self.visit}" if self.visit else "",
            "" if self.phase == "training" else self.phase,
        )
        text = " · ".join([self.name, *filter(None, parts)])
        return text if text.isprintable() else repr(text)[1:-1]  # a key of a dict may hold any


class Place(NamedTuple):
    """When: the step of training and the microbatch within it, both from 0."""

    step: int
    microbatch: int


@dataclass(frozen=True, slots=True)
class Observation:
    """One tensor at one moment, in full.

    Arguments:
        key: which tensor.
        place: the step and the microbatch.
        statistics: what was measured.
        measures: what statistics of one's own gave, by name; not for a tensor that has this name
            beside another.
    """

    key: Key
    place: Place
    statistics: Statistics
    measures: Mapping[str, np.ndarray] = field(default_factory=dict)


@runtime_checkable
class Sink(Protocol):
    """What receives observations while a model trains."""

    def write(self, observations: Sequence[Observation]) -> None:
        """Take what was measured since the last flush, in the order of execution."""
        ...

    def close(self) -> None:
        """Take nothing any more."""
        ...
