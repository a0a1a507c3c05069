"""How an audit compares: finite differences, and inner products of a map and its transpose."""

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

from pullback.tensor import _random
from pullback.tensor._call import Call, differentiable
from pullback.tensor._preserve import preserved
from pullback.tensor._rounding import coarsest
from pullback.tensor._witness import Witness

__all__ = ["Remembered", "Values", "Verdict", "differences", "inner_products", "length"]

Verdict = Literal["agrees", "disagrees", "no verdict", "skipped"]
Values = list[torch.Tensor]
Outcome = tuple[Verdict, float, float]
# For each dtype that a Function takes: the step, and the relative difference that is clear.
_STEPS = {torch.float64: (1e-5, 1e-5), torch.float32: (5e-3, 5e-2)}
_COARSE = (0.1, 0.5)
# What a dtype may lose of a difference of two values, for the difference to tell anything.
_CLEAR_OF_NOISE = 0.1
_FLOAT32 = torch.finfo(torch.float32).eps


class Remembered(Exception):
    """A tensor that one run of the rules made was used by another."""


def differences(twin: Call, values: Values, again: Any, transpose: Any) -> Outcome:
    """Compare ``<h, (P(s + e v) - P(s - e v)) / 2e>`` with ``<P'(s)^T h, v>``.

    Once for a direction among the inputs, once among the other sources; with half the step
    besides, so that noise and kinks show.

    Raises:
        Remembered: a tensor that one run made was used by another.
    """
    # Long: one sequence of runs that share their values, heads and generators.
    live = [i for i, value in enumerate(values) if differentiable(value.dtype)]
    dtypes = {values[i].dtype for i in live}
    step, clear = _STEPS.get(next(iter(dtypes)), _COARSE) if len(dtypes) == 1 else _COARSE
    before = _random.states(values)

    def run(shift: float, direction: list[Any]) -> list[Any]:
        moved = [v if d is None else v + shift * d for v, d in zip(values, direction, strict=True)]
        with preserved(twin.definition), torch.no_grad(), _random.replaying(before), witness:
            return list(again(twin, moved))

    witness = Witness()
    base = run(0.0, [None] * len(values))
    heads = [None if t is None else _normal(t) for t in base]
    with preserved(twin.definition), _random.replaying(before):
        _, gradients = transpose(twin, values, heads)
    last: Outcome = ("agrees", math.inf, math.inf)  # of the group that tells the least
    inputs = [i for i in live if i < len(twin.needs)]
    for places in (inputs, [i for i in live if i not in inputs]):
        verdict: Outcome = ("agrees", 0.0, 0.0)
        against = 0
        for attempt in range(5 if places else 0):  # another direction where one meets a kink
            chosen = [_direction(v) if i in places else None for i, v in enumerate(values)]
            size = step * 10 ** (attempt % 2)
            ends = [run(sign * size * part, chosen) for part in (1, 0.5) for sign in (1, -1)]
            whole, half = (
                (_inner(heads, ends[k]) - _inner(heads, ends[k + 1])) / (2 * size * part)
                for k, part in ((0, 1), (2, 0.5))
            )
            derived = _inner(gradients, chosen)
            noise = _inner(heads, base, magnitude=True) * _eps(base) / size
            verdict = _judge(derived, whole, half, clear, noise), derived, half
            if verdict[0] == "agrees" and 64 * _eps(base) / size > _CLEAR_OF_NOISE:
                verdict = "no verdict", derived, half
            against += verdict[0] == "disagrees"
            if verdict[0] == "agrees" or against == 2:
                break
        if against == 2:
            return verdict
        if verdict[0] != "agrees":
            last = "no verdict", verdict[1], verdict[2]
        elif places and last[0] == "agrees" and _size(verdict) <= _size(last):
            last = verdict
    if witness.remembered:
        raise Remembered("a tensor that one call made reaches another call")
    return last


def _size(outcome: Outcome) -> float:
    return max(abs(outcome[1]), abs(outcome[2]))


