"""Notice where a step of training ends, without being told."""

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any
from weakref import WeakSet

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from pullback.errors import ArgumentTypeError
from pullback.internal.torch import run_eagerly
from pullback.tracking._hang import Overlay

__all__ = ["Rounds", "StepWatch", "held_by"]

_PATIENCE = 64


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
        # afterwards belongs to the same step. One that raised never ends, and may begin again.
        outer = self._running
        if outer is None or outer is optimizer or held_by(outer).isdisjoint(held_by(optimizer)):
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


class Rounds:
    """Counts rounds of optimizers that take turns, such as the two of an adversarial network.

    A round is over once each optimizer that ever ended a step has ended one in it. One that has
    not come back while another ended 64 steps is no longer waited for.
    """

    def __init__(self) -> None:
        self.number = 0
        self._known: WeakSet[Any] = WeakSet()
        self._seen: Counter[int] = Counter()

    def end(self, by: Any) -> None:
        """Note that a step was ended by an optimizer, or by nobody in particular."""
        if by is None:
            self.number += 1
            return
        self._known.add(by)
        self._seen[id(by)] += 1
        if self._seen[id(by)] > _PATIENCE:
            self._known = WeakSet(other for other in self._known if id(other) in self._seen)
        if all(id(other) in self._seen for other in self._known):
            self.number += 1
            self._seen.clear()
