"""What a derivative must be, from a Function's own first-order backward and finite differences."""

from typing import Any

import torch

__all__ = ["push_forward", "second_order"]


def second_order(truth: Any, directions, transposed: bool = False) -> list[torch.Tensor]:
    """H v (or H' v) of `squared`, from the Function's own first-order backward alone.

    With cotangent g(x) = w + y(x) the gradient is B(x, y(x), g(x)), where y is an output that
    backward reads again. Its derivative along v is that of B at a fixed cotangent, by central
    differences, with y moving by J v, plus B(x, J v). J is the transpose of B: an output changes as
    backward says that it does, which for an exact backward is how it changes.
    """
    points = truth.points
    if truth.intent == "nonlinear":
        return _total(truth, directions)
    outputs = [output.detach() for output in truth(*points)]
    cotangents = [
        None if weight is None else weight + output
        for weight, output in zip(truth.weights, outputs, strict=True)
    ]
    rows = _backward_rows(truth, points)
    fixed = _difference_rows(truth, points, cotangents, outputs, rows)
    vector = torch.cat([direction.reshape(-1) for direction in directions])
    matrix = (fixed.T if transposed else fixed) + rows.T @ rows
    flat = matrix @ vector.to(matrix.dtype)
    sizes = [point.numel() for point in points]
    return [
        part.reshape(point.shape) for part, point in zip(flat.split(sizes), points, strict=True)
    ]


def _difference_rows(truth: Any, points, cotangents, outputs, rows) -> torch.Tensor:
    """d B(x, y, g) / d x at a fixed cotangent, `[inputs, inputs]`, by central differences."""
    columns = []
    for index, point in enumerate(points):
        # The coarsest number that is moved decides how small a step can be seen.
        coarse = any(moved.dtype != torch.float64 for moved in (point, *outputs))
        step = 1e-3 if coarse else 1e-6
        for element in range(point.numel()):
            sides = []
            for sign in (1, -1):
                moved = [other.clone() for other in points]
                moved[index].view(-1)[element] += sign * step
                reread = _moved_outputs(truth, outputs, sign * step * rows[:, len(columns)])
                pulled = truth.pull(moved, cotangents, reread)
                sides.append(torch.cat([part.reshape(-1).double() for part in pulled]))
            columns.append((sides[0] - sides[1]) / (2 * step))
    return torch.stack(columns, dim=1)


def _sides(truth: Any, directions, function):
    """Central differences of a function of the points along a direction."""
    step = 1e-6 if truth.points[0].dtype == torch.float64 else 1e-3
    after, before = (
        function(
            [
                point + sign * step * direction
                for point, direction in zip(truth.points, directions, strict=True)
            ]
        )
        for sign in (1, -1)
    )
    return [(left - right) / (2 * step) for left, right in zip(after, before, strict=True)]


def push_forward(truth: Any, directions) -> list[torch.Tensor]:
    """The derivative of forward along a direction."""
    return _sides(truth, directions, lambda points: [out.detach() for out in truth(*points)])


def _total(truth: Any, directions) -> list[torch.Tensor]:
    """How the gradient of `squared` changes along a direction, whatever backward is."""

    def gradient(points):
        pairs = zip(truth.weights, truth(*points), strict=True)
        return truth.pull(points, [None if w is None else w + out.detach() for w, out in pairs])

    return _sides(truth, directions, gradient)


def _moved_outputs(truth: Any, outputs, change: torch.Tensor) -> list[torch.Tensor]:
    moved, used = [], 0
    for weight, output in zip(truth.weights, outputs, strict=True):
        size = 0 if weight is None else output.numel()
        part = change[used : used + size].reshape(output.shape) if size else 0
        moved.append((output + part).to(output.dtype))
        used += size
    return moved


def _backward_rows(truth: Any, points) -> torch.Tensor:
    """B(x, e_i) for every basis cotangent, `[outputs, inputs]`."""
    rows = []
    for index, weight in enumerate(truth.weights):
        for element in range(0 if weight is None else weight.numel()):
            basis = [None if other is None else torch.zeros_like(other) for other in truth.weights]
            basis[index].view(-1)[element] = 1
            pulled = truth.pull(points, basis)
            rows.append(torch.cat([part.reshape(-1).double() for part in pulled]))
    return torch.stack(rows)
