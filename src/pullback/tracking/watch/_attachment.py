"""`Attachment`: hang a store's hooks on a model, and take every one of them off again."""

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from pullback.errors import ArgumentTypeError
from pullback.tracking._hang import Hook, Hung, Overlay
from pullback.tracking.formats import QuantisationNoise, SimulatedFormat
from pullback.tracking.formats._noise import NoiseMeter, Sums, noise_between
from pullback.tracking.watch._blocks import factor_keys
from pullback.tracking.watch._hooks import ROOT, Sightings
from pullback.tracking.watch._store import Store
from pullback.tracking.watch._track import begin_operator, in_backward

__all__ = ["Attachment", "Names", "choose_by"]

Choose = Callable[[str, nn.Module], bool]


Names = str | Iterable[str] | Choose | None


def choose_by(names: Names) -> Choose:
    """Whether a module is meant, by patterns of names or by a function; all of them by default."""
    if names is None:
        return lambda name, module: True
    patterns = (names,) if isinstance(names, str) else () if callable(names) else tuple(names)
    if not (_takes_two(names) if callable(names) else all(isinstance(p, str) for p in patterns)):
        raise ArgumentTypeError(
            "Names are patterns.",
            given=f"names={names!r}",
            expected="text, several texts, or a function of name and module",
        )
    if callable(names):
        return names
    return lambda name, module: any(fnmatchcase(name, pattern) for pattern in patterns)


def _takes_two(function: Choose) -> bool:
    """Whether a function takes a name and a module, as far as its signature can be known."""
    try:
        inspect.signature(function).bind("", nn.Identity())
    except ValueError:  # it has none
        return True
    except TypeError:
        return False
    return True


class Attachment:
    """The hooks of one store on any number of models."""

    def __init__(self, store: Store) -> None:
        self.sightings = Sightings(store)
        self._store = store
        self._undo: list[Hung | Overlay] = []
        self._watched: list[tuple[str, Hung]] = []
        self._noise: tuple[QuantisationNoise, ...] = ()
        # Of simulated models: our names by their meter's, and what it had at the beginning.
        self._meters: list[tuple[dict[str, str], NoiseMeter, Sums]] = []
        store.between = self.sightings.clear

    def attach(self, model: nn.Module, choose: Choose, prefix: str = "") -> int:
        """Hang hooks on a model and its modules; give how many modules are watched."""
        parts = [(prefix, model), *((prefix + name, part) for name, part in model.named_children())]
        for name, part in parts:
            if not isinstance(part, torch.jit.ScriptModule):
                begin = functools.partial(self._begin, name, part is model)
                traced = functools.partial(self._trace_begin, name) if part is model else None
                self._undo.append(Hung(part, Hook(begin, traced), before=True))
        if not isinstance(model, torch.jit.ScriptModule):
            self._undo.append(Hung(model, Hook(self._end), always_call=True))
        watched = 0
        for path, module in model.named_modules():
            name = (prefix + path).rstrip(".") or ROOT
            if isinstance(module, SimulatedFormat) and module.meter is not None:
                self._meet(module, module.meter, path, lambda n, part: choose(prefix + n, part))
            if not choose(name, module):
                continue
            if isinstance(module, torch.jit.ScriptModule):
                self._store.skipped[name] = "a ScriptModule, which runs outside Python"
                continue
            take = functools.partial(self._take, name), functools.partial(self._trace, name)
            hung = Hung(module, Hook(*take))
            self._undo += hung, Overlay(module, "forward")
            self._watched.append((name, hung))
            watched += 1
        return watched

    def detach(self) -> None:
        """Take off every hook, and name the modules whose hook somebody else has removed."""
        self._noise = self.noise()
        self._meters.clear()
        for name, hung in self._watched:
            if hung.is_lost:
                reason = "after somebody else removed its hook; its figures end there"
                self._store.skipped[name] = reason
        while self._undo:
            self._undo.pop().remove()
        self._watched.clear()
        self.sightings.clear()

    def noise(self) -> tuple[QuantisationNoise, ...]:
        """What simulated formats have lost while they were watched, in the order of appearance.

        Nothing is read from a device before the end or before someone asks.
        """
        found = (
            replace(each, module=names[each.module])
            for names, meter, before in self._meters
            for each in noise_between(before, meter.sums())
            if each.module in names
        )
        return (*self._noise, *found)

    def _meet(self, model: SimulatedFormat, meter: NoiseMeter, path: str, choose: Choose) -> None:
        """Begin with the meter of a simulated model that is made with ``measure=True``."""
        inside = f"{path}.model" if path else "model"
        names = {
            name: full
            for name, module in model.model.named_modules()
            if choose(full := f"{inside}.{name}" if name else inside, module)
        }
        self._meters.append((names, meter, meter.sums()))

    def _begin(self, root: str, whole: bool, module: nn.Module, inputs: Any) -> None:
        """Before the forward of a model, or of a part that is called by itself: a pass begins.

        A Lightning module, for one, is never called; its ``training_step`` calls its parts. Parts
        begin nothing until the forward of the ``whole`` model is over.
        """
        if not in_backward() and (whole or not self._store.inside):
            self._store.begin(root, module.training)
            self._store.inside = whole

    def _trace_begin(self, root: str, module: nn.Module, inputs: Any) -> None:
        begin_operator(self._store.handle, root, module.training)

    def _end(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """After a model's forward: its parts may be called by themselves again."""
        self._store.inside = False

    def _take(self, name: str, module: nn.Module, inputs: Any, output: Any) -> Any:
        """After a module's forward: measure what it returned."""
        if not self._store.active:
            self._store.touched = True
            return None
        if self._store.measures.blocks:
            self._take_factors(name, module, inputs)
        return self.sightings.take(output, name, inputs)

    def _trace(self, name: str, module: nn.Module, inputs: Any, output: Any) -> Any:
        return self.sightings.trace(output, name)

    def _take_factors(self, name: str, module: nn.Module, inputs: Any) -> None:
        """Measure what a layer multiplies: a matrix of its own, and its first input."""
        weight = getattr(module, "weight", None)
        values = inputs[0] if isinstance(inputs, tuple) and inputs else None
        if not (isinstance(weight, torch.Tensor) and weight.dim() == 2):
            return
        if isinstance(values, torch.Tensor) and values.is_floating_point():  # not an embedding
            keys = factor_keys(name)
            self._store.observe_factor(values, keys["activation"])
            self._store.observe_factor(weight, keys["weight"])
