"""What few Variables have: a name, hooks, an origin."""

from collections.abc import Callable
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

    __slots__ = ("accumulate", "hooks", "name", "origin", "post_hooks")

    def __init__(self) -> None:
        self.name: str | None = None
        self.origin: Origin | None = None
        self.accumulate: Any = None  # a weak reference to the node that accumulates into .grad
        self.hooks: dict[int, Callable[..., Any]] = {}
        self.post_hooks: dict[int, Callable[..., Any]] = {}
