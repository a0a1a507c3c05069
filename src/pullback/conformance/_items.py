"""Arguments that hold items one after the other: which they are, and others made of them.

Which arguments are data and which are shared (weights, a temperature) nobody says. Data have as
many rows as the first output; where nothing else is known, every tensor may be, or the first alone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from pullback.conformance._arguments import Arguments
from pullback.conformance._probe import Probe, Tensors
from pullback.conformance._structure import keep, ties_matrices
from pullback.conformance._values import same_bits

__all__ = ["Batch", "changed", "data", "sharings"]


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


@dataclass(frozen=True)
class Batch:
    """Rows for a batch, and what is asked of each."""

    probe: Probe  # the subject, at all the rows
    chosen: tuple[int, ...]  # the tensors that have them
    weights: Tensors  # the cotangent of each row of each output
    answers: Tensors  # the rows of outputs and gradients, all rows together
    outputs: int = 0  # how many of these are outputs

    @classmethod
    def of(cls, probe: Probe, chosen: tuple[int, ...]) -> "Batch":
        """All rows that were given, and rows close to them where these are fewer than three."""
        given, near = probe.inputs, probe.inputs.with_points(probe.neighbour(2))
        while len(given.values[chosen[0]]) < 3:
            pairs = zip(given.values, near.values, strict=True)
            given = given.with_values(
                [torch.cat([a, b]) if k in chosen else a for k, (a, b) in enumerate(pairs)]
            )
        probe = probe.at(given)
        made = cls(probe, chosen, probe.cotangents(probe.output_values()), [])
        answers = made.rows(torch.arange(made.count, device="cpu"))
        gradients = sum(k in chosen for k in given.differentiable)
        return replace(made, answers=answers, outputs=len(answers) - gradients)

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self.probe.inputs.values[self.chosen[0]])

    def rows(self, index: torch.Tensor, size: float = 1.0) -> Tensors:
        """Outputs and gradients of a batch of some rows; the first as it is, others by ``size``."""

        def take(value: torch.Tensor) -> torch.Tensor:
            part = value[index.to(value.device)]
            if size == 1.0 or not value.is_floating_point():
                return part
            part = torch.cat([part[:1], size * part[1:]])
            kept = keep(value, part)
            if kept is not None and not torch.equal(kept[:1], part[:1]):
                raise ValueError("The first row would be another one.")  # as where rows rise
            return part if kept is None else kept

        other = self.probe.at(changed(self.probe.inputs, self.chosen, take))
        leaves = other.leaves()
        outputs = other.evaluate(leaves)
        # What has no row for each item says nothing of items, and its gradient is left out.
        has_rows = [y.ndim > 0 and len(y) == len(index) for y in outputs]
        cotangents = [
            w[index.to(w.device)] if found else torch.zeros_like(y)
            for y, w, found in zip(outputs, self.weights, has_rows, strict=True)
        ]
        gradients = other.pull(leaves, cotangents, outputs)
        found = [y.detach() for y, rows in zip(outputs, has_rows, strict=True) if rows]
        wanted = zip(self.probe.inputs.differentiable, gradients, strict=True)
        return found + [g.detach() for k, g in wanted if k in self.chosen]

    def differs(self, index: torch.Tensor, size: float = 1.0) -> tuple[int, bool]:
        """Which answer to the first or, at size 1, any row is another than in the whole batch.

        -1 for none; and whether all have the same bits.
        """
        got = self.rows(index, size)
        last = 1 if size != 1.0 else len(index)
        expected = [a[index[:last].to(a.device)] for a in self.answers]
        got = [a[:last] for a in got]
        place = self.probe.differ(got, expected, looser=1e3)
        exact = all(same_bits(a, b) for a, b in zip(got, expected, strict=True))
        return (-1 if place is None else place), exact
