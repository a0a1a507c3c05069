"""Samples through a pipeline: their scores, and what was said of each parameter."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from pullback.tape import Variable, backward, grad, no_grad
from pullback.text._evaluation import Evaluation, finite
from pullback.text._failure import forgiven, tolerating
from pullback.text._module import Module
from pullback.text._python import StepError

__all__ = ["Scored", "Trace", "at_once", "score_sample", "text_parameters", "traced"]


T = TypeVar("T")
Notes = tuple[Variable, ...]


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
        score: the larger the better; 0 where a step or a model failed.
        failure: what failed, else empty.
        said: the feedback to each parameter, by its path; empty where none was asked for.
    """

    score: float
    failure: str = ""
    said: Mapping[str, Notes] = field(default_factory=dict)


@dataclass
class Trace:
    """A sample that was scored, and the feedback of it, which is asked for when it is read.

    Arguments:
        scored: what it gave.
        roots: where feedback starts from.
        notes: what is said there, where a step has failed.
    """

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
    A model that fails scores 0, up to the failures that are tolerated here.

    Raises:
        ArgumentTypeError: it gave neither an `Evaluation` nor a finite number.
    """
    found: Any = None
    with tolerating(), forgiven() as failed:
        try:
            found = run()
        except StepError as error:
            return Trace(Scored(0.0, error.feedback), *error.told())
    if failed:
        return Trace(Scored(0.0, failed[0].cause))
    roots = [found.score] if isinstance(found, Evaluation) else []
    score = found.score if roots else found
    score = score.data if isinstance(score, Variable) else score
    return Trace(Scored(finite(score, "What the metric gave")), roots)


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
            said = {} if parameters is None else trace.said(parameters)
            return replace(trace.scored, said=said)
        return trace.scored


def text_parameters(module: Module) -> dict[str, Variable]:
    """The texts of a module that may be changed, by the paths to them."""
    return {
        path: parameter
        for path, parameter in module.named_parameters()
        if parameter.requires_grad and isinstance(parameter.data, str)
    }
