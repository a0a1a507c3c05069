"""Marks of tests that not every torch can pass, with the reason, so that none is lost silently."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

__all__ = ["in_threads", "needs_torch", "refused_before"]


def needs_torch(version: str, what: str) -> Any:
    """Skip a test where torch does not have what it is about."""
    return pytest.mark.skipif(
        torch.__version__ < version, reason=f"torch {version} brings {what}: there is none here"
    )


# Of tests that derive in several threads at once: what compiles after them would not be compiled.
in_threads = needs_torch("2.11", "a compiler that goes on when several threads have left it")


def refused_before(version: str, why: str, *, match: str) -> Callable[[Any], Any]:
    """On a torch before the version, let a test hold that ours is the error it ends in.

    Arguments:
        version: the first torch where the test passes.
        why: what is refused before.
        match: a pattern for the message of the refusal.
    """
    if torch.__version__ >= version:
        return lambda test: test

    def mark(test: Any) -> Any:
        @functools.wraps(test)
        def refused(*args: Any, **kwargs: Any) -> None:
            with pytest.raises(Exception, match=match):
                test(*args, **kwargs)
            pytest.xfail(f"refused by name before torch {version}: {why}")

        return refused

    return mark
