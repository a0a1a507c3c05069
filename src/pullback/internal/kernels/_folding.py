"""`vmap` of a kernel that has a batch already: the mapped dimension becomes a part of it."""

from collections.abc import Callable
from typing import Any

__all__ = ["broadcast_batch", "fold_batch"]


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


def broadcast_batch(operator: Callable[..., Any], ranks: tuple[int, ...]) -> Callable[..., Any]:
    """Return the vmap rule of an operator of tensors ``[..., rank dimensions]``, all broadcast.

    Arguments:
        operator: the operator; its outputs have the common batch first.
        ranks: of the tensors, which come first, how many dimensions are none of the batch.
    """

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        mapped = list(zip(args, in_dims, ranks, strict=False))
        most = max(t.dim() - rank - (dim is not None) for t, dim, rank in mapped)
        tensors = []
        for tensor, dim, rank in mapped:
            first = tensor.unsqueeze(0) if dim is None else tensor.movedim(dim, 0)
            missing = most + rank - (first.dim() - 1)
            tensors.append(first.reshape(first.shape[0], *[1] * missing, *first.shape[1:]))
        # The first of all batches has every dimension of the others.
        tensors[0] = tensors[0].expand(info.batch_size, *tensors[0].shape[1:])
        found = operator(*tensors, *args[len(ranks) :])
        return found, 0 if not isinstance(found, tuple) else (0,) * len(found)

    return rule
