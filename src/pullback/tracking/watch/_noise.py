"""`NoiseWatch`: what simulated formats lose inside of a model, while it is tracked."""

from collections.abc import Callable
from dataclasses import replace

from torch import nn

from pullback.tracking.formats._model import SimulatedFormat
from pullback.tracking.formats._noise import NoiseMeter, QuantisationNoise, Sums, noise_between

__all__ = ["NoiseWatch"]


class NoiseWatch:
    """Reads the meters of the simulated models that are made with ``measure=True``.

    Nothing is added to them, and nothing is read from a device before the end or before someone
    asks.
    """

    def __init__(self) -> None:
        self._ended: tuple[QuantisationNoise, ...] = ()
        # The tracker's names by the meter's, and what the meter had at the beginning.
        self._watched: list[tuple[dict[str, str], NoiseMeter, Sums]] = []

    def start(self, model: nn.Module, choose: Callable[[str, nn.Module], bool]) -> None:
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
