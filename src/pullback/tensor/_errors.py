"""Refusals by name that rules get for what torch raises in them."""

import contextlib
import copy
from collections.abc import Iterator

import torch

from pullback.errors import PullbackError, UnsupportedError
from pullback.internal.torch import is_raised_by_tracing

__all__ = ["Raised", "named", "without_frames"]


class Raised(UnsupportedError):
    """What torch raised in a rule, by name: in one on a batch, maybe not on one item of it."""


Raised.__name__ = UnsupportedError.__name__  # what a user sees, and catches


def without_frames(error: PullbackError) -> PullbackError:
    """The same error for a graph to hold: the frames that raised it hold that graph's tensors."""
    found = copy.copy(error)
    found.__cause__ = each = error.__cause__
    while each is not None:
        each.__traceback__ = None
        each = each.__cause__ or each.__context__
    return found


@contextlib.contextmanager
def named(what: str, mend: str) -> Iterator[None]:
    """Turn what torch raises in a rule into a refusal by name."""
    try:
        yield
    except (PullbackError, Warning, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        if is_raised_by_tracing(error):
            raise
        first = str(error).strip().split("\n")[0][:200]
        raise Raised(
            f"{what}: its rules raise {type(error).__name__}: {first}", mend=mend
        ) from error
