"""One step that a module has written, run on a batch, and what its metrics say."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from statistics import fmean
from typing import Any

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal._text import shown
from pullback.tape import Variable, at, no_grad
from pullback.text._evaluation import Evaluation
from pullback.text._failure import forgiven
from pullback.text._measure import traced
from pullback.text._module import Module

__all__ = ["means", "means_of", "run_step", "step_of", "told"]


def means(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric over the steps that have it."""
    names = dict.fromkeys(name for each in steps for name in each)
    return {name: fmean([each[name] for each in steps if name in each]) for name in names}


def step_of(module: Any, name: str) -> Callable[[Any, int], Any]:
    """A step that a module has written; one that it has not is refused."""
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
    if not found:
        raise ArgumentError(f"There is no data for {name}.", given=shown(data))
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
        more = dict(returned) if isinstance(returned, dict) else {"loss": returned}
        loss = more.pop("loss", None)
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


def told(metrics: dict[str, float]) -> str:
    """Metrics in words."""
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
