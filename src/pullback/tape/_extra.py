"""What few Variables have: a name, hooks, an origin."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

__all__ = ["Extra", "Origin"]


class Origin(NamedTuple):
    """Where a piece of feedback comes from.

    Arguments:
        function: the name of the graph node that wrote it.
        role: the role of the output that it answers for.
        node: tells the nodes of one process apart.
    """

    function: str
    role: str
    node: int


class Extra:
    """What few Variables have."""

    name: str | None = None
    origin: Origin | None = None
    accumulate: Any = None  # a weak reference to the node that accumulates into .grad
    hooks: Mapping[int, Callable[..., Any]] = MappingProxyType({})
    post_hooks: Mapping[int, Callable[..., Any]] = MappingProxyType({})
