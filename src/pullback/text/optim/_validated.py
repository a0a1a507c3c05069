"""`Validated`: propose, measure, accept what is shown to be better, or revert."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from statistics import fmean
from typing import Any

from pullback.errors import ArgumentError, ArgumentTypeError, ProgramError
from pullback.internal._arguments import Amount, Count, checked, reading
from pullback.internal._text import shown
from pullback.tape import Variable
from pullback.text._evaluation import finite
from pullback.text._failure import tolerating
from pullback.text._measure import searching
from pullback.text.lm._json import digest_of
from pullback.text.optim._comparison import RISK, Comparison, check_items, compare, level_of
from pullback.text.optim._optimizer import Optimizer

__all__ = ["Outcome", "Validated"]

EPSILON = 1e-12  # of a risk that is spent in parts
GATE, LEAST = 0.25, 4  # a share of the items, and so many at least, that a proposal meets first


@dataclass(frozen=True)
class Outcome:
    """What became of one proposal.

    Arguments:
        accepted: whether the texts have changed.
        before: the mean score that they had.
        after: the mean score of the proposal; None if it was not measured on all items.
        reason: why, in words.
        comparison: both on the same items, where both were measured.
    """

    accepted: bool
    before: float
    after: float | None
    reason: str
    comparison: Comparison | None = None


def read_outcome(value: Mapping[str, Any]) -> Outcome:
    """What `dataclasses.asdict` gave of one."""
    fields = dict(value)
    found: Any = fields.pop("comparison")
    return Outcome(**fields, comparison=None if found is None else Comparison(**found))


@checked
class Validated(Optimizer):
    """An optimizer whose proposals are kept only where they are shown to be better.

    A proposal is measured on the same items as the texts that it is to replace, first on a few, and
    on all if it is not worse there. It is accepted if its gain is too large to be luck, for one who
    looks so often: where nothing is better, texts change in at most `risk` of all runs, also where
    they fail, to 0, more seldom than so few items show. So the texts do not end below their start
    but by that chance, also where models are random. The
    items should be data which no feedback came from. No texts are measured twice. If a measurement
    fails or is interrupted, the texts are those from before.

    Arguments:
        optimizer: proposes.
        measure: a `pullback.text.train.Measure`, or gives the score of each item with the texts as
            they are, in one order, the larger the better.
        min_gain: by how much a proposal must score better on average.
        final: a Measure of samples that the search never sees, for `finish`.
        confirm: how likely by luck alone the gain on the final split may be for `finish` to keep
            the texts; where it is likelier they are the start's again. One test on fresh samples
            shows the sum of many small gains of which none could be shown alone: with ``risk=1.0``
            it keeps the same promise. 1.0 keeps the texts in any case.
        risk: the share of runs in which noise may be accepted; 1.0 takes whatever scores better.
        looks: how many proposals there will be; a `Trainer` says so.

    Attributes:
        outcomes: an `Outcome` for each step.
        best: the mean score of the texts as they are; None before the first step.

    Raises:
        ArgumentError: there are too few items to show anything, or an argument cannot be used.

    Example:
        >>> from pullback.text.lm import Scripted
        >>> from pullback.text import Parameter
        >>> from pullback.text.optim import TGD
        >>> lm = Scripted({"vague": "<IMPROVED>Worse.</IMPROVED>"})
        >>> prompt = Parameter("Good.", role="prompt")
        >>> optimizer = Validated(TGD([prompt], lm), lambda: [float(prompt.data == "Good.")] * 8)
        >>> prompt.grad = [Parameter("vague")]
        >>> optimizer.step().reason
        'it scores 0, which is not better than 1'
        >>> prompt.data
        'Good.'
    """

    def __init__(
        self,
        optimizer: Optimizer,
        measure: Callable[[], Any],
        min_gain: Amount = 0.0,
        *,
        final: Any = None,
        confirm: float = 1.0,
        risk: float = RISK,
        looks: Count | None = None,
    ) -> None:
        if final is not None and not hasattr(final, "scores"):
            raise ArgumentTypeError("The final split is a Measure.", given=type(final).__name__)
        if confirm < 1:
            check_items(0 if final is None else len(final.samples), confirm, 1)
        self.confirm = confirm
        # One optimizer with the other: what is done to the parameters of one is done to both.
        self.defaults, self.param_groups = optimizer.defaults, optimizer.param_groups
        self.versions = optimizer.versions
        self.optimizer, self.measure, self.min_gain = optimizer, measure, float(min_gain)
        self.final, self.risk, self.looks, self.looked, self.risked = final, risk, looks, 0, 0.0
        self.outcomes: list[Outcome] = []  # type: ignore[bad-override]
        self.best: float | None = None
        self._start = optimizer.values()
        self._known: dict[str, dict[int, float]] = {}
        self.expect(None)

    def expect(self, proposals: int | None) -> None:
        """Say how many proposals there will be, where nobody has.

        Raises:
            ArgumentError: there are too few items to show anything then.
        """
        super().expect(proposals)
        self.looks = self.looks or proposals or None
        samples = getattr(self.measure, "samples", None)
        check_items(2**31 if samples is None else len(samples), self.risk, self.looks)

    def attempt(self) -> str:
        """Make a step; what became of it, in words."""
        return self.step().reason

    def step(self) -> Outcome:  # type: ignore[bad-override]
        """Propose, measure, and accept or revert.

        Raises:
            ArgumentTypeError: the measure gave no score for each item; the texts are unchanged.
        """
        with tolerating():
            outcome = self._step()
        self.outcomes.append(outcome)
        return outcome

    def _step(self) -> Outcome:
        before = self.values()
        told = any(parameter.grad for parameter in self.parameters())
        scores = self._scores()
        check_items(len(scores), self.risk, self.looks)
        self.best = start = fmean(scores)
        self.record(start)
        if not told:
            return Outcome(False, start, None, "there was nothing to improve")
        if self.risk < 1 and self.risk - self.risked < EPSILON:
            return Outcome(False, start, None, f"the {self.looked} looks at this risk are used up")
        failed = self.optimizer.attempt()
        if failed:
            return Outcome(False, start, None, failed)
        if self.values() == before:
            return Outcome(False, start, None, "the proposal changes nothing")
        outcome = None
        try:
            outcome = self._judged(scores, start)
        except (ArgumentError, ProgramError) as error:
            if isinstance(error, ArgumentTypeError):
                raise
            outcome = Outcome(False, start, None, f"it breaks the program: {error.what}")
        finally:
            if outcome is None or not outcome.accepted:
                self.set_values(before)
        return outcome

    def _judged(self, scores: Sequence[float], start: float) -> Outcome:
        """What becomes of the texts as they are, against the scores of those from before."""
        self.looked += 1  # one that the first items turn away is a look, too: it chose the rest
        level = level_of(self.risk, self.looked, self.looks)
        if self.risk < 1:  # who looks more often than was said has no more to risk than was said
            level = min(level, self.risk - self.risked)
            self.risked += level
        # Why noise is accepted with `risk` at most, over all looks k: look k accepts only if its
        # test does, at level a_k, and sum a_k <= risk (`risked`). That holds although
        # - the looks depend on each other, having one start: a union bound asks for no
        #   independence;
        # - a few items are looked at first: being turned away there can only take from what the
        #   test would accept. It saves the rest of the items for about half of what is no better;
        # - the texts to beat may have been accepted by a lucky measurement: their scores are then
        #   too high on average, so the next is held to more than the truth, not to less.
        few = range(max(LEAST, math.ceil(GATE * len(scores))))
        if hasattr(self.measure, "scores") and len(few) < len(scores):
            worse = fmean(scores[: len(few)]) - fmean(self._scores(few))
            if worse > 0:
                why = f"it scores {worse:g} less on the first {len(few)} items"
                return Outcome(False, start, None, why)
        found = self._scores()
        after = fmean(found)
        self.record(after)
        comparison = compare(scores, found, level)
        gained = comparison.gain > self.min_gain
        chance = f"chance {comparison.chance:.2g}"
        if not gained:
            by = f" by {self.min_gain:g}" if self.min_gain else ""
            why = f"it scores {after:g}, which is not better than {start:g}{by}"
        elif comparison.chance > level:
            why = (f"it scores {after:g}, above {start:g}, which may be luck "
                   f"({chance}, allowed {level:.2g})")  # fmt: skip
        else:
            self.best = after
            why = f"it scores {after:g}, above {start:g} ({chance})"
        accepted = gained and comparison.chance <= level
        return Outcome(accepted, start, after, why, comparison)

    def finish(self) -> Comparison | None:
        """The start and the end on the final split, and which is kept; None if there is none."""
        if self.final is None:
            return None
        now, kept = self.values(), self.confirm >= 1
        # Of the same texts and an equal sample the search has an answer: that was chosen by.
        with tolerating(), searching("final"):
            try:
                after = self.final.scores()
                self.set_values(self._start)
                found = compare(self.final.scores(), after, self.confirm)
                kept = kept or (found.gain > 0 and found.chance <= self.confirm)
            finally:  # what was not measured is not shown either
                self.set_values(now if kept else self._start)
        return found

    def state_dict(self) -> dict[str, Any]:
        """The state of the optimizer, its start, and every score that was measured."""
        known = {
            key: {str(number): score for number, score in scores.items()}
            for key, scores in self._known.items()
        }
        return {"optimizer": self.optimizer.state_dict(), "known": known, "start": self._start,
                "looked": self.looked, "risked": self.risked, "items": self._items()}  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what `state_dict` gave; no score of other items, in another order, is taken."""
        with reading("state of a Validated", state):
            known = {
                key: {int(number): _score(score) for number, score in scores.items()}
                for key, scores in state["known"].items()
            }
            start, looked, inner = list(state["start"]), int(state["looked"]), state["optimizer"]
            risked = float(state.get("risked", 0.0))
        whole = hasattr(self.measure, "scores")  # else of all items at once, or of none
        if not (whole or all(sorted(each) == list(range(len(each))) for each in known.values())):
            raise ArgumentError("The state of a Validated lacks the score of an item.",
                                given=shown(known))  # fmt: skip
        self.optimizer.load_state_dict(inner)
        if state.get("items", self._items()) != self._items():
            known = {}  # else proposals would be compared with scores of items that are not theirs
        self._known, self._start, self.looked, self.risked = known, start, looked, risked

    def _items(self) -> str | None:
        """What tells the items and their order apart, as far as they are plain data."""

        def plain(value: Any) -> Any:
            if isinstance(value, Variable):
                return value.data
            return vars(value) if hasattr(value, "__dict__") else type(value).__qualname__

        samples = getattr(self.measure, "samples", None)
        try:
            written = None if samples is None else json.dumps(list(samples), default=plain)
        except (TypeError, ValueError, RecursionError):  # keys or circles that JSON has not
            return None
        return written and digest_of(written)

    def _scores(self, numbers: Sequence[int] | None = None) -> list[float]:
        """The score of each item, or of these, with the texts as they are."""
        known = self._known.setdefault(json.dumps(self.values()), {})
        if hasattr(self.measure, "scores"):
            measure: Any = self.measure
            wanted = range(len(measure.samples)) if numbers is None else numbers
            missing = [number for number in wanted if number not in known]
            if missing:
                found = measure.scores(missing)
                known.update(zip(missing, map(_score, found), strict=True))
            return [known[number] for number in wanted]
        if not known:
            given = self.measure()
            if isinstance(given, Real) and self.risk < 1:
                raise ArgumentTypeError(
                    "One number cannot tell a better text from luck.", given=repr(given),
                    expected="a Measure, or the score of each item",
                    mend="Pass a Measure; or risk=1.0 to take whatever scores better.",
                )  # fmt: skip
            given = [given] if isinstance(given, Real) else given
            if not (isinstance(given, Iterable) and (given := list(given))):
                raise ArgumentTypeError(
                    "A measure gives the score of each item.", given=shown(given)
                )
            known.update(enumerate(map(_score, given)))
        return [known[number] for number in range(len(known))]


def _score(value: Any) -> float:
    return finite(value, "The score of a measure")
