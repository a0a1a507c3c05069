"""Tell of a tangent that is wrong."""

import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from pullback.conformance._around import at_hand, slopes_along
from pullback.conformance._changes import Pair
from pullback.conformance._explain import EXACT, explain
from pullback.conformance._probe import Probe, Tensors
from pullback.conformance._repair import right_edit
from pullback.conformance._rule import Rule
from pullback.conformance._transforms import push
from pullback.conformance._vectors import filled

__all__ = ["say_tangent"]

_SECONDS = 1.5  # of work that looking for an edit may take


def say_tangent(probe: Probe, points: Tensors, step: Sequence[torch.Tensor | None]) -> str:
    """One sentence on the tangent that is not the derivative of forward, by finite differences.

    Arguments:
        probe: the subject.
        points: where.
        step: the tangents of the inputs, ``None`` where there is none.

    Returns:
        The sentence, or an empty text where each tangent is right, or nothing is recognised.
    """
    if probe.intent != "exact":
        return ""
    outputs, tangents = push(probe, points, step)
    whole = [x * 0 if v is None else v for x, v in zip(points, step, strict=True)]
    alone = [[v if j == k else v * 0 for j, v in enumerate(whole)] for k in range(len(whole))]
    names = [f"the tangent of {name}" for name in probe.inputs.names()]
    moving = [k for k, v in enumerate(step) if v is not None]
    hand = at_hand(probe, points, outputs, {names[k]: whole[k] for k in moving})
    jvp = Rule(probe, points, [*step], [lambda t: t] * len(outputs), "jvp")
    expected = slopes_along(probe, points, whole, outputs)
    terms = {
        names[k]: slopes_along(probe, points, alone[k], outputs) for k in moving[: len(step) - 1]
    }
    for k, got in enumerate(filled(outputs, tangents)):
        parts = {name: term[k] for name, term in terms.items()}
        difference = replace(hand, expected=expected[k], got=got, parts=parts).sharp
        pair = Pair.of(difference)
        if pair is None or pair.equal(pair.got):
            continue
        said = explain(difference, EXACT)
        until = time.process_time() + _SECONDS
        if said:
            return f"Of Jv: {said[0].lower()}{said[1:]}"

        def is_right(j: int, tangent: torch.Tensor) -> bool:
            other = Pair.of(replace(hand, expected=expected[j], got=tangent))
            return other is not None and other.equal(other.got)

        return right_edit([jvp], k, difference, is_right, until).said
    return ""
