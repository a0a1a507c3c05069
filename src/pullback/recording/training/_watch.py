"""`watch_training`: name each parameter that trains no more while a program runs.

torch calls hooks around the step of every optimiser. At the first steps of each the program is
followed closely (`Flow`, `Stops`); later only the parameters that have had no gradient yet are
looked at, and all of them at the steps 4, 8, 16, 32, and every 64th. So an expert that is chosen
rarely is heard when it is, and the watch costs next to nothing.

This file is also loaded by path into programs that have no pullback (``_recorder.py``).
"""

import re
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from pullback.recording.training._finding import STEPS, ParameterFinding
from pullback.recording.training._flow import Cut, Flow, bits
from pullback.recording.training._names import Names
from pullback.recording.training._stops import Stops

__all__ = ["TrainingWatch", "watch_training"]

_CLOSE = 3  # steps of each optimiser that are followed closely
_PATIENCE = 20_000  # functions of torch without a step: a program that does not train
_EVERY = 64
_SAMPLE = 16  # entries of a parameter by which one sees that somebody changes it


@dataclass
class _Held:
    """A parameter that an optimiser holds; what is known of it outlives it."""

    parameter: Any
    name: str
    bit: int
    shape: Any
    optimizer: int
    sample: Any = None
    steps: int = 0
    nothing: int = 0
    first: int = 0
    lapsed: bool = False
    not_finite: int = 0
    moved: bool = False  # though it had no gradient: its optimiser asks for none


