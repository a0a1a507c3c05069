"""Tell an error that clearly says "not supported" from one that does not.

What plain forward and plain backward do is known before any clause runs. An error that comes up
only with a transform, or with other data, is a refusal where its type says that somebody meant it:
NotImplementedError and our own always, what torch's compiler has types for, a ValueError or a
failed assertion. By a RuntimeError or a TypeError torch refuses a transform that it cannot follow;
with other data it is an operation that does not fit, which nobody foresaw. All others, as an
AttributeError or a KeyError, are code that ran into what it was not written for. Where the author
wrote a rule for the very transform, no error of it is a refusal but one that says so by name.

Neither the words of a message nor the place that it comes from decides anything.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from pullback.errors import PullbackError
from pullback.report import Verdict

__all__ = ["Fault", "attempt", "classify", "describe", "is_written", "raised"]

_Answer = TypeVar("_Answer")
_Other = TypeVar("_Other")

_REFUSING_TYPES = {
    "Unsupported",
    "UserError",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "UnsupportedOperatorException",
    "GuardOnDataDependentSymNode",
}


@dataclass(frozen=True)
class Fault:
    """What keeps clauses from judging a call."""

    said: str  # what is wrong
    verdict: Verdict  # of the clause that tells it
    hint: str = ""  # how to mend it
    script: tuple[str, ...] = ()  # the lines that show it
    fails: str = ""  # the plain call that raises, "forward" or "backward"
    # whether it may be that an operation has met what does not fit it, which an edit may mend
    misfits: bool = False


def classify(error: BaseException, *, transform: bool = True, written: bool = False) -> Verdict:
    """``lacking`` for an error that refuses on purpose, ``crashes`` for any other.

    Arguments:
        error: what the checked code raised.
        transform: whether the call went through a transform of torch; if not, other data was
            tried, which torch refuses for the reason that the code does not fit it.
        written: whether the author wrote a rule for that transform.

    Example:
        >>> classify(NotImplementedError("You must implement the jvp function.")).value
        'lacking'
        >>> classify(AttributeError("'NoneType' object has no attribute 'clone'")).value
        'crashes'
    """
    if isinstance(error, (NotImplementedError, PullbackError)):
        return Verdict.LACKING
    if type(error).__name__ in _REFUSING_TYPES:
        return Verdict.LACKING
    meant = (ValueError, AssertionError, *([RuntimeError, TypeError] if transform else []))
    refuses = isinstance(error, meant) and not isinstance(error, TimeoutError)
    return Verdict.LACKING if refuses and not written else Verdict.CRASHES


def is_written(kind: Any, rule: str) -> bool:
    """Whether the author of a Function wrote a rule: not torch, nor we."""
    owners = [owner for owner in getattr(kind, "__mro__", ()) if rule in vars(owner)]
    if not owners or owners[0].__module__.partition(".")[0] in ("torch", "pullback"):
        return False
    if getattr(kind, rule) is getattr(torch.autograd.Function, rule, None):
        return False
    # torch refuses to call a vmap rule beside a forward that takes the context.
    return rule != "vmap" or kind.setup_context is not torch.autograd.Function.setup_context


def raised(ask: Callable[[], object]) -> BaseException | None:
    """What the checked code raises, for the caller to judge; ``None`` where it answers."""
    try:
        ask()
    except (Exception, SystemExit) as error:
        return error
    return None


def attempt(ask: Callable[[], _Answer], otherwise: _Other) -> _Answer | _Other:
    """What the checked code answers; something else where it raises, as outside of its domain.

    Example:
        >>> attempt(lambda: 1 / 0, "nothing")
        'nothing'
    """
    try:
        return ask()
    except (Exception, SystemExit):
        return otherwise


def describe(error: BaseException, limit: int = 240) -> str:
    r"""The type and the first lines of an error, on one line.

    Example:
        >>> describe(ValueError("no such\n  value"))
        'ValueError: no such value'
    """
    try:
        text = " ".join(str(error).split())
    except Exception:  # any type may have broken words
        text = ""
    short = text if len(text) <= limit else f"{text[: limit - 3]}..."
    return f"{type(error).__name__}: {short}" if short else type(error).__name__
