"""What the tests on a GPU share: the same tensors there, and answers compared with the CPU's."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["first", "on_gpu", "same", "second", "tensors", "waiting_is_an_error"]


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    """Have torch refuse what waits for the card, as to read a number does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it does not see all of it
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _there(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().cuda().requires_grad_(value.requires_grad)


def on_gpu(values: Any) -> Any:
    """The same values, tensors on a GPU as leaves of their own."""
    return tree_map(_there, values)


def tensors(values: Any) -> list[torch.Tensor]:
    """The tensors among the leaves of a structure."""
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


def same(got: Any, expected: Any, **tolerance: Any) -> None:
    """What a GPU gave lies there, and equals what the CPU gave."""
    got, expected = tensors(got), tensors(expected)
    assert all(value.is_cuda for value in got)
    torch.testing.assert_close([value.cpu() for value in got], expected, **tolerance)


def _weights(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [
        torch.linspace(-0.5, 1.5, value.numel(), dtype=value.dtype, device="cpu")
        .reshape(value.shape)
        .to(value.device)
        for value in values
    ]


def first(call: Callable[..., Any], inputs: Any, *, create_graph: bool = False) -> Any:
    """The outputs, and the gradients by weights that tell each entry from the others."""
    outputs = tensors(call(*inputs))
    flowing = [y for y in outputs if y.requires_grad]
    leaves = [x for x in tensors(inputs) if x.requires_grad]
    return outputs, torch.autograd.grad(
        flowing, leaves, _weights(flowing), create_graph=create_graph, materialize_grads=True
    )


def second(call: Callable[..., Any], inputs: Any) -> Any:
    """The gradients of the squares of the gradients."""
    leaves = [x for x in tensors(inputs) if x.requires_grad]
    _, gradients = first(call, inputs, create_graph=True)
    total = sum(g.square().sum() for g in gradients)
    if not total.requires_grad:
        return [torch.zeros_like(x) for x in leaves]
    return torch.autograd.grad(total, leaves, materialize_grads=True)