def _judge(derived: float, whole: float, half: float, clear: float, noise: float) -> Verdict:
    if not all(map(math.isfinite, (whole, half))):
        return "no verdict"
    if not math.isfinite(derived):  # where what was measured has settled
        settled = abs(whole - half) <= clear * max(abs(whole), abs(half)) + 64 * noise
        return "disagrees" if settled else "no verdict"
    scale = max(abs(derived), abs(half))
    difference = abs(derived - half)
    if difference <= clear * scale + 64 * noise:
        return "agrees"
    return "disagrees" if abs(whole - half) < 0.1 * difference else "no verdict"


def inner_products(
    twin: Call,
    values: Values,
    push: Callable[[Call, Values], Sequence[Any]],
    pull: Callable[[Call, Values, Sequence[Any]], Sequence[Any]],
) -> Outcome:
    """Compare ``<w, T v>`` with ``<b(w), v>`` for cotangents ``w`` of several sizes."""
    witness = Witness()
    with witness:
        pushed = list(push(twin, values))
    tangents = values[len(twin.inputs) :]
    outcome: Outcome = ("agrees", 0.0, 0.0)
    for size in (1.0, 1e-2, 1e2, None):
        cotangents = [None if t is None else _cotangent(t, size) for t in pushed]
        with witness:
            gradients = pull(twin, values, cotangents)
        # A rule that computes in float32 whatever it is given is linear to that precision only.
        tolerance = max(1e4 * _eps(pushed), 64 * _FLOAT32 if witness.rounds else 0.0)
        left, right = _inner(cotangents, pushed), _inner(gradients, tangents)
        # What cancels within a rule is as large as its other entries, so the lengths count.
        pairs = ((cotangents, pushed), (gradients, tangents))
        scale = max(float(length(a)) * float(length(b)) for a, b in pairs)
        if not (math.isfinite(left) and math.isfinite(right)):
            return "no verdict", left, right
        if abs(left - right) > min(tolerance, 0.3) * scale:
            return "disagrees", left, right
        outcome = "agrees", left, right
    return outcome


def _cotangent(like: torch.Tensor, size: float | None) -> torch.Tensor:
    """Random entries of a size; for none, one alone, which stands out from all others."""
    drawn = _normal(like)
    if size is not None or not drawn.numel():
        return drawn if size is None else drawn * size
    alone = torch.zeros_like(drawn)
    place = drawn.abs().reshape(-1).argmax()
    alone.view(-1)[place] = drawn.reshape(-1)[place]
    return alone


_generators = threading.local()


def _normal(like: torch.Tensor) -> torch.Tensor:
    """Random entries; the generators of the program are not touched."""
    generator = getattr(_generators, "cpu", None)
    if generator is None:
        generator = _generators.cpu = torch.Generator().manual_seed(7)
    wide = torch.complex128 if like.dtype.is_complex else torch.float64
    made = torch.randn(like.shape, generator=generator, dtype=wide)
    return made.to(device=like.device, dtype=like.dtype)


def _direction(value: torch.Tensor) -> torch.Tensor:
    size = (
        float(value.detach().abs().to(torch.float64).square().mean().sqrt())
        if value.numel()
        else 1.0
    )
    return _normal(value) * (size if math.isfinite(size) and size > 0 else 1.0)


def _inner(first: Sequence[Any], second: Sequence[Any], *, magnitude: bool = False) -> float:
    total = 0.0
    for a, b in zip(first, second, strict=True):
        if a is not None and b is not None:
            product = (a.detach().conj() * b.detach()).real.to(torch.float64)
            total += float((product.abs() if magnitude else product).sum())
    return total


def length(tensors: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """The Euclidean norm of all tensors that are there, as one vector, without overflow."""
    total = torch.zeros((), dtype=torch.float64)
    for tensor in (t for t in tensors if t is not None):
        sizes = tensor.detach().abs().to(torch.float64)
        if sizes.numel():
            largest = sizes.amax()
            unit = torch.where(largest > 0, largest, 1.0)
            norm = largest * (sizes / unit).square().sum().sqrt()
            total = torch.hypot(total.to(norm.device), norm)
    return total


def _eps(values: Sequence[Any]) -> float:
    return coarsest(value.dtype for value in values if value is not None)
