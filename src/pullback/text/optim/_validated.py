"""`Validated`: propose, measure, accept or revert."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.text._failure import attempted, tolerating
from pullback.text.optim._optimizer import Optimizer

__all__ = ["Outcome", "Validated"]


@dataclass(frozen=True)
class Outcome:
    """What became of one proposal.

    Arguments:
        accepted: whether the texts have changed.
        before: the score that they had.
        after: the score of the proposal; None if there was none to measure.
        reason: why, in words.
    """

    accepted: bool
    before: float
    after: float | None
    reason: str


class Validated:
    """An optimizer whose proposals are measured, and kept only if they score better.

    Whatever the model proposes, the texts never score below what they scored at the start, on
    what ``measure`` measures; that should be data which no feedback came from. No texts are
    measured twice. If a measurement fails or is interrupted, the texts are those from before.

    Arguments:
        optimizer: proposes.
        measure: gives the score of the texts as they are, a finite number, the larger the better.
        min_gain: by how much a proposal must score better.

    Attributes:
        outcomes: an `Outcome` for each step.
        best: the score of the texts as they are; None before the first step.

    Example:
        >>> from pullback.text.lm import Scripted
        >>> from pullback.text import Parameter
        >>> from pullback.text.optim import TGD
        >>> lm = Scripted({"vague": "<IMPROVED>Worse.</IMPROVED>"})
        >>> prompt = Parameter("Good.", role="prompt")
        >>> optimizer = Validated(TGD([prompt], lm), lambda: float(prompt.data == "Good."))
        >>> prompt.grad = [Parameter("vague")]
        >>> optimizer.step().reason
        'it scores 0, which is not better than 1'
        >>> prompt.data
        'Good.'
    """

    def __init__(
        self, optimizer: Optimizer, measure: Callable[[], float], min_gain: float = 0.0
    ) -> None:
        if not isinstance(optimizer, Optimizer) or not callable(measure):
            raise ArgumentTypeError(
                "Validated takes an optimizer and a measure.",
                given=f"{type(optimizer).__name__}, {type(measure).__name__}",
            )
        if not (math.isfinite(min_gain) and min_gain >= 0):
            raise ArgumentError("The gain asked for is negative.", given=f"min_gain={min_gain!r}")
        self.optimizer, self.measure, self.min_gain = optimizer, measure, float(min_gain)
        self.outcomes: list[Outcome] = []
        self.best: float | None = None
        self._known: dict[str, float] = {}

    def step(self) -> Outcome:
        """Propose, measure, and accept or revert.

        Raises:
            ArgumentTypeError: the measure gave no finite number; the texts are unchanged.
        """
        with tolerating():
            return self._step()

    def _step(self) -> Outcome:
        before = self.optimizer.values()
        told = any(parameter.grad for parameter in self.optimizer.parameters())
        self.best = start = self._measured()
        self.optimizer.record(start)
        if not told:
            return self._done(Outcome(False, start, None, "there was nothing to improve"))
        with attempted() as tried:
            self.optimizer.step()
        if tried.failure is not None:
            why = f"nothing was proposed: {tried.failure.cause}"
            return self._done(Outcome(False, start, None, why))
        if self.optimizer.values() == before:
            return self._done(Outcome(False, start, None, "the proposal changes nothing"))
        try:
            after = self._measured()
            self.optimizer.record(after)
        except BaseException:
            self.optimizer.set_values(before)
            raise
        if after > start + self.min_gain:
            self.best = after
            return self._done(Outcome(True, start, after, f"it scores {after:g}, above {start:g}"))
        self.optimizer.set_values(before)
        wanted = f"{start:g}" + (f" by {self.min_gain:g}" if self.min_gain else "")
        said = f"it scores {after:g}, which is not better than {wanted}"
        return self._done(Outcome(False, start, after, said))

    def zero_grad(self) -> None:
        """Forget the feedback of every parameter."""
        self.optimizer.zero_grad()

    def parameters(self) -> list[Any]:
        """All parameters, in the order of the groups."""
        return self.optimizer.parameters()

    def state_dict(self) -> dict[str, Any]:
        """The state of the optimizer, and every score that was measured."""
        return {"optimizer": self.optimizer.state_dict(), "known": dict(self._known)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what `state_dict` gave."""
        known = state.get("known")
        scored = isinstance(known, dict) and all(
            isinstance(score, int | float) and math.isfinite(score) for score in known.values()
        )
        if not scored or "optimizer" not in state:
            raise ArgumentError("This is no state of a Validated.", given=repr(state)[:80])
        self.optimizer.load_state_dict(state["optimizer"])
        self._known = dict(state["known"])

    def _measured(self) -> float:
        key = json.dumps(self.optimizer.values())
        if key not in self._known:
            score = self.measure()
            if not isinstance(score, int | float) or not math.isfinite(score):
                raise ArgumentTypeError("The measure gave no finite number.", given=repr(score))
            self._known[key] = float(score)
        return self._known[key]

    def _done(self, outcome: Outcome) -> Outcome:
        self.outcomes.append(outcome)
        return outcome
