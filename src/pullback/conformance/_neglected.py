"""An argument that backward leaves out: its answer is the derivative of a forward without it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from pullback.conformance._arguments import Arguments
from pullback.conformance._tree import walk
from pullback.internal.torch import pytree

__all__ = ["neglected"]


def neglected(inputs: Arguments, only: str, is_right: Callable[[Arguments], bool]) -> str:
    """One sentence that names the argument, and the value of it for which backward is right.

    Arguments:
        inputs: the arguments.
        only: the path of the input whose gradient is wrong; it stays as it is.
        is_right: whether the gradient is that of forward at other arguments.

    Returns:
        The sentence, or an empty text where no value that was tried makes backward right.
    """
    for path, value, other in _neutral(inputs):
        if path != only and is_right(other):
            return f"Backward is right for a forward with {path} = {value}: it leaves that out."
    return ""


def _neutral(inputs: Arguments) -> Iterator[tuple[str, Any, Arguments]]:
    """Each argument with a value at which it does nothing, in many a forward."""
    leaves, form = pytree.tree_flatten((inputs.args, dict(inputs.kwargs)))
    paths = [path for part in ("args", "kwargs") for path, _ in walk(getattr(inputs, part), part)]
    tensors = iter(range(len(inputs.values)))
    for k, (path, leaf) in enumerate(zip(paths, leaves, strict=False)):
        if isinstance(leaf, torch.Tensor):
            place = next(tensors)
            given = inputs.values[place]
            for number in (0, 1):
                other = torch.full_like(given, number)
                if place not in inputs.owned and not torch.equal(other, given):
                    values = [other if n == place else v for n, v in enumerate(inputs.values)]
                    yield path, number, inputs.with_values(values)
        elif type(leaf) in (bool, int, float):
            for number in {type(leaf)(0), type(leaf)(1)} - {leaf}:
                args, kwargs = pytree.tree_unflatten(
                    [number if n == k else v for n, v in enumerate(leaves)], form
                )
                yield path, number, replace(inputs, args=args, kwargs=kwargs)
