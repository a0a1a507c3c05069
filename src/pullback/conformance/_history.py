"""Inputs as they come behind a first layer: with a history, and as views of other tensors."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from pullback.conformance._probe import Probe, Tensors

__all__ = ["Lost", "lost_with_history"]


class Lost(NamedTuple):
    """A gradient that is another one where inputs are no leaves.

    Arguments:
        place: the position of the input.
        what: what the input was made to be.
        source: how, as Python source for ``x``.
        expected: the gradient where it is a leaf.
        got: the gradient where it is not, or ``None``.
        cotangents: those of both.
    """

    place: int
    what: str
    source: str
    expected: torch.Tensor
    got: torch.Tensor | None
    cotangents: Tensors


_WAYS: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "has a history": ("x * 1", lambda x: x * 1),
    "is a view": ("x.view_as(x)", lambda x: x.view_as(x)),
    "is a view of a result": ("torch.stack([x, x])[0]", lambda x: torch.stack([x, x])[0]),
}


def lost_with_history(probe: Probe) -> Lost | None:
    """Compare gradients of leaves with those of tensors of the same numbers that are no leaves.

    Returns:
        The first that differs, or ``None``.
    """
    points = probe.inputs.points()
    cotangents = probe.cotangents(probe.output_values())
    expected = probe.backward(points, cotangents)
    for what, (source, make) in _WAYS.items():
        leaves = probe.leaves()
        outputs = probe.evaluate([make(x) for x in leaves])
        answered = probe.answers(leaves, [g.clone() for g in cotangents], outputs)
        got = [
            torch.zeros_like(x) if g is None else g.detach()
            for x, g in zip(leaves, answered, strict=True)
        ]
        place = probe.differ(got, expected, looser=1e3)
        if place is not None:
            seen = None if answered[place] is None else got[place]
            return Lost(place, what, source, expected[place], seen, cotangents)
    return None
