"""Backward with one thing changed of what forward saved: is its answer right then?

Numbers that are no simple relation of the right ones often come from the right computation with a
wrong operand: a matrix where its transpose is meant, one tensor where another is.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from pullback.conformance._probe import Probe, Tensors

__all__ = ["read_otherwise"]

_MOST = 8

Change = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


def read_otherwise(
    probe: Probe, points: Tensors, weights: Tensors, is_right: Callable[[Tensors], bool]
) -> str:
    """One sentence that names the operand which backward reads wrongly.

    Arguments:
        probe: the subject, whose backward is known to be wrong.
        points: the differentiated inputs where it is.
        weights: the cotangents.
        is_right: whether gradients are right.

    Returns:
        The sentence, or an empty text where no change that was tried makes backward right.
    """
    saved: Tensors = []
    as_saved = _answer(probe, points, weights, lambda tensors: tensors, saved)
    if probe.subject.function is None or as_saved is None:
        return ""
    names = _names(probe, points, saved)
    for change, said in _changes(saved, names):
        found = _answer(probe, points, weights, change, [])
        if found is not None and is_right(found):
            return f"Backward is right where it reads {said}."
    return ""


def _answer(
    probe: Probe, points: Tensors, weights: Tensors, change: Change, saved: Tensors
) -> Tensors | None:
    """The gradients by a backward that reads other tensors than were saved, which are noted."""

    def pack(tensor: torch.Tensor) -> int:
        saved.append(tensor.detach())
        return len(saved) - 1

    try:
        with saved_tensors_hooks(pack, lambda number: change(saved)[number]):
            return probe.backward(points, weights)
    except Exception:  # whatever does not take what it did not save
        return None


def _names(probe: Probe, points: Tensors, saved: Sequence[torch.Tensor]) -> list[str]:
    """What each tensor is that was saved: the argument with its numbers, or a place."""
    inputs = probe.inputs.with_points(points)
    given = list(zip(inputs.paths, inputs.values, strict=True))
    return [
        next((path for path, v in given if _is_same(v, tensor)), f"ctx.saved_tensors[{k}]")
        for k, tensor in enumerate(saved)
    ]


def _is_same(one: torch.Tensor, other: Any) -> bool:
    return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)


def _changes(saved: Sequence[Any], names: Sequence[str]) -> Iterator[tuple[Change, str]]:
    tensors = [k for k, t in enumerate(saved) if isinstance(t, torch.Tensor)][:_MOST]
    for k in tensors:
        if saved[k].ndim > 1 and saved[k].shape[-1] == saved[k].shape[-2]:
            yield _with(k, lambda t: t.mT), f"{names[k]} transposed"
        if saved[k].is_complex():
            yield _with(k, torch.conj), f"the complex conjugate of {names[k]}"
    for k, n in itertools.combinations(tensors, 2):
        if saved[k].shape == saved[n].shape and saved[k].dtype == saved[n].dtype:
            yield _exchanged(k, n), f"{names[n]} for {names[k]}, and the other way round"


def _with(place: int, change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return lambda saved: [change(t) if k == place else t for k, t in enumerate(saved)]


def _exchanged(one: int, other: int) -> Change:
    def change(saved: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        found = list(saved)
        found[one], found[other] = saved[other], saved[one]
        return found

    return change
