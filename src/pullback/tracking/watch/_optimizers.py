"""What optimizers say: where a step of training ends, and what it does to parameters."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, Literal
from weakref import WeakSet

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.internal.torch import is_stepping, run_eagerly
from pullback.tracking._hang import Overlay
from pullback.tracking.run._identity import Key, Source
from pullback.tracking.watch._store import Store

__all__ = ["PARTS", "ParameterWatch", "Part", "StepWatch", "check_parts"]


def held_by(optimizer: Optimizer) -> set[int]:
    """The identities of the parameters that an optimizer steps."""
    return {id(each) for group in optimizer.param_groups for each in group["params"]}


class StepWatch:
    """Calls back at each step of an optimizer that holds one of some parameters, or of any.

    A gradient scaler skips the optimizer where it finds an infinity, and then no optimizer would
    say that the step is over; so a scaler's ``update`` ends the step too, for which ``ended`` gets
    ``None``. Two calls for one step must do no harm.
    """

    def __init__(
        self,
        parameters: Callable[[], Iterable[torch.Tensor]] | None,
        ended: Callable[[Any], None],
        scaler: Any = None,
        began: Callable[[Optimizer], None] = lambda optimizer: None,
        stepped: Callable[[Optimizer], None] = lambda optimizer: None,
    ) -> None:
        if scaler is not None and not hasattr(scaler, "update"):
            raise ArgumentTypeError(
                "The scaler cannot be followed.",
                given=type(scaler).__name__,
                expected="a torch.amp.GradScaler",
            )
        self._parameters = parameters
        self._began, self._stepped, self._ended = began, stepped, ended
        self._scaler = scaler
        self._ours: WeakSet[Optimizer] = WeakSet()  # looked at before: a model has many parameters
        self._running: Optimizer | None = None  # the outermost, until it ends
        self._undo = ExitStack()

    def start(self) -> None:
        """Listen from now on."""
        self._undo.callback(register_optimizer_step_pre_hook(self._before).remove)
        self._undo.callback(register_optimizer_step_post_hook(self._after).remove)
        if self._scaler is not None:
            self._undo.callback(Overlay(self._scaler, "update", self._updated).remove)

    def stop(self) -> None:
        """Stop listening, and leave the scaler as it was."""
        self._undo.close()
        self._scaler = self._parameters = None

    def loss_scale(self) -> torch.Tensor | None:
        """The scaler's factor as a tensor, where it lies; nothing before its first use."""
        return getattr(self._scaler, "_scale", None)

    def _before(self, optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
        # One may step another of the same parameters, as Lookahead does: what it does to them
        # afterwards belongs to the same step. Of one that raised nobody hears that it has ended.
        outer = self._running
        ended = outer is None or outer is optimizer or not is_stepping(outer)
        if ended or held_by(outer).isdisjoint(held_by(optimizer)):
            self._running = optimizer
            self._began(optimizer)

    def _updated(self) -> None:
        self._ended(None)

    def _after(self, optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
        if self._running is optimizer:
            self._running = None
        if self._running is not None:  # it was stepped by another one
            return
        self._stepped(optimizer)
        if self._scaler is not None:
            return  # its update comes after every optimizer of the step
        if self._parameters is not None and optimizer not in self._ours:
            if held_by(optimizer).isdisjoint(map(id, self._parameters())):
                return
            self._ours.add(optimizer)
        self._ended(optimizer)


_REASON = "A tracker notes the steps of optimizers outside of graphs."
run_eagerly(StepWatch._before, _REASON)
run_eagerly(StepWatch._after, _REASON)
run_eagerly(StepWatch._updated, _REASON)


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
                    if isinstance(value, torch.Tensor):
                        self._see_state(value.detach(), parameter, f"{name}[{part}]")

    def _see_state(self, value: torch.Tensor, parameter: torch.Tensor, name: str) -> None:
        """Measure a state of a parameter: of its shape, or of its rows or columns (Adafactor).

        A count of steps is no tensor of the training; LBFGS has those of all parameters in one.
        """
        if value.dim() <= parameter.dim() and all(
            size in (1, whole)
            for size, whole in zip(reversed(value.shape), reversed(parameter.shape), strict=False)
        ):
            if value.dim() or not parameter.dim():
                self._see(value, name, "state")
        else:
            self._store.skipped[name] = "a state of an optimizer that is not of its parameter alone"

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
