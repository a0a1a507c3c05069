"""One step of a module, its metrics, their means, and a line of progress."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from rich.console import Console

from pullback.errors import ArgumentTypeError, ModelError
from pullback.tape import Variable, no_grad
from pullback.tape._place import at
from pullback.text._evaluation import Evaluation, mean
from pullback.text._failure import forgive, tolerating
from pullback.text._module import Module
from pullback.text._python import StepError
from pullback.text.lm import current_run

__all__ = ["Progress", "evaluations_of", "means", "means_of", "run_step", "told"]


def means(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric over the steps that have it."""
    names = dict.fromkeys(name for each in steps for name in each)
    return {name: mean([each[name] for each in steps if name in each]) for name in names}


def means_of(module: Module, step: Any, data: Iterable[Any]) -> dict[str, float]:
    """The means of the metrics of a step that is measured alone."""
    was, found = module.training, []
    module.eval()
    try:
        for number, batch in enumerate(data):
            with tolerating(), at("held", number):
                found.append(run_step(step, batch, number, learn=False) or {})
    finally:
        module.train(was)
    return means(found)


def run_step(step: Any, batch: Any, number: int, learn: bool) -> dict[str, float] | None:
    """Run one step, and feedback back; its metrics, or None where it is skipped."""
    try:
        with nullcontext() if learn else no_grad():
            returned = step(batch, number)
    except StepError as error:
        if learn:
            error.backward()
        return {"score": 0.0}
    except ModelError as error:  # of a model that the step asks itself
        if forgive(error) is None:
            raise
        return {"score": 0.0}
    if returned is None:
        return None
    more = dict(returned) if isinstance(returned, dict) else {}
    loss = more.pop("loss", None) if isinstance(returned, dict) else returned
    if not isinstance(loss, tuple) or len(loss) != 2 or not isinstance(loss[0], Variable):
        raise ArgumentTypeError(
            "A step gave no evaluation.", given=repr(returned)[:80],
            expected="a score and an explanation, a dict with them as 'loss', or None",
        )  # fmt: skip
    evaluation = Evaluation(*loss)
    if learn and evaluation.score.requires_grad:
        evaluation.backward()
    numbers = {name: float(getattr(value, "data", value)) for name, value in more.items()}
    return {"score": float(evaluation.score.data), **numbers}


def evaluations_of(measure: Any) -> int:
    """How many runs of a module a measure makes, each sample as often as it repeats."""
    return len(getattr(measure, "samples", ())) * getattr(measure, "repeats", 1)


def told(metrics: dict[str, float]) -> str:
    """Metrics in words."""
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


class Progress:
    """Shows lines on standard error, each with calls, tokens and dollars.

    Arguments:
        shown: whether anything is shown.
        clients: models with a ``usage`` (a `pullback.text.lm.Usage`) or ``calls``; the run under
            way if there are none.
    """

    def __init__(self, shown: bool, clients: Iterable[Any] = ()) -> None:
        self.clients = tuple(clients)
        self._console = Console(stderr=True, highlight=False, emoji=False) if shown else None

    def show(self, line: str) -> None:
        """Show a line."""
        if self._console is not None:
            self._console.print(f"{line}{self.cost()}", markup=False)

    def cost(self) -> str:
        """What the clients have used, in words."""
        run = current_run()
        if not self.clients and run is not None:
            return f" [{run.describe()}]"
        parts = []
        calls = [
            each.calls for each in self.clients if isinstance(getattr(each, "calls", None), int)
        ]
        if calls:
            parts.append(f"{sum(calls)} calls")
        used = [
            each.usage for each in self.clients if hasattr(getattr(each, "usage", None), "tokens")
        ]
        if used:
            parts.append(f"{sum(each.tokens for each in used)} tokens")
            known = [each.cost for each in used if each.cost is not None]
            parts.append(f"${sum(known):.4f}" if len(known) == len(used) else "cost unknown")
        return f" [{', '.join(parts)}]" if parts else ""
