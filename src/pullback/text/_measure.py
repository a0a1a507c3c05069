"""Samples through a pipeline: their scores, what was said of each parameter; `Measure`."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Any, TypeVar

from pullback.errors import ArgumentError, BudgetError, ModelError, RecordingError
from pullback.internal._arguments import Count, check_counts, checked
from pullback.internal._setting import setting
from pullback.tape import Variable, backward, grad, no_grad
from pullback.tape import place as here
from pullback.tape._concurrency import Path, within
from pullback.text._evaluation import Evaluation, finite
from pullback.text._failure import forgiven, met, tolerating
from pullback.text._module import Module
from pullback.text._python import StepError
from pullback.text.lm import scrub
from pullback.text.lm._json import digest_of

__all__ = [
    "Measure", "Scored", "Trace", "at_once", "names_of", "score_sample", "scoring", "searching",
    "text_parameters", "traced",
]  # fmt: skip


T = TypeVar("T")
Notes = tuple[Variable, ...]

_search: ContextVar[Path] = ContextVar("pullback.text.search")
"""Where in the program the training began that this is in."""


_names: ContextVar[Sequence[tuple[int, ...]]] = ContextVar("pullback.text.names", default=())
"""What the samples are called that are scored elsewhere: their numbers, and which time it is."""


def names_of(samples: Sequence[Any]) -> Sequence[tuple[int, ...]]:
    """What samples are called, so that what each asks has its place whatever is scored with it."""
    named = _names.get()
    return named if len(named) == len(samples) else [(n,) for n in range(len(samples))]


def searching(*parts: str) -> AbstractContextManager[Any]:
    """Let what is scored inside be found again wherever in the search, or a part, it is wanted."""
    return setting(_search, (*_search.get(here()), *parts) if parts else here())


def scoring(texts: str, *sample: int) -> AbstractContextManager[Any]:
    """Let a sample be scored at a place of its own: that of its search, and of no step in it.

    A search that goes on from a checkpoint wants the scores of texts at other steps than it was
    interrupted at, and not of all that it had scored before. What texts were paid for is theirs:
    of others that ask the same in one of their steps, none has the answer of another.
    """
    return within((*_search.get(here()), "texts", texts[:16], *sample))


def at_once(work: Sequence[Callable[[], T]], limit: int) -> list[T]:
    """What each gives, in their order; where one raises, those that have not begun are left."""
    threads = ThreadPoolExecutor(min(limit, max(len(work), 1)), "pullback-text")
    try:
        running = [threads.submit(copy_context().run, each) for each in work]
        return [future.result() for future in running]
    finally:
        threads.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class Scored:
    """What a sample gave.

    Arguments:
        score: the larger the better; 0 where what failed is the answer.
        failure: what failed first, a step or a model, else empty.
        said: the feedback to each parameter, by its path; empty where none was asked for.
    """

    score: float
    failure: str = ""
    said: Mapping[str, Notes] = field(default_factory=dict)


@dataclass(eq=False)
class Trace:
    """A sample that was scored, and where its feedback, if it is read, starts from."""

    scored: Scored
    roots: list[Variable] = field(default_factory=list)
    notes: Any = None
    _told: dict[str, Any] | None = None

    def backward(self) -> None:
        """Add the feedback to what it speaks of."""
        if any(root.requires_grad for root in self.roots):
            backward(self.roots, self.notes)

    def said(self, parameters: Mapping[str, Variable]) -> dict[str, Any]:
        """The feedback to each parameter, by its path; critics are asked once."""
        if self._told is None:
            roots = [root for root in self.roots if root.requires_grad]
            wanted = list(parameters.values())
            found = grad(roots, wanted, self.notes, allow_unused=True) if roots else ()
            self._told = {
                path: tuple(feedback)
                for path, feedback in zip(parameters, found, strict=bool(roots))
                if feedback is not None and len(feedback)
            }
            self.roots = []  # and the graph with them
        return self._told


def traced(run: Callable[[], Any]) -> Trace:
    """Run what gives a score; its feedback can be read later, while the texts are as they were.

    No parameter's ``grad`` changes. A step that fails scores 0, and what it raised is the feedback.
    A model that fails scores 0, up to the failures that are tolerated here, and so does a program
    that breaks on what has failed.
    """
    with tolerating(), setting(met, []) as before, forgiven() as failed:
        try:
            found = run()
            roots = [found.score] if isinstance(found, Evaluation) else []
            score = found.score if roots else found
            score = score.data if isinstance(score, Variable) else score
            score = finite(score, "What the metric gave")
        except StepError as error:
            return Trace(Scored(0.0, error.feedback), *error.told())
        except Exception as error:
            # What breaks on an answer that failed, as a list of it does on a text, is that failure;
            # without one it is the program's own error.
            if not before or isinstance(error, ModelError | BudgetError | RecordingError):
                raise
            then = scrub(f"{type(error).__name__}: {error}")
            return Trace(Scored(0.0, f"{before[0].cause} Then {then}"))
    if failed:
        return Trace(Scored(0.0, failed[0].cause))
    return Trace(Scored(score, before[0].cause if before else ""), roots)


def score_sample(
    metric: Callable[[Any, Any], Any],
    module: Any,
    sample: Any,
    parameters: Mapping[str, Variable] | None = None,
) -> Scored:
    """Score a sample, and, where parameters are given, run feedback back to them at once.

    Otherwise as `traced`.
    """
    with tolerating():
        with nullcontext() if parameters is not None else no_grad():
            trace = traced(partial(metric, module, sample))
        with forgiven():  # of a critic's own: nothing is said
            return replace(trace.scored, said=trace.said(parameters) if parameters else {})
        return trace.scored


def text_parameters(module: Module) -> dict[str, Variable]:
    """The texts of a module that may be changed, by the paths to them."""
    return {
        path: parameter
        for path, parameter in module.named_parameters()
        if parameter.requires_grad and isinstance(parameter.data, str)
    }


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
        failures: in how many of those a step or a model failed.

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
        repeats: Count = 1,
        at_once: Count = 16,
        evaluate: Callable[[Module, Any, Sequence[Any]], Sequence[Scored]] | None = None,
    ) -> None:
        check_counts(samples=len(samples))
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
        return fmean(self.scores())

    def scores(self, numbers: Sequence[int] | None = None) -> list[float]:
        """The score of each sample, or of those with these numbers, with the texts as they are.

        Raises:
            ArgumentError: there is no sample of a number.
            ArgumentTypeError: the metric gave no finite number.
        """
        every = range(len(self.samples))
        wanted = every if numbers is None else numbers
        if unknown := [number for number in wanted if number not in every]:
            raise ArgumentError("There is no such sample.", given=repr(unknown)[:80],
                                expected=f"numbers from 0, below {len(every)}")  # fmt: skip
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
        times = [() if self.repeats == 1 else (time,) for time in range(self.repeats)] * len(todo)
        named = [(number, *time) for number, time in zip(again, times, strict=True)]
        with scoring(state), setting(_names, named):
            found = evaluate(self.module, self.metric, [self.samples[n] for n in again])
        for place, number in enumerate(todo):
            self._keep(state, number, found[place * self.repeats : (place + 1) * self.repeats])

    def digest(self) -> str:
        """What tells the texts of the module apart."""
        return digest_of(self.module.state_dict())

    def _score(self, state: str, number: int) -> None:
        found = []
        for repeat in range(self.repeats):
            with scoring(state, number, repeat):
                found.append(score_sample(self.metric, self.module, self.samples[number]))
        self._keep(state, number, found)

    def _keep(self, state: str, number: int, found: Sequence[Scored]) -> None:
        with self._lock:
            self.evaluations += len(found)
            self.failures += sum(bool(scored.failure) for scored in found)
            self._scores[state, number] = fmean([each.score for each in found])
