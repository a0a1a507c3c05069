"""`NoiseWatch`: what simulated formats lose inside of a model, while it is tracked."""

from collections.abc import Callable
from dataclasses import replace

from torch import nn

from pullback.tracking.formats._model import SimulatedFormat
from pullback.tracking.formats._noise import NoiseMeter, QuantisationNoise, Sums, noise_between

__all__ = ["NoiseWatch"]


class _Part:
    """One simulated model: the modules that are wanted, and its meter's sums at both ends."""

    def __init__(self, meter: NoiseMeter, names: dict[str, str]) -> None:
        self.names = names  # the tracker's names by the meter's
        self._meter: NoiseMeter | None = meter
        self._before, self._after = meter.sums(), Sums()

    def stop(self) -> None:
        if self._meter is not None:
            self._after, self._meter = self._meter.sums(), None

    def result(self) -> list[QuantisationNoise]:
        after = self._after if self._meter is None else self._meter.sums()
        return [
            replace(each, module=self.names[each.module])
            for each in noise_between(self._before, after)
            if each.module in self.names
        ]


class NoiseWatch:
    """Reads the meters of the simulated models that are made with ``measure=True``.

    Nothing is added to them and nothing is read from a device before someone asks.
    """

    def __init__(self) -> None:
        self._parts: list[_Part] = []

    def start(self, model: nn.Module, choose: Callable[[str, nn.Module], bool]) -> None:
        """Begin with whatever simulated models there are in a model."""
        for path, part in model.named_modules():
            if not isinstance(part, SimulatedFormat) or part.meter is None:
                continue
            inside = f"{path}.model" if path else "model"
            names = {
                name: f"{inside}.{name}" if name else inside
                for name, module in part.model.named_modules()
                if choose(f"{inside}.{name}" if name else inside, module)
            }
            self._parts.append(_Part(part.meter, names))

    def stop(self) -> None:
        """End: what is measured later does not count."""
        for part in self._parts:
            part.stop()

    def result(self) -> tuple[QuantisationNoise, ...]:
        """What was lost meanwhile, in the order of appearance."""
        return tuple(each for part in self._parts for each in part.result())
