"""Where a tracker hands each step: JSON lines, TensorBoard, Weights & Biases, or what you write.

A sink has ``write(observations)``, called at each flush with what was measured since the last one,
and ``close()``, called when the block ends.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pullback.internal._extras import require
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


class TensorBoard:
    """Scalars for TensorBoard: scale, largest ``|x|``, share of zeros, non-finite, and one's own.

    Arguments:
        target: a folder, for which the extra ``tensorboard`` is needed, or anything with
            ``add_scalar(tag, value, step)``, which is not closed.

    Raises:
        MissingExtraError: tensorboard is not installed.
    """

    def __init__(self, target: Any) -> None:
        self._own = isinstance(target, str | Path)
        if self._own:
            require("tensorboard", extra="tensorboard", purpose="Writing for TensorBoard")
            from torch.utils.tensorboard import SummaryWriter

            target = SummaryWriter(str(target))
        self._writer = target

    def write(self, observations: Sequence[Observation]) -> None:
        """Add the scalars of each."""
        for each in observations:
            for tag, value in _scalars(each).items():
                self._writer.add_scalar(tag, value, each.place.step)

    def close(self) -> None:
        """Close the writer, if it was made here."""
        if self._own:
            self._writer.close()


class WeightsAndBiases:
    """The same scalars for Weights & Biases, with the step of training beside them.

    Arguments:
        run: what ``wandb.init()`` returned, or anything with ``log(values)``; by default the run
            that is active, for which the extra ``wandb`` is needed. It is not finished here.

    Raises:
        MissingExtraError: wandb is not installed.
    """

    def __init__(self, run: Any = None) -> None:
        self._run = (
            require("wandb", extra="wandb", purpose="Logging to Weights & Biases")
            if run is None
            else run
        )

    def write(self, observations: Sequence[Observation]) -> None:
        """Log the scalars of each step at once, its microbatches merged."""
        seen: dict[tuple[int, Key], Observation] = {}
        for each in observations:
            before = seen.get((each.place.step, each.key))
            merged = each.statistics if before is None else before.statistics.merge(each.statistics)
            seen[each.place.step, each.key] = replace(each, statistics=merged)
        steps: dict[int, dict[str, float]] = {}
        for (step, _), each in seen.items():
            steps.setdefault(step, {}).update(_scalars(each))
        for step, values in steps.items():
            # wandb's own step counts calls of log, which others make as well.
            self._run.log({**values, "pullback/step": step})

    def close(self) -> None:
        """Nothing: the run belongs to the program."""
