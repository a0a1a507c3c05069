"""`vmap` of a kernel that has a batch already: the mapped dimension becomes a part of it."""

from collections.abc import Callable
from typing import Any

__all__ = ["fold_batch"]


def fold_batch(operator: Callable[..., Any], tensors: int) -> Callable[..., Any]:
    """Return the vmap rule of an operator of tensors ``[batch, ...]``.

    Arguments:
        operator: the operator; its outputs are all ``[batch, ...]``.
        tensors: how many tensors come first. The last of them holds coefficients, ``[1, ...]``
            for the whole batch or ``[batch, ...]``.
    """

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        size = info.batch_size
        moved = [
            arg.movedim(dim, 0) if dim is not None else arg.expand(size, *arg.shape)
            for arg, dim in zip(args[:tensors], in_dims[:tensors], strict=True)
        ]
        batch = moved[0].shape[1]
        weights = moved.pop()
        if in_dims[tensors - 1] is None and weights.shape[1] == 1:
            weights = args[tensors - 1]
        else:
            weights = weights.expand(size, batch, *weights.shape[2:]).flatten(0, 1)
        folded = [tensor.reshape(size * batch, *tensor.shape[2:]) for tensor in moved]
        outputs = operator(*folded, weights, *args[tensors:])
        unfolded = tuple(output.unflatten(0, (size, batch)) for output in outputs)
        return unfolded, (0,) * len(unfolded)

    return rule
