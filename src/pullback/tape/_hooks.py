"""What few Variables have: hooks, a name, an origin; and hooks of what is saved."""

import itertools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, NamedTuple

from pullback.errors import ArgumentTypeError
from pullback.internal._arguments import checked

__all__ = ["Extra", "Handle", "Origin", "saved_hooks", "saved_variables_hooks"]


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
    accumulate: Any = None  # a weak reference to the node that accumulates into .grad
    hooks: Mapping[int, Callable[..., Any]] = MappingProxyType({})
    post_hooks: Mapping[int, Callable[..., Any]] = MappingProxyType({})


saved_hooks: ContextVar[tuple[Any, ...]] = ContextVar("pullback.tape.saved_hooks", default=())
_keys = itertools.count()


class Handle(AbstractContextManager["Handle"]):
    """Removes a hook: call `remove()`, or use it as a context manager."""

    __slots__ = ("_hooks", "_key")

    def __init__(self, hooks: dict[int, Any], entry: Any) -> None:
        hook = entry[1] if isinstance(entry, tuple) else entry
        if not callable(hook):
            raise ArgumentTypeError("A hook is a callable.", given=repr(hook)[:60])
        self._hooks, self._key = hooks, next(_keys)
        hooks[self._key] = entry

    def remove(self) -> None:
        """Remove the hook; a second time does nothing."""
        self._hooks.pop(self._key, None)

    def __exit__(self, *error: object) -> None:
        self.remove()


class saved_variables_hooks:  # noqa: N801  # torch's name of the same is in this style
    """Pack what is saved for backward inside, and unpack it when a rule reads it.

    Arguments:
        pack: given a Variable without history, gives what is kept in its place.
        unpack: given that, gives a Variable.

    Example:
        >>> from pullback.tape import Variable
        >>> x = Variable(3.0, requires_grad=True)
        >>> with saved_variables_hooks(lambda v: str(v.data), lambda s: Variable(float(s))):
        ...     y = x * x
        >>> y.backward()
        >>> x.grad
        Variable(6.0)
    """

    @checked
    def __init__(self, pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> None:
        self._pair = (pack, unpack)
        self._tokens: list[Any] = []

    def __enter__(self) -> None:
        self._tokens.append(saved_hooks.set((*saved_hooks.get(), self._pair)))

    def __exit__(self, *error: object) -> None:
        saved_hooks.reset(self._tokens.pop())
