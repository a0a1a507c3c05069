"""Where a tracker hands each step: JSON lines, TensorBoard, Weights & Biases, or what you write.

A sink has ``write(observations)``, called at each flush with what was measured since the last one,
and ``close()``, called when the block ends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pullback.errors import ArgumentTypeError
from pullback.internal._extras import require
from pullback.internal._text import shown
from pullback.tracking.run._identity import Key, Observation, Sink
from pullback.tracking.run._recording import JsonLines

__all__ = ["JsonLines", "Sink", "TensorBoard", "WeightsAndBiases"]


def _scalars(observation: Observation) -> dict[str, float]:
    """What is drawn of a tensor, by its tag."""
    key, statistics = observation.key, observation.statistics
    head = f"{key}/{key.direction}"
    found = {
        f"{head}/scale": statistics.scale,
        f"{head}/max_abs": statistics.max_abs,
        f"{head}/zero_share": statistics.zeros / statistics.count if statistics.count else 0.0,
        f"{head}/nonfinite": float(statistics.count - statistics.finite),
    }
    for name, values in observation.measures.items():
        if values.ndim == 0:
            found[f"{head}/{name}"] = float(values)
    return found


def _check_takes(target: Any, name: str, call: str) -> None:
    if not callable(getattr(target, call.partition("(")[0], None)):
        raise ArgumentTypeError(
            f"Scalars cannot be written to this {name}.",
            given=f"{name}={shown(target)}",
            expected=f"anything with {call}",
        )


class _Scalars:
    """One point a step, added when the next one comes or the block ends.

    A large model hands on a step in parts. Microbatches are merged; of a statistic of one's own,
    which is of a kind that nobody knows, the last one's is taken.
    """

    def __init__(self) -> None:
        self._steps: dict[int, dict[Key, Observation]] = {}

    def write(self, observations: Sequence[Observation]) -> None:
        """Add the scalars of each step but the last, which may go on."""
        for each in observations:
            seen = self._steps.setdefault(each.place.step, {})
            known = seen.get(each.key)
            merged = known.statistics.merge(each.statistics) if known else each.statistics
            seen[each.key] = replace(each, statistics=merged)
        self._add_steps(sorted(self._steps)[:-1])

    def close(self) -> None:
        """Add what is left."""
        self._add_steps(sorted(self._steps))

    def _add_steps(self, steps: Sequence[int]) -> None:
        for step in steps:
            drawn = map(_scalars, self._steps.pop(step).values())
            self._add(step, {tag: value for each in drawn for tag, value in each.items()})

    def _add(self, step: int, scalars: Mapping[str, float]) -> None:
        raise NotImplementedError


class TensorBoard(_Scalars):
    """Scalars for TensorBoard: scale, largest ``|x|``, share of zeros, non-finite, and one's own.

    Each step is one point, its microbatches merged, added when the next step comes or the block
    ends; a statistic of one's own is that of the last microbatch.

    Arguments:
        target: a folder, for which the extra ``tensorboard`` is needed, or anything with
            ``add_scalar(tag, value, step)``, which is not closed.

    Raises:
        MissingExtraError: tensorboard is not installed.
        ArgumentTypeError: neither a folder nor what takes scalars.
    """

    def __init__(self, target: Any) -> None:
        self._own = isinstance(target, str | Path)
        if self._own:
            require("tensorboard", extra="tensorboard", purpose="Writing for TensorBoard")
            from torch.utils.tensorboard import SummaryWriter

            target = SummaryWriter(str(target))
        _check_takes(target, "target", "add_scalar(tag, value, step)")
        super().__init__()
        self._writer = target

    def close(self) -> None:
        """Add what is left, and close the writer, if it was made here."""
        super().close()
        if self._own:
            self._writer.close()

    def _add(self, step: int, scalars: Mapping[str, float]) -> None:
        for tag, value in scalars.items():
            self._writer.add_scalar(tag, value, step)


class WeightsAndBiases(_Scalars):
    """The same scalars for Weights & Biases, with the step of training beside them.

    Each step is logged once, when the next one comes or the block ends.

    Arguments:
        run: what ``wandb.init()`` returned, or anything with ``log(values)``; by default the run
            that is active, for which the extra ``wandb`` is needed. It is not finished here.

    Raises:
        MissingExtraError: wandb is not installed.
        ArgumentTypeError: what logs nothing.
    """

    def __init__(self, run: Any = None) -> None:
        if run is None:
            run = require("wandb", extra="wandb", purpose="Logging to Weights & Biases")
        _check_takes(run, "run", "log(values)")
        super().__init__()
        self._run = run

    def _add(self, step: int, scalars: Mapping[str, float]) -> None:
        # wandb's own step counts calls of log, which others make as well.
        self._run.log({**scalars, "pullback/step": step})
