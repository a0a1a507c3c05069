"""`watch_training`: name each parameter that trains no more while a program runs.

torch calls hooks around the step of every optimiser. At the first steps of each the program is
followed closely (`Flow`); later only the parameters that have had no gradient yet are looked at,
and all of them at the steps 4, 8, 16, 32, and every 64th. So an expert that is chosen rarely is
heard when it is, and the watch costs next to nothing.

This file is also loaded by path into programs that have no pullback (``_recorder.py``).
"""

import math
import re
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from pullback.recording.training._finding import STEPS, ParameterFinding
from pullback.recording.training._flow import Flow
from pullback.recording.training._leaves import Leaf, Leaves

__all__ = ["TrainingWatch", "watch_training"]

_CLOSE = 3  # steps of each optimiser that are followed closely
_EVERY = 64


class TrainingWatch:
    """Watches the training of a program; true where nothing is wrong. See `watch_training`.

    Arguments:
        modules: models that exist already.
        looked: called when all parameters were looked at: what is known now may have changed.

    Attributes:
        steps: how many steps optimisers have made.
        fault: why the watch gave up, or an empty text; the program is not disturbed.
    """

    def __init__(
        self, *modules: torch.nn.Module, looked: Callable[[], None] = lambda: None
    ) -> None:
        self._looked = looked
        self.steps = 0
        self.fault = ""
        self._leaves = Leaves(modules)
        self._flow = Flow(self._leaves)
        self._seen: list[Leaf] = []  # each that was looked at
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._suspects: weakref.WeakKeyDictionary[Any, list[Leaf]] = weakref.WeakKeyDictionary()
        self._opened = 0  # the step at which the program was followed closely again
        self._hooks = ExitStack()

    def __enter__(self) -> "TrainingWatch":
        before = register_optimizer_step_pre_hook(self._before_step)
        after = register_optimizer_step_post_hook(self._after_step)
        for hook in (before, after, *self._leaves.watch()):
            self._hooks.enter_context(hook)
        self._flow.enter()
        return self

    def __exit__(self, *reason: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Watch no more."""
        self._flow.leave()
        self._hooks.close()

    @property
    def findings(self) -> tuple[ParameterFinding, ...]:
        """What is wrong, as far as it is known now."""
        return tuple(self._find())

    def __iter__(self) -> Iterator[ParameterFinding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __bool__(self) -> bool:
        return not self.findings

    def __str__(self) -> str:
        found = self.findings
        if found:
            return "\n".join(map(str, found))
        if self.fault:
            return f"The training could not be watched: {self.fault}"
        if not self.steps:
            return "No optimiser made a step."
        return f"Every parameter that an optimiser holds trains, in {self.steps} steps."

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """What an optimiser computes by itself is no training; its closure is."""
        flow = self._flow
        flow.paused = True

        def follow(closure: Any) -> Any:
            def followed(*arguments: Any, **keywords: Any) -> Any:
                flow.paused = False
                try:
                    return closure(*arguments, **keywords)
                finally:
                    flow.paused = True

            # A model in its place is not to be another object.
            is_one = callable(closure) and not isinstance(closure, torch.nn.Module)
            return followed if is_one else closure

        named = {name: follow(kwargs[name]) for name in kwargs if name == "closure"}
        return (*args[:1], *map(follow, args[1:2]), *args[2:]), {**kwargs, **named}

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        try:  # what is looked at here is no part of the program either
            if not self.fault:
                self._stepped(optimizer)
        finally:
            self._flow.paused = False

    def _stepped(self, optimizer: Any) -> None:
        self.steps += 1
        self._flow.patience = math.inf
        count = self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        close = count <= _CLOSE or count & (count - 1) == 0 or count % _EVERY == 0
        if not close and not self._flow.entered and not self._suspects[optimizer]:
            return  # as at almost every step of a sound program, in microseconds
        try:
            with torch.no_grad():
                self._look(optimizer, count, close=close)
        except Exception as error:  # the program must run on
            self.fault = f"{type(error).__name__}: {error}"
            self._flow.leave()

    def _look(self, optimizer: Any, count: int, *, close: bool) -> None:
        free = self._leaves.named() if close else []
        looked = self._held(optimizer) if close else self._suspects[optimizer]
        for leaf in looked:
            leaf.look(count)
        self._suspects[optimizer] = [leaf for leaf in looked if not leaf.first]
        for parameter, owner in free:
            self._look_at_free(parameter, owner, count)
        if close and not any(leaf.not_finite for leaf in self._seen):
            for leaf in looked:  # who was first: soon all are, for its sake
                leaf.not_finite = count * (not leaf.finite)
        if close:
            self._looked()
        flow = self._flow
        # Of those that a backward pass reached, and that had nothing of it: where does it stop?
        asked = {leaf.bit for suspects in self._suspects.values() for leaf in suspects}
        flow.stops.wanted = sum(asked) & flow.reached
        # An optimiser that is never used again does not keep the watch awake.
        patient = self.steps - self._opened < 4 * _CLOSE * len(self._counts)
        if not patient or all(number >= _CLOSE for number in self._counts.values()):
            flow.leave()
        elif not flow.entered:
            self._opened = self.steps
            flow.enter()

    def _held(self, optimizer: Any) -> list[Leaf]:
        """The parameters of an optimiser; one that it did not hold before is looked at anew."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for place, parameter in enumerate(parameters):
            leaf = self._leaves[parameter]
            if not leaf.optimizer:
                if leaf.steps:
                    self._seen.remove(leaf)
                leaf = self._leaves[parameter] = replace(leaf, optimizer=id(optimizer))
                shape = tuple(parameter.shape)
                unnamed = f"parameter {place} of {type(optimizer).__name__}, of shape {shape}"
                leaf.name = leaf.name or unnamed
                self._seen.append(leaf)
        return [self._leaves[parameter] for parameter in parameters]

    def _look_at_free(self, parameter: Any, owner: Any, count: int) -> None:
        """A parameter that gets gradients, and that no optimiser was seen to hold."""
        leaf = self._leaves[parameter]
        if parameter.grad is not None and parameter.requires_grad and not leaf.optimizer:
            if not leaf.steps:
                self._seen.append(leaf)
            leaf.look(count)
            leaf.excused = leaf.excused or not owner.training

    def _find(self) -> Iterator[ParameterFinding]:
        free = [
            leaf
            for leaf in self._seen
            if not (leaf.optimizer or leaf.excused) and leaf.alive >= STEPS["not held"]
        ]
        rare = self._rarely_used()
        for leaf in self._seen:
            if leaf.not_finite:
                yield ParameterFinding(leaf.name, "not finite", f"at step {leaf.not_finite}")
            fine = leaf.not_finite or leaf.first or leaf.excused or _pattern(leaf.name) in rare
            if leaf.optimizer and leaf.steps and not fine:
                yield from self._dead(leaf, free)
        for leaf in free:
            yield ParameterFinding(leaf.name, "not held", f"at {leaf.alive} of the steps looked at")

    def _dead(self, leaf: Leaf, free: list[Leaf]) -> Iterator[ParameterFinding]:
        """What is to be said of a parameter that never had a gradient, if it is enough."""
        detail = f"at each of {leaf.steps} steps"
        flow, reached = self._flow, self._flow.reached & leaf.bit
        # The first cut upon which a loss depends; or by which a value left torch.
        cuts = [cut for cut in flow.cuts.values() if cut.leaves & leaf.bit]
        cuts = [c for c in cuts if c.bit & flow.decisive] or [c for c in cuts if c.left]
        if cuts and not reached:
            if leaf.steps >= STEPS["cut"]:
                yield ParameterFinding(leaf.name, "cut", detail, cuts[0].operation, cuts[0].place)
            return
        stops = (where for bits, *where in flow.stops.found if bits & leaf.bit)
        operation, place = next(stops, ("", ""))
        kind = "zero" if leaf.nothing < leaf.steps else "cut" if operation else "unused"
        others = (item for item in self._seen if item.optimizer == leaf.optimizer)
        if kind == "unused" and all(item.nothing == item.steps for item in others):
            kind = "no gradient"
        if leaf.steps < STEPS[kind]:
            return
        if not flow.roots or flow.fault:
            detail += f" (what is computed was not followed: {flow.fault or 'not seen'})"
        if kind == "no gradient" and reached:
            detail += " (backward reached it: what it had was cleared before the step)"
        # The parameter without an optimiser that stands where one without a use stood.
        shaped = [item for item in free if item.shape == leaf.shape]
        taken = [item for item in shaped if item.name == leaf.name] or shaped
        if taken and kind in ("unused", "no gradient"):
            free.remove(taken[0])
            yield ParameterFinding(taken[0].name, "replaced", "so that it does not train")
            return
        yield ParameterFinding(leaf.name, kind, detail, operation, place)

    def _rarely_used(self) -> set[str]:
        """Patterns of names, numbers left out, of what is routed: siblings come to life in turn."""
        firsts: dict[str, set[int]] = {}
        for leaf in self._seen:
            if leaf.optimizer and leaf.first and "*" in _pattern(leaf.name):
                known = firsts.setdefault(_pattern(leaf.name), set())
                known |= {leaf.first, 0 if leaf.lapsed else leaf.first}
        return {pattern for pattern, steps in firsts.items() if len(steps) > 1}


def watch_training(*modules: torch.nn.Module) -> TrainingWatch:
    """Watch how a program trains, and name each parameter that does not.

    Named are parameters that an optimiser holds and that are *cut* (used, but the gradient ends at
    an operation, whose file and line are given), *unused* (in no loss), *zero* (the gradient is
    exactly zero at every step), *not finite*; those that get gradients and are *not held* by any
    optimiser, though their module is in training mode and nobody else changes them; and those that
    were *replaced* after the optimiser was made. What does not require gradients is frozen, and
    nothing is said of it.

    The first three steps of each optimiser are followed closely; what is compiled runs eagerly
    there. A parameter is judged after two steps or more, a zero gradient after five.

    Arguments:
        modules: models that exist already, so that their parameters have names even where the
            models are never called; others are met when they are made or called.

    Returns:
        A context manager that is also the result: iterate over it for `ParameterFinding`, print it,
        ask whether it is true (nothing is wrong). It never raises into the program.

    Example:
        >>> import torch
        >>> class Net(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.body, self.head = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
        ...     def forward(self, x):
        ...         return self.head(self.body(x).detach())
        >>> with watch_training() as training:
        ...     net = Net()
        ...     optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        ...     for _ in range(3):
        ...         net(torch.randn(4, 2)).sum().backward()
        ...         optimizer.step()
        >>> [(finding.name, finding.operation) for finding in training]
        [('Net.body.weight', '.detach()'), ('Net.body.bias', '.detach()')]
    """
    return TrainingWatch(*modules)


def _pattern(name: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", name)
