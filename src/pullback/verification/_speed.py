"""How long a kernel takes beside its reference."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from pullback.conformance import Arguments, guarded
from pullback.report import Verdict
from pullback.verification._error import Result
from pullback.verification._work import Work, promise, wait

__all__ = ["speed"]

_ROUNDS = 9


@promise("it is none, and tested as one", "")
def speed(work: Work) -> Result:
    """The median time of the kernel over that of the reference, forward alone.

    Each round has fresh inputs, and takes the two in turn; a GPU has ended before time is read.
    """
    functions = [s.of(work.dtype) for s in (work.reference, work.kernel)]
    times: list[list[float]] = [[], []]
    try:
        with guarded(), torch.no_grad():
            for number in range(_ROUNDS):
                arguments = work.fresh(100 + number)
                for function, taken in zip(functions, times, strict=True):
                    taken.append(_seconds(function, arguments))
    except Exception as error:
        return Result(Verdict.SKIPPED, f"not measured: {error}")
    plain, kernel = (statistics.median(taken[1:]) for taken in times)
    return Result(Verdict.HOLDS, f"{kernel / plain:.2f} x the reference's")


def _seconds(function: Callable[..., Any], arguments: Arguments) -> float:
    args, kwargs = arguments.build([point.clone() for point in arguments.points()])
    wait()
    started = time.perf_counter()
    function(*args, **kwargs)
    wait()
    return time.perf_counter() - started
