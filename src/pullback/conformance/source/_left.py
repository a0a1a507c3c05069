"""What forward leaves on what calls share: its class, and objects that it was given.

Where it is run, by what has changed; where nothing can be run, by how the rules are written.
"""

import ast
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from operator import attrgetter
from types import FunctionType, ModuleType
from typing import Any

import torch

from pullback.conformance.process._limits import held
from pullback.conformance.source._written import Written, names_in
from pullback.internal.torch import pytree

__all__ = ["LEFT", "Left", "copied", "shared_places"]

LEFT = "_pullback_left"
"""The attribute of a derived Function that names where something was left."""
# Tensors are the call's own, a context too; what others are made of is no state.
_OTHER = (torch.Tensor, torch.autograd.function.FunctionCtx, type, FunctionType, ModuleType)
_ABSENT = object()
_PLAIN = (int, float, str, set)


def copied(value: Any) -> Any:
    """A copy of a tensor without history, or of a container of some; else what it is."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone() if not value.requires_grad else value
    if type(value) in (list, dict):
        return pytree.tree_map(lambda v: copied(v) if isinstance(v, torch.Tensor) else v, value)
    return set(value) if type(value) is set else value


class Left:
    """Takes what forward leaves elsewhere to its context, and hands it to backward alone.

    Between the two what calls share is as it was.
    """

    def __init__(self, kind: type[torch.autograd.Function]) -> None:
        self.classes = [c for c in kind.__mro__ if c.__module__ == kind.__module__]
        # Where a context is handed to forward: whatever stands for one is the call's own.
        split = kind.setup_context is not torch.autograd.Function.setup_context
        self._first = 0 if split else 1
        self.places: dict[str, None] = {}
        self._lock = threading.RLock()
        self._before: list[tuple[Any, dict[str, Any]]] = []

    def forward(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Note how it is before forward runs."""
        self._before = [(owner, _state(owner)) for owner in self._owners(args[self._first :])]
        return method(*args, **kwargs)

    def fill(self, method: Callable[..., Any], ctx: Any, *args: Any, **kwargs: Any) -> Any:
        """Take what has changed since."""
        with held(self._lock):
            found = method(ctx, *args, **kwargs)
            left = []
            for owner, before in self._before:
                for name, value in _state(owner).items():
                    if name not in before or not _is_same(value, before[name]):
                        left.append((owner, name, value))
                        _put(owner, name, before.get(name, _ABSENT))
                        self.places.setdefault(self._place(owner, name))
            ctx.left_elsewhere = left
        return found

    def back(self, method: Callable[..., Any], ctx: Any, *cotangents: Any) -> Any:
        """Backward reads it where it was left."""
        with held(self._lock):
            before = [(o, name, vars(o).get(name, _ABSENT)) for o, name, _ in ctx.left_elsewhere]
            for owner, name, value in ctx.left_elsewhere:
                _put(owner, name, copied(value))
            try:
                return method(ctx, *cotangents)
            finally:
                for owner, name, value in before:
                    _put(owner, name, value)

    def _owners(self, args: Any) -> Iterator[Any]:
        yield from self.classes
        for value in pytree.tree_leaves(args):
            if not isinstance(value, _OTHER) and hasattr(value, "__dict__"):
                yield value

    def _place(self, owner: Any, name: str) -> str:
        return "the class" if owner in self.classes else f"`{name}` of {type(owner).__name__}"


def _state(owner: Any) -> dict[str, Any]:
    return {
        name: copied(value) for name, value in vars(owner).items()
        if not name.startswith("__") and not callable(value)
        and not isinstance(value, (staticmethod, classmethod, property))
    }  # fmt: skip


def _put(owner: Any, name: str, value: Any) -> None:
    if value is _ABSENT:
        if name in vars(owner):
            delattr(owner, name)
    elif isinstance(owner, type):
        setattr(owner, name, value)
    else:
        vars(owner)[name] = value


def _is_same(one: Any, other: Any) -> bool:
    pairs = pytree.tree_leaves(one), pytree.tree_leaves(other)
    return len(pairs[0]) == len(pairs[1]) and all(map(_is_equal, *pairs))


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one is other or (one.shape == other.shape and bool((one == other).all()))
    return one is other or (type(one) is type(other) and isinstance(one, _PLAIN)
                            and one == other)  # fmt: skip


# As it is written ---------------------------------------------------------------------------------


def shared_places(writers: Sequence[Written], readers: Sequence[Written]) -> Iterator[str]:
    """What is kept on a class, in a container or under a name beside the rules, and where.

    Arguments:
        writers: forward, and what it calls.
        readers: backward, and what it calls.

    Yields:
        ``"`Name.attribute`, written at file:line and read at file:line"`` for each thing that the
        ones write and the others read.
    """
    written = _first_places(writers, _is_write)
    for path, place in _first_places(readers, _is_read).items():
        if path in written:
            yield f"`{path}`, written at {written[path]} and read at {place}"


def _first_places(
    rules: Sequence[Written], wanted: Callable[[Written, Any], bool]
) -> dict[str, str]:
    """By their dotted names, where things beside some rules are met first."""
    found: dict[str, str] = {}
    for rule in rules:
        declared = {name for n in rule.nodes(ast.Global, ast.Nonlocal) for name in n.names}
        own = rule.local - declared
        nodes = [n for n in rule.nodes(ast.Name, ast.Attribute) if wanted(rule, n)]
        for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
            path = names_in(node)
            if path and path[0] not in own:
                found.setdefault(".".join(path), rule.where(node))
    return found


def _is_read(_: Written, node: Any) -> bool:
    return isinstance(node.ctx, ast.Load)


def _is_write(rule: Written, node: Any) -> bool:
    """Whether something is assigned, or an entry of it, or a container handed something."""
    around: Any = rule.parent[node]
    match around:
        case ast.Subscript(value=of) if of is node:
            return isinstance(around.ctx, ast.Store)
        case ast.Attribute(value=of) if of is node:
            call: Any = rule.parent[around]
            lone = isinstance(call, ast.Call) and isinstance(rule.parent[call], ast.Expr)
            return lone and call.func is around and _is_container(rule, node)
    return isinstance(node.ctx, ast.Store)


def _is_container(rule: Written, node: Any) -> bool:
    """Whether a dotted name beside a rule is that of a container: a module has functions, too."""
    root, *path = names_in(node) or [""]
    value = rule.function.__globals__.get(root)
    try:
        return isinstance(attrgetter(".".join(path))(value) if path else value, Collection)
    except AttributeError:
        return False
