"""`Stops`: the node of the graph of autograd at which a gradient that came in goes on as nothing.

Hooks are put on the nodes between a loss and the leaves in question, for one backward pass. Where
what comes in is not zero and what goes on towards such a leaf is zero or ``None``, the gradient
stops; the first such node of the pass is the cause.

This file is also loaded by path into programs that have no pullback (``_recorder.py``).
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from pullback.internal.torch import function_of
from pullback.recording.training._flow import NOTE, bits

__all__ = ["Stop", "Stops"]


class Stop(NamedTuple):
    """Where a gradient ends.

    Arguments:
        operation: the operation, or ``"Name.backward"`` of a custom Function.
        place: ``"file:line"``, or an empty text where it is not known.
    """

    operation: str
    place: str


class Stops:
    """Finds where the gradients of some leaves stop.

    Arguments:
        bit: the bit of a leaf.

    Attributes:
        found: bit of a leaf -> where its gradient stops.
        wanted: bits of the leaves in question.
    """

    def __init__(self, bit: Callable[[Any], int]) -> None:
        self._bit = bit
        self.found: dict[int, Stop] = {}
        self.wanted = 0
        self._handles: list[Any] = []

    def watch(self, roots: list[Any]) -> None:
        """Hook the nodes between the roots of a backward pass and the leaves in question."""
        self.clear()
        if self.wanted:
            towards = self._towards([root.grad_fn for root in roots if root.grad_fn is not None])
            for node, mask in towards.items():
                if mask and not hasattr(node, "variable"):
                    self._handles.append(node.register_hook(self._hook(node, towards)))

    def clear(self) -> None:
        """Take the hooks off."""
        while self._handles:
            self._handles.pop().remove()

    def _towards(self, nodes: list[Any]) -> dict[Any, int]:
        """For each node, the bits of the leaves in question that lie behind it."""
        masks: dict[Any, int] = {}
        waiting = [(node, False) for node in nodes]
        while waiting:
            node, ready = waiting.pop()
            following = [other for other, _ in node.next_functions if other is not None]
            if ready:
                for other in following:
                    masks[node] |= masks[other]
            elif node not in masks:
                leaf = getattr(node, "variable", None)
                masks[node] = 0 if leaf is None else self._bit(leaf) & self.wanted
                waiting.append((node, True))
                waiting.extend((other, False) for other in following)
        return masks

    def _hook(self, node: Any, towards: dict[Any, int]) -> Callable[[Any, Any], None]:
        masks = [0 if other is None else towards[other] for other, _ in node.next_functions]
        # A node that its own hook keeps alive would never be freed.
        stop = _stop_at(node)

        def hook(outgoing: Any, incoming: Any) -> None:
            if not any(map(_is_something, incoming)):
                return
            for mask, gradient in zip(masks, outgoing, strict=False):
                if mask and not _is_something(gradient):
                    for number in bits(mask):
                        self.found.setdefault(1 << number, stop)

        return hook


def _is_something(gradient: torch.Tensor | None) -> bool:
    return gradient is not None and bool((gradient != 0).any())


def _stop_at(node: Any) -> Stop:
    function = function_of(node)
    if function is not None:
        return Stop(f"{function.__qualname__.rpartition('.')[2]}.backward", _definition(function))
    note = node.metadata.get(NOTE)
    name = node.name().removesuffix("Backward0").removesuffix("Backward1")
    return Stop(name if note is None else note[2], "" if note is None else note[3])


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
