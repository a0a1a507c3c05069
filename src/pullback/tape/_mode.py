"""Whether operations are recorded, and which values a rule reads behind the tape's back."""

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

from pullback.errors import ArgumentTypeError
from pullback.internal._arguments import checked
from pullback.internal._setting import setting
from pullback.internal._text import shown

__all__ = [
    "OFF",
    "ON",
    "Mode",
    "enable_grad",
    "is_grad_enabled",
    "mode",
    "no_grad",
    "running",
    "set_grad_enabled",
]

F = TypeVar("F", bound=Callable[..., Any])


class Mode(NamedTuple):
    """How operations run here: recorded or not, and watched or not.

    ``watch`` collects what is read as plain data although it is differentiated: a derivative
    through such a reading would be silently missing. A Variable whose value decides something
    stands there as the one entry of a tuple: where the rule is differentiated, the decision stays
    as it is, but a rule that decides by its gradient is not linear.
    """

    grad: bool
    watch: list[Any] | None = None


ON, OFF = Mode(True), Mode(False)

# A context variable, so that threads and tasks each have their own.
mode: ContextVar[Mode] = ContextVar("pullback.tape.mode", default=ON)


def running(chosen: Mode) -> AbstractContextManager[Mode]:
    """Let operations run so inside."""
    return setting(mode, chosen)


def is_grad_enabled() -> bool:
    """Whether operations are recorded here.

    Example:
        >>> with no_grad():
        ...     is_grad_enabled()
        False
    """
    return mode.get().grad


class _Switch:
    """A context manager and decorator that sets the mode; right across threads and tasks."""

    __slots__ = ("_before", "_grad")

    def __init__(self, grad: bool) -> None:
        self._grad = grad
        self._before: list[Mode] = []

    def __enter__(self) -> None:
        now = mode.get()
        self._before.append(now)
        # A rule that is watched while it is recorded stays watched: what it computes in between
        # without recording has no history, as what it reads as plain data.
        if self._grad:
            mode.set(now if now.grad else ON)
        else:
            mode.set(Mode(False, now.watch) if now.grad and now.watch is not None else OFF)

    def __exit__(self, *error: object) -> None:
        mode.set(self._before.pop())

    def __call__(self, function: F) -> F:
        chosen = self._grad
        # What yields would run outside: its body goes on when somebody asks for the next.
        yields = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        if yields or isinstance(function, type) or not callable(function):
            raise ArgumentTypeError(
                "Only a function or a coroutine function is decorated to record, or not.",
                given=shown(function), mend="Use it as a context manager inside.",
            )  # fmt: skip

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with _Switch(chosen):
                return function(*args, **kwargs)

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with _Switch(chosen):
                return await function(*args, **kwargs)

        return awaited if inspect.iscoroutinefunction(function) else called  # type: ignore[bad-return]


def no_grad() -> _Switch:
    """Record nothing inside: a context manager, or a decorator of a function or coroutine.

    Example:
        >>> from pullback.tape import Variable
        >>> x = Variable(2.0, requires_grad=True)
        >>> with no_grad():
        ...     y = x * x
        >>> y.requires_grad
        False
    """
    return _Switch(False)


def enable_grad() -> _Switch:
    """Record inside, also within `no_grad`.

    Example:
        >>> from pullback.tape import Variable
        >>> x = Variable(2.0, requires_grad=True)
        >>> with no_grad(), enable_grad():
        ...     y = x * x
        >>> y.requires_grad
        True
    """
    return _Switch(True)


class set_grad_enabled(_Switch):  # noqa: N801  # torch's name, both a call and a context manager
    """Switch recording on or off, at once; as a context manager, until its end.

    Arguments:
        mode: whether operations are recorded.

    Example:
        >>> with set_grad_enabled(False):
        ...     is_grad_enabled()
        False
        >>> is_grad_enabled()
        True
    """

    __slots__ = ()

    @checked
    def __init__(self, mode: bool) -> None:
        super().__init__(mode)
        super().__enter__()

    def __enter__(self) -> None:
        if self._before:  # it was switched when it was made
            self.__exit__()
        super().__enter__()

    def __call__(self, function: F) -> F:
        self.__exit__()  # a decorator changes nothing where it stands
        return super().__call__(function)
