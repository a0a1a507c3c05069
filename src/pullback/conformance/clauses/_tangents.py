"""One run of forward mode, and how a tangent is wrong: by the edit of jvp that makes it right."""

import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.autograd import forward_ad

from pullback.conformance._around import at_hand, slopes_along
from pullback.conformance._edits import right_edit
from pullback.conformance._explain import EXACT, explain
from pullback.conformance._mends import Undo, around
from pullback.conformance._operations import Backward
from pullback.conformance._pair import Pair
from pullback.conformance._probe import Probe, Tensors
from pullback.conformance._vectors import filled

__all__ = ["push", "say_tangent"]

_SECONDS = 1.5


class _Jvp(Backward):
    """As a backward, of tangents."""

    called = "The tangent"

    def around(self) -> Undo:
        return around(jvp=self.run)

    def ask(self) -> Tensors:
        return filled(*push(self.probe, self.points, self.weights))


def push(
    probe: Probe, points: Sequence[torch.Tensor], step: Sequence[torch.Tensor | None]
) -> tuple[Tensors, list[torch.Tensor | None]]:
    """Outputs and tangents, detached from forward mode; a step of ``None`` is no tangent at all."""
    with forward_ad.dual_level():
        duals = [
            x.clone() if v is None else forward_ad.make_dual(x.clone(), v)
            for x, v in zip(points, step, strict=True)
        ]
        pairs = [forward_ad.unpack_dual(y) for y in probe.evaluate(duals)]
        return [p.primal.detach() for p in pairs], [p.tangent for p in pairs]


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
    jvp = _Jvp(probe, points, step, [lambda t: t] * len(outputs))  # type: ignore[arg-type]
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
        return f"Of Jv: {said[0].lower()}{said[1:]}" if said else right_edit(
            jvp, k, difference, until
        )  # fmt: skip
    return ""
