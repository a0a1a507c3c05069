"""Refusals by name that rules get for what torch raises in them."""

import contextlib
import copy
from collections.abc import Iterator

import torch

from pullback.errors import PullbackError, UnsupportedError
from pullback.internal.torch import is_raised_by_tracing

__all__ = ["Raised", "in_short", "is_of_rules", "named", "without_frames"]


class Raised(UnsupportedError):
    """What torch raised in a rule, by name: in one on a batch, maybe not on one item of it."""


Raised.__name__ = UnsupportedError.__name__  # what a user sees, and catches


def without_frames(error: PullbackError) -> PullbackError:
    """The same error for a graph to hold: the frames that raised it hold that graph's tensors."""
    found = copy.copy(error)
    found.__cause__ = error.__cause__
    each, seen = error.__cause__, set[int]()
    while each is not None and id(each) not in seen:  # what is raised twice may lead to itself
        seen.add(id(each))
        each.__traceback__ = None
        each = each.__cause__ or each.__context__
    return found


def is_of_rules(error: BaseException) -> bool:
    """Whether it is an error of what rules do, which is refused: no refusal, end or warning."""
    others = (PullbackError, Warning, torch.OutOfMemoryError, MemoryError)
    known = isinstance(error, Exception) and not isinstance(error, others)
    return known and not is_raised_by_tracing(error)


def in_short(error: BaseException) -> str:
    """The type of an error, and the first line of what it says."""
    first = str(error).strip().split("\n")[0][:200]
    return f"{type(error).__name__}: {first}"


@contextlib.contextmanager
def named(what: str, mend: str) -> Iterator[None]:
    """Turn what torch raises in a rule into a refusal by name."""
    try:
        yield
    except Exception as error:
        if not is_of_rules(error):
            raise
        raise Raised(f"{what}: its rules raise {in_short(error)}", mend=mend) from error
