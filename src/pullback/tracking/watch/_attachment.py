"""`Attachment`: hang a store's hooks on a model, and take every one of them off again."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from fnmatch import fnmatchcase

import torch
from torch import nn

from pullback.errors import ArgumentTypeError
from pullback.tracking.formats import QuantisationNoise, SimulatedFormat
from pullback.tracking.formats._noise import NoiseMeter, Sums, noise_between
from pullback.tracking.watch._hang import Hung, Mark
from pullback.tracking.watch._hooks import BeginHook, EndHook, OutputHook, Sightings
from pullback.tracking.watch._store import Store

__all__ = ["ROOT", "Attachment", "Names", "choose_by"]

ROOT = "(root)"

Choose = Callable[[str, nn.Module], bool]


Names = str | Iterable[str] | Choose | None


def choose_by(names: Names) -> Choose:
    """Whether a module is meant, by patterns of names or by a function; all of them by default.

    Raises:
        ArgumentTypeError: patterns that are no text, or a function of other arguments.
    """
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


class NoiseWatch:
    """Reads the meters of the simulated models that are made with ``measure=True``.

    Nothing is added to them, and nothing is read from a device before the end or before someone
    asks.
    """

    def __init__(self) -> None:
        self._ended: tuple[QuantisationNoise, ...] = ()
        # The tracker's names by the meter's, and what the meter had at the beginning.
        self._watched: list[tuple[dict[str, str], NoiseMeter, Sums]] = []

    def start(self, model: nn.Module, choose: Choose) -> None:
        """Begin with whatever simulated models there are in a model."""
        for path, part in model.named_modules():
            if isinstance(part, SimulatedFormat) and part.meter is not None:
                inside = f"{path}.model" if path else "model"
                names = {
                    name: full
                    for name, module in part.model.named_modules()
                    if choose(full := f"{inside}.{name}" if name else inside, module)
                }
                self._watched.append((names, part.meter, part.meter.sums()))

    def stop(self) -> None:
        """End: what is measured later does not count."""
        self._ended = self.result()
        self._watched.clear()

    def result(self) -> tuple[QuantisationNoise, ...]:
        """What was lost meanwhile, in the order of appearance."""
        found = (
            replace(each, module=names[each.module])
            for names, meter, before in self._watched
            for each in noise_between(before, meter.sums())
            if each.module in names
        )
        return (*self._ended, *found)


class Attachment:
    """The hooks of one store on any number of models."""

    def __init__(self, store: Store) -> None:
        self.sightings = Sightings(store)
        self.noise = NoiseWatch()
        self._store = store
        self._undo: list[Hung | Mark] = []
        self._watched: list[tuple[str, Hung]] = []
        store.between = self.sightings.clear

    @property
    def skipped(self) -> dict[str, str]:
        """Outputs that could not be measured, with the reason."""
        return self.sightings.skipped

    def attach(self, model: nn.Module, choose: Choose, prefix: str = "") -> int:
        """Hang hooks on a model and its modules; give how many modules are watched."""
        parts = [(prefix, model), *((prefix + name, part) for name, part in model.named_children())]
        for name, part in parts:
            if not isinstance(part, torch.jit.ScriptModule):
                begin = BeginHook(self._store, name, part is model)
                self._undo.append(Hung(part, begin, before=True))
        if not isinstance(model, torch.jit.ScriptModule):
            self._undo.append(Hung(model, EndHook(self._store), always_call=True))
        self.noise.start(model, lambda name, part: choose(prefix + name, part))
        watched = 0
        for path, module in model.named_modules():
            name = (prefix + path).rstrip(".") or ROOT
            if not choose(name, module):
                continue
            if isinstance(module, torch.jit.ScriptModule):
                self.sightings.skipped[name] = "a ScriptModule, which runs outside Python"
                continue
            hung = Hung(module, OutputHook(self.sightings, name))
            self._undo += hung, Mark(module)
            self._watched.append((name, hung))
            watched += 1
        return watched

    def detach(self) -> None:
        """Take off every hook, and name the modules whose hook somebody else has removed."""
        self.noise.stop()
        for name, hung in self._watched:
            if hung.is_lost:
                self.skipped[name] = "after somebody else removed its hook; its figures end there"
        while self._undo:
            self._undo.pop().remove()
        self._watched.clear()
        self.sightings.clear()
