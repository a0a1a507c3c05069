"""Gradients of a function that refuses `torch.autograd.grad` and takes ``.backward()`` alone.

One that runs forward again in backward cannot tell which gradients are asked for, and says so by
``torch.autograd._is_checkpoint_valid()``.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

__all__ = ["accumulated"]


def accumulated(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    cotangents: Sequence[torch.Tensor],
    kept: Sequence[torch.Tensor],
    **options: Any,
) -> list[torch.Tensor | None]:
    """The gradients as they reach the inputs; nobody's ``.grad`` is changed.

    Arguments:
        outputs: what is differentiated.
        inputs: tensors that require a gradient.
        cotangents: one for each output.
        kept: other tensors that backward reaches.
        options: of `torch.autograd.backward`.

    Returns:
        One gradient for each input, ``None`` where none reaches it.
    """
    found: dict[int, torch.Tensor] = {}

    def keep(gradient: torch.Tensor, k: int) -> None:
        # A copy: some backwards write the same tensor to x.grad, to which torch then adds it.
        found[k] = gradient.clone()

    before = [(x, x.grad) for x in [*kept, *inputs] if x.is_leaf]
    hooks = [x.register_hook(partial(keep, k=k)) for k, x in enumerate(inputs)]
    try:
        torch.autograd.backward(outputs, cotangents, **options)
    finally:
        for hook in hooks:
            hook.remove()
        for x, gradient in before:
            x.grad = gradient
    return [found.get(k) for k in range(len(inputs))]
