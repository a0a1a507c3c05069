"""The autograd nodes of custom Functions: find them, call them, watch their context."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch.autograd import function
from torch.autograd.function import BackwardCFunction, FunctionCtx
from torch.autograd.graph import saved_tensors_hooks

from pullback.conformance.inputs._arguments import is_composed
from pullback.internal.torch import function_of, metadata_of
from pullback.recording.locator import Locator
from pullback.tensor import Function, reference_of

__all__ = [
    "Marks",
    "Saved",
    "accumulated",
    "call_backward",
    "custom_nodes",
    "edges",
    "is_once",
    "is_within",
    "lacks_rule",
    "needed",
    "returned",
    "unit_cotangents",
    "watched_marks",
]


def custom_nodes(outputs: Sequence[torch.Tensor]) -> list[Any]:
    """Every node of a custom Function in the graph of ``outputs``, nearest first.

    The outputs must be held while a node is used: it is only a handle on what they keep alive.

    Example:
        >>> class Same(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x): return x.clone()
        ...     @staticmethod
        ...     def backward(ctx, g): return g
        >>> len(custom_nodes([Same.apply(torch.ones(2, requires_grad=True)) * 2]))
        1
    """
    return [node for node in _every_node(outputs) if function_of(node) is not None]


def lacks_rule(outputs: Sequence[torch.Tensor]) -> bool:
    """Whether an operation in the graph of ``outputs`` has no derivative, by torch's own mark."""
    return any(type(node).__name__ == "NotImplemented" for node in _every_node(outputs))


def is_within(tensor: torch.Tensor, outputs: Sequence[torch.Tensor]) -> bool:
    """Whether a tensor stands in the graph of ``outputs``: as a leaf, an output or between.

    Example:
        >>> x = torch.ones(2, requires_grad=True)
        >>> y = x.sin()
        >>> is_within(x, [y]), is_within(x.clone(), [y])
        (True, False)
    """
    if not tensor.requires_grad:
        return False
    try:
        own = torch.autograd.graph.get_gradient_edge(tensor).node
    except (AssertionError, RuntimeError):  # a view that forward made has none
        return False
    return any(own is node for node in _every_node(outputs))


def _every_node(outputs: Sequence[torch.Tensor]) -> list[Any]:
    """Every node in the graph of ``outputs``, nearest first."""
    queue = [y.grad_fn for y in outputs if y.grad_fn is not None]
    seen: set[int] = set()
    kept: list[Any] = []  # alive, so that no other node takes its id
    while queue:
        node = queue.pop(0)
        if id(node) in seen:
            continue
        seen.add(id(node))
        kept.append(node)
        queue.extend(child for child, _ in node.next_functions if child is not None)
    return kept


