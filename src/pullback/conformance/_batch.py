"""Several inputs of one Function beside each other, for transforms that take a batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pullback.conformance._probe import Probe, Tensors

__all__ = ["Batch", "weigh"]

_BATCH = 3


@dataclass(frozen=True)
class Batch:
    """Items beside each other, with weights for their outputs and directions for their inputs.

    Arguments:
        probe: the subject; its own inputs are the first item.
        items: the inputs of each item.
        weights: the cotangents of each item's outputs.
        steps: a direction for each item's inputs.
    """

    probe: Probe
    items: list[Tensors]
    weights: list[Tensors]
    steps: list[Tensors]

    @classmethod
    def of(cls, probe: Probe) -> "Batch":
        """Three items close to each other."""
        items = [probe.point(number) for number in (0, *range(2, _BATCH + 1))]
        outputs = [probe.output_values(item) for item in items]
        return cls(
            probe,
            items,
            [probe.cotangents(ys, f"item {k}") for k, ys in enumerate(outputs)],
            [probe.direction(f"item {k}") for k in range(_BATCH)],
        )

    def stacked(self, which: Sequence[Tensors]) -> tuple[torch.Tensor, ...]:
        """The parts of every item, stacked along a first dimension."""
        return tuple(torch.stack(parts) for parts in zip(*which, strict=True))

    def slopes(self) -> Tensors:
        """The Function's own gradients, item by item."""
        pairs = zip(self.items, self.weights, strict=True)
        return list(self.stacked([self.probe.backward(item, w) for item, w in pairs]))

    def map(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`torch.func.vmap` of a function, over every argument."""
        return torch.func.vmap(function, randomness="same" if self.probe.random else "error")

    def loss(self, count: int) -> Callable[..., torch.Tensor]:
        """A scalar of the inputs, then of the weights of the outputs."""

        def total(*given: torch.Tensor) -> torch.Tensor:
            return weigh(self.probe.flat(*given[:count]), given[count:])

        return total


def weigh(outputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """The real sum of every entry of the outputs times its weight."""
    terms = [(w.conj() * y).real.sum() for w, y in zip(weights, outputs, strict=True)]
    return torch.stack([term.to(terms[0].dtype) for term in terms]).sum()
