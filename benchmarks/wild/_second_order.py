"""What a derivative must be, from a Function's own first-order backward and finite differences."""

import contextlib
from typing import Any

import torch

from pullback.conformance.evidence._evidence import slopes

__all__ = ["push_forward", "second_order"]


def second_order(
    truth: Any, directions, transposed: bool = False
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """H v (or H' v) of `curved`, from the Function's own first-order backward alone.

    And by how much it may be off, as the differences themselves show.

    With cotangent g(x) = w + y(x) the gradient is B(x, g(x)). Its derivative along v is that of B
    at a fixed cotangent, by the checker's finite differences with forward run again at each
    point, plus B(x, J v). J is the transpose of B: a cotangent changes as backward says that the
    output does, which for an exact backward is how it changes. An output that backward reads moves
    in the same way, as it does for torch.
    """
    points = truth.points
    cotangents = truth.weights
    if truth.intent != "nonlinear":
        cotangents = [
            None if weight is None else weight + output
            for weight, output in zip(truth.weights, truth.values(points), strict=True)
        ]
    rows = None if truth.intent == "nonlinear" else _backward_rows(truth, points)
    fixed, error = _difference_rows(truth, points, cotangents, rows)
    if transposed:
        error = error.T
    vector = torch.cat([direction.reshape(-1) for direction in directions])
    matrix = fixed.T if transposed else fixed
    if rows is not None:
        matrix = matrix + rows.T @ rows
    return tuple(
        _parts(found @ along, points)
        for found, along in ((matrix, vector.to(matrix.dtype)), (error, vector.abs().double()))
    )


def _parts(flat: torch.Tensor, points) -> list[torch.Tensor]:
    sizes = [point.numel() for point in points]
    return [
        part.reshape(point.shape) for part, point in zip(flat.split(sizes), points, strict=True)
    ]


def _difference_rows(
    truth: Any, points, cotangents, rows: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """d B(x, g) / d x at a fixed cotangent, `[inputs, inputs]`, and its error."""
    columns, errors = [], []
    here = truth.values(points)
    for index, point in enumerate(points):
        sizes = 0.1 * (point.abs().square().mean().sqrt() or 1.0) + point.abs()
        for element in range(point.numel()):
            size = float(sizes.reshape(-1)[element])

            def gradient(t: float, index=index, element=element, size=size) -> torch.Tensor:
                moved = [other.clone() for other in points]
                moved[index].view(-1)[element] += t * size
                hooks = contextlib.nullcontext()
                if rows is not None:
                    change = t * size * rows[:, len(columns)]
                    hooks = _moving_as_ruled(truth, here, truth.values(moved), change)
                with hooks:
                    pulled = truth.pull(moved, cotangents)
                return torch.cat([part.reshape(-1) for part in pulled])

            found = slopes(gradient)
            columns.append(found.value / size)
            errors.append(found.error / size)
    return torch.stack(columns, dim=1), torch.stack(errors, dim=1)


def _moving_as_ruled(
    truth: Any, here, there, change: torch.Tensor
) -> torch.autograd.graph.saved_tensors_hooks:
    """Let each output that is saved have moved by a change, wherever forward has it.

    One that forward has made with a history of its own, and detached to return it, is no output:
    to autograd, too, it moves as its history says.
    """
    applied: Any = torch.autograd.function.BackwardCFunction
    pairs, at = [], 0
    for weight, before, after in zip(truth.weights, here, there, strict=True):
        if weight is not None:
            part = change[at : at + before.numel()].reshape(before.shape)
            pairs.append((after, before + part.to(before.dtype)))
            at += before.numel()

    def unpack(saved: torch.Tensor) -> torch.Tensor:
        own = saved.grad_fn is not None and not isinstance(saved.grad_fn, applied)
        for after, ruled in () if own else pairs:
            if saved.shape == after.shape and torch.equal(saved, after):
                return ruled
        return saved

    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack)


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
    return _sides(truth, directions, truth.values)


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
