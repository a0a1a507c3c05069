"""What a published backward is, measured: the derivative, linear, or neither."""

import torch

from benchmarks.wild._probe import Subject

__all__ = ["intent_of"]


def intent_of(truth: Subject) -> str:
    """`exact`, `surrogate` (linear in the cotangent) or `nonlinear`."""
    if not _is_linear(truth):
        return "nonlinear"
    return "exact" if _is_derivative(truth) else "surrogate"


def _is_linear(truth: Subject) -> bool:
    points = truth.points
    other = [None if weight is None else weight.flip(0) if weight.dim() else weight * 3
             for weight in truth.weights]  # fmt: skip
    mixed = [None if weight is None else 2.5 * weight - 0.5 * change
             for weight, change in zip(truth.weights, other, strict=True)]  # fmt: skip
    joint = truth.pull(points, mixed)
    parts = [
        2.5 * left - 0.5 * right
        for left, right in zip(truth.gradients, truth.pull(points, other), strict=True)
    ]
    return all(
        torch.allclose(left, right, rtol=1e-4, atol=1e-5 * float(right.abs().amax()) + 1e-9)
        for left, right in zip(joint, parts, strict=True)
        if left.numel()
    )


def _is_derivative(truth: Subject) -> bool:
    points = truth.points
    generator = torch.Generator().manual_seed(5)
    for _ in range(3):
        directions = [
            torch.randn(point.shape, generator=generator, dtype=torch.float64).to(point.dtype)
            for point in points
        ]
        step = 1e-6 if points[0].dtype == torch.float64 else 1e-2
        sides = []
        for sign in (1, -1):
            moved = [
                point + sign * step * direction
                for point, direction in zip(points, directions, strict=True)
            ]
            sides.append(float(truth.objective(*moved).detach()))
        expected = (sides[0] - sides[1]) / (2 * step)
        pairs = list(zip(truth.gradients, directions, strict=True))
        got = float(sum((gradient * direction).sum() for gradient, direction in pairs))
        size = float(sum((gradient * direction).abs().sum() for gradient, direction in pairs))
        loose = 1e-4 if points[0].dtype == torch.float64 else 3e-2
        if abs(got - expected) > loose * max(size, 1e-3):
            return False
    return True
