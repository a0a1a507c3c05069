"""The gradients that autograd has of forward itself: what a Function of few digits is held to.

Finite differences of bfloat16 and float16 do not settle: a step that rounding does not hide is as
large as what moves. Where forward is made of operations of torch, autograd has its derivative
in the same precision.
"""

from contextlib import suppress
from dataclasses import replace

import torch

from pullback.conformance._evidence import agreement
from pullback.conformance._mends import by_autograd
from pullback.conformance._probe import Probe, Tensors
from pullback.conformance._vectors import are_finite, wide

__all__ = ["cotangents_at", "hides_slopes", "own_gradients", "unlike_own"]


def hides_slopes(probe: Probe) -> bool:
    """Whether rounding hides what finite differences would show."""
    return torch.finfo(probe.dtype).eps > torch.finfo(torch.float32).eps


def own_gradients(probe: Probe, points: Tensors, cotangents: Tensors) -> Tensors | None:
    """What autograd answers by what forward does; ``None`` where it cannot follow it."""
    subject = by_autograd(probe.subject)
    with suppress(Exception):
        if subject is not None:
            return replace(probe, subject=subject).backward(points, cotangents)
    return None


def cotangents_at(probe: Probe, points: Tensors) -> Tensors:
    """The cotangents that both are asked with."""
    return probe.spread(probe.output_values(points), "own")


def unlike_own(probe: Probe, number: int) -> list[tuple[int, torch.Tensor, torch.Tensor]] | None:
    """The inputs whose gradient is off by more than rounding, with autograd's and their own.

    ``None`` where autograd tells nothing.
    """
    points = probe.point(number)
    cotangents = cotangents_at(probe, points)
    expected = own_gradients(probe, points, cotangents)
    if expected is None or not are_finite(expected):
        return None
    pairs = enumerate(zip(expected, probe.backward(points, cotangents), strict=True))
    tolerance = agreement(torch.finfo(probe.dtype).eps)
    return [
        (k, one, other) for k, (one, other) in pairs
        if not _norm(wide(other) - wide(one)) <= tolerance * _norm(wide(one))
    ]  # fmt: skip


def _norm(tensor: torch.Tensor) -> float:
    return float(tensor.abs().square().sum().sqrt())
