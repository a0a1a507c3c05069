"""`Measure`: the score of a module over data, no sample ever paid for twice."""

import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.tape._place import within
from pullback.text._evaluation import mean
from pullback.text._failure import tolerating
from pullback.text._module import Module
from pullback.text._sample import Scored, at_once, score_sample

__all__ = ["Measure"]


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
        if not isinstance(module, Module) or not callable(metric):
            raise ArgumentTypeError(
                "A measure takes a Module and a metric.",
                given=f"{type(module).__name__}, {type(metric).__name__}",
            )
        if not len(samples) or min(at_once, repeats) < 1:
            raise ArgumentError(
                "There is nothing to measure.",
                given=f"{len(samples)} samples, {repeats} repeats, {at_once} at once",
            )
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
