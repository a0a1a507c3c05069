"""Measuring a module: a step and its metrics; `Measure`, which pays for no sample twice."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from pullback.errors import ArgumentTypeError
from pullback.internal._arguments import check_counts, checked
from pullback.tape import Variable, at, no_grad
from pullback.tape._concurrency import within
from pullback.text._evaluation import Evaluation, mean
from pullback.text._failure import forgiven, tolerating
from pullback.text._module import Module
from pullback.text._sample import Scored, at_once, score_sample, traced

__all__ = ["Measure"]


def means(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric over the steps that have it."""
    names = dict.fromkeys(name for each in steps for name in each)
    return {name: mean([each[name] for each in steps if name in each]) for name in names}


def step_of(module: Any, name: str) -> Callable[[Any, int], Any]:
    """A step that a module has written.

    Raises:
        ArgumentTypeError: it has not.
    """
    step = getattr(module, name, None)
    if not callable(step):
        raise ArgumentTypeError(f"{type(module).__name__} has no {name}.")
    return step


def means_of(module: Module, name: str, data: Iterable[Any]) -> dict[str, float]:
    """The means of the metrics of a step that is measured alone."""
    step, was, found = step_of(module, name), module.training, []
    module.eval()
    try:
        for number, batch in enumerate(data):
            with at("held", number):
                found.append(run_step(step, batch, number, learn=False) or {})
    finally:
        module.train(was)
    return means(found)


def run_step(step: Any, batch: Any, number: int, learn: bool) -> dict[str, float] | None:
    """Run one step, and feedback back; its metrics, or None where it is skipped."""
    more: dict[str, Any] | None = {}

    def run() -> Evaluation | float:
        nonlocal more
        returned = step(batch, number)
        if returned is None:
            more = None
            return 0.0
        more = dict(returned) if isinstance(returned, dict) else {}
        loss = more.pop("loss", None) if isinstance(returned, dict) else returned
        if not isinstance(loss, tuple) or len(loss) != 2 or not isinstance(loss[0], Variable):
            raise ArgumentTypeError(
                "A step gave no evaluation.", given=repr(returned)[:80],
                expected="a score and an explanation, a dict with them as 'loss', or None",
            )  # fmt: skip
        return Evaluation(*loss)

    with nullcontext() if learn else no_grad():
        trace = traced(run)
    if more is None:
        return None
    if learn:
        with forgiven():
            trace.backward()
    try:
        numbers = {name: float(getattr(value, "data", value)) for name, value in more.items()}
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError("A metric is no number.", given=str(error)) from None
    return {"score": trace.scored.score, **numbers}


def evaluations_of(measure: Any) -> int:
    """How many runs of a module a measure makes, each sample as often as it repeats."""
    return len(getattr(measure, "samples", ())) * getattr(measure, "repeats", 1)


def told(metrics: dict[str, float]) -> str:
    """Metrics in words."""
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


@checked
class Measure:
    """The mean score of a module over samples.

    Samples are measured at once. A score belongs to the texts of the module and the sample; it is
    computed once and kept, also if the measuring was interrupted or several threads ask for it.
    Where a model fails, its answer is a `pullback.text.Failure`, up to the share that is tolerated.

    Arguments:
        module: what is measured; its `Module.state_dict` is what its texts are.
        metric: given the module and a sample, gives an `Evaluation` or a finite number, the
            larger the better.
        samples: the data.
        repeats: how many times each sample is run, where the model is random; its score is the
            mean.
        at_once: how many samples at most at once.
        evaluate: runs the metric on samples elsewhere, such as ``Workers(executor).evaluate`` of
            `pullback.text.distributed`; threads of this process if None.

    Attributes:
        evaluations: how many times the metric was run.
        failures: how many of those ended with a step or a model that failed, which scores 0.

    Raises:
        ArgumentError: there are no samples.

    Example:
        >>> from pullback.text import Parameter, exact_match
        >>> class Echo(Module):
        ...     def __init__(self):
        ...         self.answer = Parameter("yes", role="answer")
        >>> echo = Echo()
        >>> score = Measure(echo, lambda module, wanted: exact_match(module.answer, wanted),
        ...                 ["yes", "no"])
        >>> score(), score(), score.evaluations
        (0.5, 0.5, 2)
    """

    def __init__(
        self,
        module: Module,
        metric: Callable[[Any, Any], Any],
        samples: Sequence[Any],
        *,
        repeats: int = 1,
        at_once: int = 16,
        evaluate: Callable[[Module, Any, Sequence[Any]], Sequence[Scored]] | None = None,
    ) -> None:
        check_counts(samples=len(samples), repeats=repeats, at_once=at_once)
        self.module, self.metric, self.samples = module, metric, samples
        self.repeats, self.at_once, self.evaluate = repeats, at_once, evaluate
        self.evaluations = self.failures = 0
        self._scores: dict[tuple[str, int], float] = {}
        self._lock = threading.Lock()
        self._measuring = threading.Lock()  # who comes meanwhile finds what the first has found
        self._ended = 0
        self._failed: Exception | None = None

    def __call__(self) -> float:
        """The mean score of the texts as they are."""
        return mean(self.scores())

    def scores(self, numbers: Sequence[int] | None = None) -> list[float]:
        """The score of each sample, or of those with these numbers, with the texts as they are.

        Raises:
            ArgumentTypeError: the metric gave no finite number.
        """
        wanted = range(len(self.samples)) if numbers is None else numbers
        # Threads that measure at once take turns: what the first has measured, or why it failed, is
        # the answer of all who came while it did.
        came = self._ended
        with tolerating(), self._measuring:
            if self._failed is not None and came < self._ended:
                raise self._failed  # of who was measuring meanwhile; it is not paid for again
            self._failed = None
            try:
                return self._measured(self.digest(), wanted)
            except Exception as error:
                self._failed = error
                raise
            finally:
                self._ended += 1

    def _measured(self, state: str, wanted: Sequence[int]) -> list[float]:
        todo = [n for n in dict.fromkeys(wanted) if (state, n) not in self._scores]
        if self.evaluate is None:
            at_once([partial(self._score, state, n) for n in todo], self.at_once)
        elif todo:
            self._score_elsewhere(self.evaluate, state, todo)
        return [self._scores[state, n] for n in wanted]

    def _score_elsewhere(self, evaluate: Any, state: str, todo: list[int]) -> None:
        again = [number for number in todo for _ in range(self.repeats)]
        found = evaluate(self.module, self.metric, [self.samples[n] for n in again])
        self.evaluations += len(again)
        for place, number in enumerate(todo):
            self._keep(state, number, found[place * self.repeats : (place + 1) * self.repeats])

    def digest(self) -> str:
        """What tells the texts of the module apart."""
        text = json.dumps(self.module.state_dict(), sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def _score(self, state: str, number: int) -> None:
        found = []
        for repeat in range(self.repeats):
            with self._lock:
                self.evaluations += 1
            with within(("measure", number, repeat)):
                found.append(score_sample(self.metric, self.module, self.samples[number]))
        self._keep(state, number, found)

    def _keep(self, state: str, number: int, found: Sequence[Scored]) -> None:
        with self._lock:
            self.failures += sum(bool(scored.failure) for scored in found)
            self._scores[state, number] = mean([each.score for each in found])
