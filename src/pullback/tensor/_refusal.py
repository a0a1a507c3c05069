"""A node in the graph that refuses to be differentiated, by name.

Under `torch.func`, code that runs without gradients is answered with silent zeros. A result
that may not be differentiated is therefore tied to what it depends on by a node whose backward
and forward rules raise, so that a derivative that reaches it is refused at every level.
"""

from collections.abc import Sequence
from typing import Any, Never

import torch

from pullback.errors import UnsupportedError

__all__ = ["guard"]


class _Refusal(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(error: UnsupportedError, count: int, *tensors: torch.Tensor) -> Any:
        return tuple(tensor.view_as(tensor) for tensor in tensors[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.error = inputs[0]

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Never:
        raise ctx.error

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Never:
        raise ctx.error


def guard(
    results: Sequence[torch.Tensor | None],
    depends_on: Sequence[torch.Tensor | None],
    error: UnsupportedError,
) -> list[torch.Tensor | None]:
    """Return the results, tied to what they depend on by a node that refuses derivatives."""
    if not torch.is_grad_enabled():
        return list(results)
    positions = [i for i, result in enumerate(results) if _differentiable(result)]
    causes = [tensor for tensor in depends_on if _differentiable(tensor)]
    if not positions or not causes:
        return list(results)
    guarded = _Refusal.apply(error, len(positions), *(results[i] for i in positions), *causes)
    merged = list(results)
    for position, tensor in zip(positions, guarded, strict=True):
        merged[position] = tensor
    return merged


def _differentiable(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and (tensor.is_floating_point() or tensor.is_complex())
