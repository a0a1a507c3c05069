"""How arguments hang together: items one after the other, and one that is made of another.

Which arguments are data and which are shared (weights, a temperature) nobody says. Data have as
many rows as the first output; where nothing else is known, every tensor may be, or the first alone.

A program makes some of one another: a matrix and its inverse, times and differences. Nothing in a
signature says so, and a backward may count on it: it answers for one of them with what all of them
change by, as that of a matrix does for its factor. Moved apart they are no arguments of the
Function. The one sign of it is an identity between the tensors that were given, which numbers do
not fulfil by chance. The control is to move them together, as the identity does.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from pullback.conformance.comparison._values import same_bits
from pullback.conformance.evidence._derivative import try_derivative
from pullback.conformance.inputs._arguments import Arguments, is_continuous, is_uniform
from pullback.conformance.inputs._structure import keep, ties_matrices
from pullback.conformance.probing._probe import Probe, Tensors

__all__ = ["Batch", "data", "derived", "right_together", "sharings", "with_more"]

_Made = Mapping[int, tuple[int, str]]  # by the position of each that is derived: of which, and how

_MAPS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "equal to": torch.clone,
    "the negative of": torch.neg,
    "the reciprocal of": torch.reciprocal,
    "the square of": torch.square,
    "the root of": torch.sqrt,
    "the exponential of": torch.exp,
    "the logarithm of": torch.log,
    "the transpose of": lambda x: x.mT,
    "the inverse of": torch.linalg.inv,
    "the factor of": torch.linalg.cholesky,
    "its transpose times": lambda x: x @ x.mH,
    **{
        f"{name} along dimension {dim} of": lambda x, made=made, dim=dim: made(x, dim)
        for dim in (0, -1)
        for name, made in {
            "the differences": lambda x, dim: x.diff(dim=dim),
            "the running sums": torch.cumsum,
            "the sums": torch.sum,
            "the means": torch.mean,
            "the lengths": lambda x, dim: torch.linalg.vector_norm(x, dim=dim),
            "the directions": lambda x, dim: torch.nn.functional.normalize(x, dim=dim),
            "the shares": torch.softmax,
        }.items()
    },
}
# Of so many entries an identity is none by chance, to the digits that float32 leaves of an inverse.
_FEWEST, _CLOSE = 3, 1e-4
_DIRECTIONS = 3


def derived(inputs: Arguments) -> _Made:
    """Which tensors are made of others among the arguments.

    Example:
        >>> a = torch.tensor([[2.0, 1.0], [0.0, 4.0]])
        >>> derived(Arguments.of((a, torch.linalg.inv(a))))
        {1: (0, 'the inverse of')}
    """
    found: dict[int, tuple[int, str]] = {}
    told = [k for k, x in enumerate(inputs.values)
            if is_continuous(x) and x.numel() >= _FEWEST and not is_uniform(x)
            and bool(x.isfinite().all())]  # fmt: skip
    for k, j in itertools.permutations(told, 2):
        if k in found or j in found:
            continue
        for name, made in _MAPS.items():
            with suppress(Exception):  # of another shape, or refused
                value, other = made(inputs.values[k]), inputs.values[j]
                least = _CLOSE * float(other.abs().max())
                if value.shape == other.shape and bool(((value - other).abs() <= least).all()):
                    found[j] = k, name
                    break
    return found


def right_together(probe: Probe) -> str:
    """What is made of what, where backward is right as long as it is so; an empty text elsewhere.

    All that is made of others moves as these do, what is no input of a derivative too: beside it
    backward may have answered for more than its share.
    """
    found = derived(probe.inputs)
    moving = sorted({*probe.inputs.differentiable, *found} - {*probe.inputs.owned})
    with suppress(Exception):  # refuses a gradient of one of them
        there = replace(probe, inputs=probe.inputs.with_differentiable(moving))
        steps = (_together(there, found, number) for number in range(_DIRECTIONS))
        if found and all(try_derivative(there, 0, step=s).match == "match" for s in steps):
            paths = probe.inputs.paths
            return " and ".join(f"{paths[j]} is {how} {paths[k]}" for j, (k, how) in found.items())
    return ""


def _together(probe: Probe, found: _Made, number: int) -> Tensors:
    """A direction along which what is derived moves as what it is derived from does."""
    step = probe.direction(f"together {number}")
    places = {k: place for place, k in enumerate(probe.inputs.differentiable)}
    for j, (k, name) in found.items():
        root = probe.inputs.values[k]
        moves = step[places[k]] if k in places else torch.zeros_like(root)
        step[places[j]] = torch.func.jvp(_MAPS[name], (root,), (moves,))[1]
    return step


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


def with_more(given: Arguments, other: Arguments, chosen: Sequence[int]) -> Arguments:
    """The arguments with the rows of others after their own, in the chosen tensors."""
    return given.with_some({k: torch.cat([given.values[k], other.values[k]]) for k in chosen})


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
            given = with_more(given, near, chosen)
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

        other = self.probe.at(self.probe.inputs.changed(self.chosen, take))
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
