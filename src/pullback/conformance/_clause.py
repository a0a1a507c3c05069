"""`Clause`: one promise of the contract, and how it is run so that nothing escapes it."""

import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType

from pullback.conformance._failure import classify, describe
from pullback.conformance._guard import guarded
from pullback.conformance._probe import Probe
from pullback.conformance._report import Finding, Verdict
from pullback.errors import ArgumentError

__all__ = ["Clause", "check_timeout", "run_clause"]


@dataclass(frozen=True)
class Clause:
    """One promise of the contract.

    Arguments:
        id: the stable id, for example ``"derivative"``.
        promise: what the clause promises, one sentence.
        run: looks at a probe and gives a finding.
        mend: how a Function that fails with an unclear error here is usually mended.
        gradient: whether it needs an input and an output that are differentiated.
    """

    id: str
    promise: str
    run: Callable[[Probe], Finding]
    mend: str = ""
    gradient: bool = True


def run_clause(clause: Clause, probe: Probe, timeout: float | None = None) -> Finding:
    """Run one clause; an error of the checked code becomes a verdict.

    Arguments:
        clause: the clause.
        probe: the subject with its inputs.
        timeout: seconds after which the verdict is ``crashes``, or ``None`` for no limit.

    Returns:
        The finding.
    """
    probe = replace(probe, clause=clause.id)
    if clause.gradient and not (probe.inputs.differentiable and probe.outputs):
        return probe.skipped(f"Nothing is differentiated here: {_nothing(probe)}.")
    try:
        with guarded(), _deadline(timeout):
            return clause.run(probe)
    except (Exception, SystemExit) as error:  # the checked code may raise anything
        verdict = classify(error)
        said = f"It says {describe(error)}" if verdict is Verdict.LACKING else describe(error)
        finding = probe.lacking(said) if verdict is Verdict.LACKING else probe.crashes(said)
        return replace(finding, hint=clause.mend)


def check_timeout(timeout: float | None, isolate: bool) -> None:
    """Refuse a limit that cannot be kept.

    Raises:
        ArgumentError: the limit is not a positive number of seconds, or it needs a process of
            its own on this platform or thread.

    Example:
        >>> check_timeout(None, False)
    """
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise ArgumentError(
            "The timeout is not a time.", given=f"timeout={timeout!r}",
            expected="a positive number of seconds, or None",
        )  # fmt: skip
    if math.isinf(timeout):
        raise ArgumentError(
            "The timeout is not a time.", given=f"timeout={timeout!r}", mend="Pass timeout=None."
        )
    main = threading.current_thread() is threading.main_thread()
    if not isolate and not (main and hasattr(signal, "setitimer")):
        raise ArgumentError(
            "A timeout cannot be kept here without a process of its own.",
            given=f"timeout={timeout!r}, isolate=False",
            mend="Pass isolate=True.",
        )


@contextmanager
def _deadline(seconds: float | None) -> Iterator[None]:
    """Raise TimeoutError in the main thread after some seconds; put an older alarm back."""
    if seconds is None:
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no answer within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, interval)
        signal.signal(signal.SIGALRM, before)


def _nothing(probe: Probe) -> str:
    if not probe.inputs.differentiable:
        return "no input that the function takes has a gradient"
    return "no output carries a gradient"
