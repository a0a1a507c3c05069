"""Numbers near the ends of a precision, compared with the same ones computed in float64."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from pullback.conformance._arguments import Arguments
from pullback.conformance._limits import NoEnd
from pullback.conformance._probe import Probe
from pullback.conformance._screen import Run
from pullback.conformance._special import scaled
from pullback.conformance._vectors import are_finite
from pullback.report import Finding

__all__ = ["REPRO", "at_the_ends"]

_WIDER = "Compute in float32 what squares or divides, or scale before squaring."
REPRO = [
    "print('inputs  ', xs)",
    "ys = outs(); print('outputs ', ys)",
    "print('gradient', torch.autograd.grad(ys, xs, [torch.ones_like(y) for y in ys], "
    "allow_unused=True))",
]


def at_the_ends(probe: Probe) -> Iterator[tuple[str, Finding | None]]:
    """Each precision with large and with small numbers, and what is wrong there."""
    for level in (torch.float32, torch.bfloat16, torch.float16):
        for name, inputs in _scaled(probe, level):
            yield name, _compare(probe.at(inputs), name)


def _scaled(probe: Probe, level: torch.dtype) -> Iterator[tuple[str, Arguments]]:
    if probe.draws or probe.rough or probe.dtype != torch.float64:
        return
    if any(x.is_complex() for x in probe.inputs.points()):
        return
    yield from scaled(probe.inputs, level)


def _compare(low: Probe, name: str) -> Finding | None:
    """Near the ends of a precision, with the same numbers computed in float64."""
    wide = replace(low, inputs=low.inputs.cast(torch.float64))
    try:
        run = Run.of(low)
        true = Run.of(wide, [g.double() for g in run.cotangents])
        points = wide.inputs.points()
        eps = max(torch.finfo(x.dtype).eps for x in low.inputs.points())
        nudged = [x * (1 + eps * v) for x, v in zip(points, low.direction("eps"), strict=True)]
        nudged = [x.double() for x in nudged]
        shaken = wide.backward(nudged, true.cotangents)
    except NoEnd:
        raise
    except Exception:  # loud, so not silently wrong
        return None
    if not (are_finite(run.outputs) and are_finite(true.outputs) and are_finite(true.gradients)):
        return None
    if not all(_near(a, b, eps) for a, b in zip(run.outputs, true.outputs, strict=True)):
        return None  # forward itself lost the number
    for k, (one, exact, moved) in enumerate(
        zip(run.gradients, true.gradients, shaken, strict=True)
    ):
        if not one.numel():
            continue
        limits = torch.finfo(one.dtype)
        size = float(exact.abs().max())
        if not limits.tiny * 16 < size < limits.max**0.5:
            continue  # such numbers do not fit
        allowed = 0.3 * size + 30 * float((moved - exact).abs().max().nan_to_num())
        allowed += _saturated(run) * eps
        # Near zero rounding may take every digit of a difference; what is not finite is a mistake.
        off = name.startswith("large") and float((one.double() - exact).abs().max()) > allowed
        if off or not bool(one.isfinite().all()):
            return low.broken(
                f"At {name} forward is right and the gradient is not.",
                expected=exact, got=one, place=low.path(k), hint=_WIDER, repro=REPRO,
            )  # fmt: skip
    return None


def _saturated(run: Run) -> float:
    """By how many roundings a slope may be off that is a difference of numbers of order one.

    So is the slope of what saturates, as 1 - y * y is that of the hyperbolic tangent.
    """
    tops = [float(y.abs().max()) for y in run.outputs if y.numel()]
    if not all(0.1 < top < 10 for top in tops):
        return 0.0
    return 30 * max((float(g.abs().max()) for g in run.cotangents if g.numel()), default=0.0)


def _near(one: torch.Tensor, true: torch.Tensor, eps: float) -> bool:
    if not true.numel():
        return True
    size = float(true.abs().max())
    return float((one.double() - true.double()).abs().max()) <= 30 * eps * size