@dataclass
class _Free:
    """A parameter that gets gradients, and that no optimiser was seen to hold."""

    parameter: Any
    name: str
    shape: Any
    sample: Any
    steps: int = 0
    left_alone: bool = True  # in evaluation mode it is meant as it is; or somebody changes it


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
        self._names = Names(modules)
        self._flow = Flow(self._before_backward)
        self._stops = Stops(self._flow.bit)
        self._held: dict[int, _Held] = {}
        self._free: dict[int, _Free] = {}
        self._every: list[_Held] = []
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._suspects: weakref.WeakKeyDictionary[Any, list[_Held]] = weakref.WeakKeyDictionary()
        self._opened = 0  # the step at which the program was followed closely again
        self._handles: list[Any] = []
        self._forward: Any = None
        self._found: tuple[ParameterFinding, ...] | None = None

    def __enter__(self) -> "TrainingWatch":
        self._found = None
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        self._names.start()
        self._open()
        return self

    def __exit__(self, *reason: object) -> None:
        self.leave()
        self._found = tuple(self._find())

    def leave(self) -> None:
        """Watch no more."""
        self._close()
        self._names.stop()
        while self._handles:
            self._handles.pop().remove()

    @property
    def findings(self) -> tuple[ParameterFinding, ...]:
        """What is wrong, as far as it is known now."""
        return tuple(self._find()) if self._found is None else self._found

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

    def _open(self) -> None:
        if not self._flow.entered:
            self._opened = self.steps
            self._flow.enter()
            self._forward = register_module_forward_pre_hook(self._before_forward)

    def _close(self) -> None:
        self._flow.leave()
        self._stops.clear()
        if self._forward is not None:
            self._forward.remove()
            self._forward = None

    def _before_forward(self, module: Any, given: Any) -> None:
        self._names.meet(module)
        self._flow.run_eagerly()
        if not self.steps and self._flow.seen > _PATIENCE:
            self._close()

    def _before_backward(self, roots: list[Any]) -> None:
        self._stops.watch(roots)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """What an optimiser computes by itself is no training; its closure is."""
        flow = self._flow
        flow.paused = True
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            return None

        def followed(*arguments: Any, **keywords: Any) -> Any:
            flow.paused = False
            try:
                return closure(*arguments, **keywords)
            finally:
                flow.paused = True

        if "closure" in kwargs:
            return args, {**kwargs, "closure": followed}
        return (args[0], followed, *args[2:]), kwargs

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._flow.paused = False
        if self.fault:
            return
        self.steps += 1
        count = self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        close = count <= _CLOSE or count & (count - 1) == 0 or count % _EVERY == 0
        if not close and not self._flow.entered and not self._suspects[optimizer]:
            return  # as at almost every step of a sound program, in microseconds
        try:
            with torch.no_grad():
                self._look(optimizer, count, close=close)
        except Exception as error:  # the program must run on
            self.fault = f"{type(error).__name__}: {error}"
            self._close()

    def _look(self, optimizer: Any, count: int, *, close: bool) -> None:
        if close:
            named = self._names.update()
            self._look_at_all(optimizer, count)
            self._look_at_free(named)
            self._looked()
        else:
            for held in self._suspects[optimizer]:
                self._look_at_one(held, count)
            self._suspects[optimizer] = [h for h in self._suspects[optimizer] if not h.first]
        # Of those that a backward pass reached, and that had nothing of it: where does it stop?
        asked = {held.bit for suspects in self._suspects.values() for held in suspects}
        self._stops.wanted = sum(asked) & self._flow.reached
        # An optimiser that is never used again does not keep the watch awake.
        patient = self.steps - self._opened < 4 * _CLOSE * len(self._counts)
        if patient and any(number < _CLOSE for number in self._counts.values()):
            self._open()
        else:
            self._close()

    def _look_at_all(self, optimizer: Any, count: int) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        every, gradients = [], []
        for place, parameter in enumerate(parameters):
            held = self._hold(optimizer, place, parameter)
            held.name = self._names.name_of(parameter) or held.name
            every.append(held)
            self._look_at_one(held, count)
            if parameter.grad is not None:
                gradients.append((held, _dense(parameter.grad)))
            elif type(parameter) is torch.nn.Parameter:  # others may lie on several ranks
                held.moved = held.moved or not torch.equal(held.sample, _sample(parameter))
        self._suspects[optimizer] = [held for held in every if not held.first]
        known = any(held.not_finite for held in self._every)  # soon all are, for the first's sake
        norm = torch.nn.utils.get_total_norm([gradient for _, gradient in gradients])
        if not known and not norm.isfinite():
            for held, gradient in gradients:  # the norm alone may have overflowed
                held.not_finite = 0 if gradient.isfinite().all() else count

    def _hold(self, optimizer: Any, place: int, parameter: Any) -> _Held:
        held = self._held.get(id(parameter))
        if held is None or held.parameter() is not parameter:
            shape = parameter.shape
            label = f"parameter {place} of {type(optimizer).__name__}, of shape {tuple(shape)}"
            sample = _sample(parameter) if type(parameter) is torch.nn.Parameter else None
            bit = self._flow.bit(parameter)
            held = _Held(weakref.ref(parameter), label, bit, shape, id(optimizer), sample)
            self._held[id(parameter)] = held
            self._every.append(held)
            self._free.pop(id(parameter), None)
        return held

    def _look_at_one(self, held: _Held, count: int) -> None:
        parameter = held.parameter()
        if parameter is None or not parameter.requires_grad:
            return
        held.steps += 1
        gradient = parameter.grad
        alive = gradient is not None and bool((_dense(gradient) != 0).any())
        held.nothing += gradient is None
        if alive and not held.first:
            held.first = count
        held.lapsed = held.lapsed or bool(held.first and not alive)

    def _look_at_free(self, named: list[tuple[str, Any, Any]]) -> None:
        for name, parameter, owner in named:
            if parameter.grad is None or not parameter.requires_grad or id(parameter) in self._held:
                continue
            free = self._free.get(id(parameter))
            if free is None or free.parameter() is not parameter:
                free = _Free(weakref.ref(parameter), name, parameter.shape, _sample(parameter))
                self._free[id(parameter)] = free
            free.name = name
            free.steps += bool((_dense(parameter.grad) != 0).any())
            same = torch.equal(free.sample, _sample(parameter))
            free.left_alone = free.left_alone and owner.training and same

    def _find(self) -> Iterator[ParameterFinding]:
        free = [
            item
            for item in self._free.values()
            if item.left_alone and item.steps >= STEPS["not held"]
        ]
        rare = self._rarely_used()
        for held in self._every:
            if held.not_finite:
                yield ParameterFinding(held.name, "not finite", f"at step {held.not_finite}")
            elif not (held.first or held.moved) and held.steps and _pattern(held.name) not in rare:
                yield from self._dead(held, free)
        for item in free:
            yield ParameterFinding(item.name, "not held", f"at {item.steps} of the steps looked at")

    def _dead(self, held: _Held, free: list[_Free]) -> Iterator[ParameterFinding]:
        """What is to be said of a parameter that never had a gradient, if it is enough."""
        detail = f"at each of {held.steps} steps"
        cut = self._cut(held.bit)
        stop = self._stops.found.get(held.bit)
        if cut is not None and not self._flow.reached & held.bit:
            if held.steps >= STEPS["cut"]:
                yield ParameterFinding(held.name, "cut", detail, cut.operation, cut.place)
            return
        kind = "zero" if held.nothing < held.steps else "cut" if stop is not None else "unused"
        others = (item for item in self._every if item.optimizer == held.optimizer)
        if kind == "unused" and all(item.nothing == item.steps for item in others):
            kind = "no gradient"
        if held.steps < STEPS[kind]:
            return
        if not self._flow.roots or self._flow.fault:
            detail += f" (what is computed was not followed: {self._flow.fault or 'not seen'})"
        if kind == "no gradient" and self._flow.reached & held.bit:
            detail += " (backward reached it: what it had was cleared before the step)"
        taken = _successor(held, free) if kind in ("unused", "no gradient") else None
        if taken is not None:
            free.remove(taken)
            yield ParameterFinding(taken.name, "replaced", "so that it does not train")
            return
        operation, place = ("", "") if stop is None else (stop.operation, stop.place)
        yield ParameterFinding(held.name, kind, detail, operation, place)

    def _cut(self, bit: int) -> Cut | None:
        """The first cut of a leaf upon which a loss depends; or by which a value left torch."""
        cuts = self._flow.cuts
        decisive = [cuts[n] for n in bits(self._flow.decisive) if cuts[n].leaves & bit]
        left = [cut for cut in cuts if cut.left and cut.leaves & bit]
        return next(iter(decisive or left), None)

    def _rarely_used(self) -> set[str]:
        """Patterns of names, numbers left out, of what is routed: siblings come to life in turn."""
        firsts: dict[str, set[int]] = {}
        lapsed = set()
        for held in self._every:
            pattern = _pattern(held.name)
            if "*" in pattern and held.first:
                firsts.setdefault(pattern, set()).add(held.first)
                if held.lapsed:
                    lapsed.add(pattern)
        return lapsed | {pattern for pattern, steps in firsts.items() if len(steps) > 1}


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


def _dense(gradient: Any) -> Any:
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def _sample(parameter: Any) -> Any:
    return parameter.detach().flatten()[:_SAMPLE].clone()


def _pattern(name: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", name)


def _successor(held: _Held, free: list[_Free]) -> _Free | None:
    """The parameter without an optimiser that stands where one without a use stood."""
    shaped = [item for item in free if item.shape == held.shape]
    named = [item for item in shaped if item.name == held.name]
    return next(iter(named or shaped), None)
