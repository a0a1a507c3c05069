"""Whether a slope by differences is one at all: the same at every scale, and linear."""

import torch

from pullback.conformance._probe import Probe, Tensors
from pullback.conformance._vectors import flatten

__all__ = ["is_told"]

# Whatever swings within one of these steps is seen, unless it is smaller than rounding.
_SCALES = [10.0**-k for k in range(5, 16)]


def is_told(probe: Probe, step: Tensors, *, within: bool, gap: float) -> bool:
    """Whether the slope is the same at every scale that rounding leaves, and linear in the step.

    Arguments:
        probe: the function at the inputs in question.
        step: the direction.
        within: whether the step keeps zeros and ties, so that it need not be linear elsewhere.
        gap: how far backward is from the slope, as a part of it.
    """
    points = probe.inputs.points()
    weights = flatten(probe.cotangents(probe.output_values(), "values"))

    def slope(part: Tensors, t: float) -> tuple[torch.Tensor, torch.Tensor]:
        """The terms of the slope, one for each output, and how far rounding may move each."""
        with torch.no_grad():
            up, down = (
                flatten(probe.evaluate([x + s * v for x, v in zip(points, part, strict=True)]))
                for s in (t, -t)
            )
        return weights * (up - down) / (2 * t), weights.abs() * (up.abs() + down.abs()) * 1e-15 / t

    first, _ = slope(step, 1e-4)
    scale = float(first.abs().max())
    near = min(0.05, max(gap / 4, 1e-3))
    for t in _SCALES:
        terms, noise = slope(step, t)
        told = noise < 0.1 * scale
        if bool(((terms - first).abs() > near * first.abs() + noise + 1e-6 * scale)[told].any()):
            return False
    if within:
        return True
    for k in range(3):
        drawn = probe.generator(f"values {k}")
        shares = [3 * torch.rand(x.shape, generator=drawn).to(x) - 1 for x in points]
        one = [u * v for u, v in zip(shares, step, strict=True)]
        other = [v - p for v, p in zip(step, one, strict=True)]
        apart = slope(one, 1e-4)[0] + slope(other, 1e-4)[0] - first
        if float(apart.abs().max()) > 1e-3 * scale:
            return False
    return True
