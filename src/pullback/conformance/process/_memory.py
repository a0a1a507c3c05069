"""A limit for the memory of a call: what is tried with another number may ask for all there is.

A number that is no size may be tried in the place of one. What it asks for is refused before it is
filled, which the clock could not end: a kernel of torch's is left by no signal.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pullback.conformance.process._forked import is_copy

with suppress(ImportError):  # of Windows, where no copies are made
    import resource

__all__ = ["bounded"]

_SIZE = Path("/proc/self/statm")  # pages, of which the first number counts all


@contextmanager
def bounded(room: int | None) -> Iterator[None]:
    """Let a copy of the process have so many bytes more than it has; elsewhere there is no limit.

    An original may have other threads, to which memory would be refused as well.

    Arguments:
        room: how many; ``None`` for as many as there are.

    Raises:
        MemoryError: the block asks for more of Python; torch raises a ``RuntimeError``.

    Example:
        >>> with bounded(2**26):
        ...     done = True
        >>> done
        True
    """
    if room is None or not is_copy():
        yield
        return
    before = soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    size = int(_SIZE.read_text().split()[0]) * resource.getpagesize() + room
    ends = [size, *(end for end in (soft, hard) if end != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(ends), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
