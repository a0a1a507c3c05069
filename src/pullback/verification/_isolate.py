"""Test promises in a copy of this process: one that dies or hangs breaks the promise in hand."""

from collections.abc import Callable, Iterator
from multiprocessing import Pipe

from pullback.internal._processes import start_copy
from pullback.internal._work_time import WorkTime
from pullback.report import Verdict
from pullback.verification._error import Result

__all__ = ["isolated"]

_Results = dict[str, Result]
# Given what is known, yields the name of each other step before it, and with its result after it.
_Steps = Callable[[_Results], Iterator[tuple[str, Result | None]]]
_PATIENCE = 3.0  # times the timeout, of work or sleep: the copy itself stops what computes
_POLL = 0.1


def isolated(steps: _Steps, timeout: float, *, isolate: bool) -> _Results:
    """The results of steps in copies of this process; of one that ended the copy, that it crashes.

    Where it is not asked for the steps run here.
    """
    known: _Results = {}
    while True:
        began = ""
        for name, result in _copy(steps, known, timeout) if isolate else steps(known):
            began = name if result is None else ""
            if result is not None:
                known[name] = result
        if not began:
            return known
        known[began] = Result(Verdict.CRASHES, "the process died, or gave no answer in time")


def _copy(steps: _Steps, known: _Results, timeout: float) -> Iterator[tuple[str, Result | None]]:
    """What one copy says until it ends."""
    reader, writer = Pipe(duplex=False)

    def tell() -> None:
        for item in steps(known):
            writer.send(item)

    copy = start_copy(tell)
    writer.close()
    work, since = WorkTime(copy.pid), 0.0
    try:
        while work.seconds - since < _PATIENCE * timeout:
            if reader.poll(_POLL):
                yield reader.recv()
                since = work.seconds
    except EOFError:
        return
    finally:
        copy.end()
        reader.close()
