"""`ParameterWatch`: what an optimizer does to parameters, seen at each of its steps."""

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import torch
from torch import nn
from torch.optim import Optimizer

from pullback.errors import ArgumentError, UnsupportedError
from pullback.tracking.run._identity import Key, Source
from pullback.tracking.watch._steps import held_by
from pullback.tracking.watch._store import Store

__all__ = ["PARTS", "ParameterWatch", "Part", "check_parts"]

Part = Literal["value", "gradient", "state", "update"]
PARTS: tuple[Part, ...] = ("value", "gradient", "state", "update")


def check_parts(parts: bool | Part | Iterable[Part]) -> tuple[Part, ...]:
    """All parts for true, none for false, or those that were named."""
    if isinstance(parts, bool):
        return PARTS if parts else ()
    named = {parts} if isinstance(parts, str) else set(parts)
    if not named <= set(PARTS):
        raise ArgumentError(
            "These are not parts of a parameter that can be measured.",
            given=f"parameters={parts!r}",
            expected=f"True, or some of {PARTS}",
        )
    return tuple(part for part in PARTS if part in named)


class ParameterWatch:
    """Measures parameters where an optimizer steps: as they are afterwards, and what moved them.

    An update is what a step adds, for which a copy of each parameter is kept while the step runs.
    """

    def __init__(
        self, store: Store, model: nn.Module, parts: tuple[Part, ...], wanted: Callable[[str], bool]
    ) -> None:
        self._store = store
        self._model: nn.Module | None = model
        self._parts = parts
        self._wanted = wanted
        self._before: dict[torch.Tensor, torch.Tensor] = {}

    def stop(self) -> None:
        """Measure nothing any more."""
        self._before.clear()
        self._model = None

    def _ours(self, optimizer: Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
        if self._model is None or not self._parts:
            return
        held = held_by(optimizer)
        for name, parameter in self._model.named_parameters():
            if id(parameter) in held and self._wanted(name):
                yield name, parameter

    def keep(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""
        if self._store.touched or any(True for _ in self._ours(optimizer)):
            self._store.begin_update(optimizer)
        if "update" in self._parts and self._store.moment_of_update is not None:
            self._before = {each: each.detach().clone() for _, each in self._ours(optimizer)}

    def measure(self, optimizer: Optimizer) -> None:
        """It has stepped."""
        if self._store.moment_of_update is None:
            return
        for name, parameter in self._ours(optimizer):
            before = self._before.pop(parameter, None)
            if "value" in self._parts:
                self._see(parameter.detach(), name, "parameter")
            if "gradient" in self._parts and parameter.grad is not None:
                self._see(_unscaled(parameter.grad, optimizer), name, "parameter", order=1)
            if "update" in self._parts and before is not None:
                self._see(parameter.detach() - before, f"{name}[update]", "update")
            if "state" in self._parts:
                for part, value in optimizer.state.get(parameter, {}).items():
                    # A count of steps is no tensor of the training.
                    if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                        self._see(value.detach(), f"{name}[{part}]", "state")

    def _see(self, values: torch.Tensor, name: str, source: Source, order: int = 0) -> None:
        key = Key(name, 0, "backward" if order else "forward", order, source=source)
        try:
            self._store.observe_update(values, key)
        except UnsupportedError as refusal:
            self._store.skipped[f"{name} (gradient)" if order else name] = refusal.what


def _unscaled(gradient: torch.Tensor, optimizer: Optimizer) -> torch.Tensor:
    """A gradient without the scale of a `GradScaler`, which a fused optimizer is left to take out.

    It does so where it steps, and leaves the scale where it skips the step.
    """
    scale, skipped = (getattr(optimizer, name, None) for name in ("grad_scale", "found_inf"))
    if scale is None or skipped is None:
        return gradient.detach()
    return gradient.detach().to(torch.float64) / torch.where(skipped > 0, scale, 1.0)
