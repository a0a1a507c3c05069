"""Arguments that hold items one after the other: which they are, and others made of them.

Which arguments are data and which are shared (weights, a temperature) nobody says. Data have as
many rows as the first output; where nothing else is known, every tensor may be, or the first alone.
"""

from collections.abc import Callable, Iterator, Sequence

import torch

from pullback.conformance._arguments import Arguments
from pullback.conformance._probe import Probe
from pullback.conformance._structure import ties_matrices

__all__ = ["changed", "data", "sharings"]


def data(probe: Probe) -> tuple[int, ...]:
    """The positions of the tensors with as many rows as the first output; none where it has none.

    Rows of a matrix that is symmetric, triangular or the like are no items.
    """
    outputs = probe.output_values()
    count = outputs[0].shape[0] if outputs and outputs[0].ndim else -1
    values = probe.inputs.values
    found = tuple(k for k, v in enumerate(values) if v.ndim and v.shape[0] == count)
    tied = any(values[k].ndim == 2 and ties_matrices(values[k]) for k in found)
    return () if tied or not set(found) & set(probe.inputs.differentiable) else found


def sharings(probe: Probe) -> Iterator[tuple[int, ...]]:
    """Each choice of the tensors that may be data, the likeliest first."""
    every = tuple(range(len(probe.inputs.values)))
    choices = [data(probe), every, probe.inputs.differentiable[:1]]
    yield from dict.fromkeys(choice for choice in choices if choice)


def changed(
    inputs: Arguments, chosen: Sequence[int], change: Callable[[torch.Tensor], torch.Tensor]
) -> Arguments:
    """The arguments with the chosen tensors changed."""
    return inputs.with_values(
        [change(v) if k in chosen else v for k, v in enumerate(inputs.values)]
    )
