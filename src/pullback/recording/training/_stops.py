"""`Stops`: the node of the graph of autograd at which a gradient that came in goes on as nothing.

Hooks are put on the nodes between a loss and the leaves in question, for one backward pass. Where
what comes in is not zero and what goes on towards such a leaf is zero or ``None``, the gradient
stops; the first such node of the pass is the cause.

This file is also loaded by path into programs that have no pullback (``_recorder.py``).
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch

from pullback.internal.torch import function_of

__all__ = ["NOTE", "Stops"]

NOTE = "pullback.training"
"""The key of what is noted in a node: operation and place."""


class Stops:
    """Finds where the gradients of some leaves stop.

    Arguments:
        behind: the bits of the leaves behind a node.

    Attributes:
        found: where gradients stop: bits of leaves, operation, and ``"file:line"`` if it is known.
        wanted: bits of the leaves in question.
    """

    def __init__(self, behind: Callable[[Any], int]) -> None:
        self._behind = behind
        self.found: list[tuple[int, str, str]] = []
        self.wanted = 0
        self._handles: list[Any] = []

    def watch(self, roots: list[Any]) -> None:
        """Hook the nodes between the roots of a backward pass and the leaves in question."""
        self.clear()
        waiting, seen = list(roots), set()
        while waiting and self.wanted:
            node = waiting.pop()
            if node is not None and node not in seen and self._behind(node) & self.wanted:
                seen.add(node)
                if node.next_functions:  # none behind a leaf
                    self._handles.append(node.register_hook(self._hook(node)))
                waiting.extend(other for other, _ in node.next_functions)

    def clear(self) -> None:
        """Take the hooks off."""
        while self._handles:
            self._handles.pop().remove()

    def _hook(self, node: Any) -> Callable[[Any, Any], None]:
        # A node that its own hook keeps alive would never be freed.
        masks = [0 if other is None else self._behind(other) for other, _ in node.next_functions]
        stop = _stop_at(node)

        def hook(outgoing: Any, incoming: Any) -> None:
            if any(map(_is_something, incoming)):
                for mask, gradient in zip(masks, outgoing, strict=False):
                    if mask & self.wanted and not _is_something(gradient):
                        self.found.append((mask & self.wanted, *stop))
                        self.wanted &= ~mask  # the first is the cause

        return hook


def _is_something(gradient: torch.Tensor | None) -> bool:
    return gradient is not None and bool((gradient != 0).any())


def _stop_at(node: Any) -> tuple[str, str]:
    function = function_of(node)
    if function is not None:
        return f"{function.__qualname__.rpartition('.')[2]}.backward", _definition(function)
    name = node.name().removesuffix("Backward0").removesuffix("Backward1")
    return node.metadata.get(NOTE, (name, ""))


def _definition(function: Any) -> str:
    """Where the backward of a Function is written."""
    backward = inspect.unwrap(function.backward)
    try:
        lines, first = inspect.getsourcelines(backward)
        file = inspect.getsourcefile(backward)
    except (OSError, TypeError):
        return ""
    offsets = (n for n, line in enumerate(lines) if line.lstrip().startswith("def "))
    return f"{file}:{first + next(offsets, 0)}"