def call_backward(node: Any, cotangents: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
    """What the author's backward returns, before autograd reshapes, casts or drops it."""
    with torch.no_grad():  # as the engine calls it when no graph of backward is asked for
        returned = BackwardCFunction.apply(node, *cotangents)
    return returned if isinstance(returned, tuple) else (returned,)


def unit_cotangents(node: Any) -> list[torch.Tensor]:
    """A cotangent of ones for each output, those that need not be differentiated too."""
    return [
        torch.ones(tuple(entry.shape), dtype=entry.dtype, device=entry.device)
        for entry in metadata_of(node)
    ]


def returned(outputs: Sequence[torch.Tensor]) -> Iterator[tuple[Any, int, Any, Any]]:
    """What each author's backward returns for cotangents of ones.

    Yields:
        The node, the position of an input that needs a gradient, the metadata that its gradient
        must fit, and what was returned for it.
    """
    for node in custom_nodes(outputs):
        found = call_backward(node, unit_cotangents(node))
        yield from ((node, k, entry, found[k]) for k, entry in edges(node) if k < len(found))


def needed(node: Any) -> tuple[bool, ...]:
    """For each gradient that a node returns, whether it is asked for, by torch's own account.

    A class may count otherwise: that of `pullback.Function` goes by the arguments of its author.
    """
    flags: Any = BackwardCFunction.needs_input_grad  # a property, on the class
    found: tuple[bool, ...] = flags.__get__(node)
    return found


def edges(node: Any) -> list[tuple[int, Any]]:
    """For each input that needs a gradient: its position and the metadata its gradient must fit."""
    wanted = [k for k, is_needed in enumerate(needed(node)) if is_needed]
    targets = [(child, number) for child, number in node.next_functions if child is not None]
    if len(wanted) != len(targets):
        return []
    return [
        (k, metadata_of(child)[number]) for k, (child, number) in zip(wanted, targets, strict=True)
    ]


def is_once(functions: Sequence[Any]) -> bool:
    """Whether any Function is marked once_differentiable, so that it refuses a second derivative.

    A completed one is not: what it computes below the mark has a derivative, which it derives.
    """

    def marked(cls: Any) -> bool:
        if issubclass(cls, Function) and (Locator.of(cls).completed or reference_of(cls)):
            return False
        made_by = [getattr(rule, "__globals__", None) for rule in (cls.backward, cls.vjp)
                   if hasattr(rule, "__wrapped__")]  # fmt: skip
        return any(names is vars(function) for names in made_by)

    return any(map(marked, functions))


def accumulated(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    cotangents: Sequence[torch.Tensor],
    kept: Sequence[torch.Tensor],
    **options: Any,
) -> list[torch.Tensor | None]:
    """The gradients as they reach the inputs; nobody's ``.grad`` is changed.

    For a function that takes ``.backward()`` alone: one that runs forward again in backward cannot
    tell which gradients are asked for, and says so by ``torch.autograd._is_checkpoint_valid()``.
    Those kept are other tensors that backward reaches.
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


class Saved(saved_tensors_hooks):
    """Sees what a run saves.

    Arguments:
        instead: what backward is handed in the place of some, by number.
        copies: whether of the others it is handed copies.

    Attributes:
        tensors: what was saved, in order.
        read: the numbers of those that were read, in order.
    """

    def __init__(
        self, instead: Mapping[int, torch.Tensor] = MappingProxyType({}), *, copies: bool = False
    ) -> None:
        super().__init__(self._pack, self._unpack)
        self._instead, self._copies = instead, copies
        self.tensors, self.read = list[torch.Tensor](), list[int]()

    def _pack(self, tensor: torch.Tensor) -> int:
        own = tensor if is_composed(tensor) else tensor.detach()
        self.tensors.append(own.clone() if self._copies and own is not tensor else own)
        return len(self.tensors) - 1

    def _unpack(self, number: int) -> torch.Tensor:
        self.read.append(number)
        own, other = self.tensors[number], self._instead.get(number)
        return own if other is None or other.shape != own.shape else other


@dataclass
class Marks:
    """The tensors that Functions marked on their contexts while they were watched."""

    dirty: list[torch.Tensor] = field(default_factory=list)  # tensors given to ``mark_dirty``
    # by context, tensors given to ``mark_non_differentiable`` last
    non_differentiable: dict[Any, list[torch.Tensor]] = field(default_factory=dict)
    # those of earlier calls on the same context: torch keeps what the last one is given
    dropped: list[torch.Tensor] = field(default_factory=list)


@contextmanager
def watched_marks() -> Iterator[Marks]:
    """Watch what every Function tells its context."""
    marks = Marks()
    names: dict[str, dict[Any, list[torch.Tensor]]] = {
        "mark_dirty": {},
        "mark_non_differentiable": marks.non_differentiable,
    }
    originals = {name: getattr(FunctionCtx, name) for name in names}

    def watcher(name: str) -> Any:
        last = names[name]

        def method(self: Any, *values: Any) -> Any:
            given = [v for v in values if isinstance(v, torch.Tensor)]
            marks.dropped.extend(
                t for t in last.get(self, []) if not any(t is kept for kept in given)
            )
            last[self] = given
            if name == "mark_dirty":
                marks.dirty.extend(given)
            return originals[name](self, *values)

        return method

    try:
        for name in names:
            setattr(FunctionCtx, name, watcher(name))
        yield marks
    finally:
        for name, original in originals.items():
            setattr(FunctionCtx, name, original)
