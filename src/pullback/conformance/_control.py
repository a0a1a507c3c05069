"""A control before an accusation: is a Function right where arguments are made in the same way?

One that is wrong at ordinary numbers, at the given size or with the given dimensions has another
fault, which another clause tells; and one that is wrong wherever arguments were made like those
that accuse it takes arguments of a kind that nobody named.
"""

from collections.abc import Iterable

from pullback.conformance._arguments import Arguments
from pullback.conformance._derivative import judge
from pullback.conformance._forked import ProcessDied, forked
from pullback.conformance._probe import Probe
from pullback.conformance._screen import Run
from pullback.report import Finding

__all__ = ["already", "dies_in_a_copy", "is_foreign", "is_right", "is_wrong"]


def is_wrong(probe: Probe) -> bool:
    """Whether backward is wrong where it is asked, of all inputs at once or of one alone."""
    count = len(probe.inputs.differentiable)
    choices = (None, *range(min(count, 8))) if count > 1 else (None,)
    return any(judge(probe, only).is_wrong for only in choices)


def is_right(probe: Probe) -> bool:
    """Whether finite differences tell that backward is right, of all inputs at once."""
    return judge(probe).match == "match"


def is_foreign(probe: Probe, controls: Iterable[Arguments]) -> bool:
    """Whether arguments that are made as those in question are outside of the domain anyway."""
    return any(is_wrong(probe.at(inputs)) for inputs in controls)


def already(probe: Probe, where: str) -> Finding | None:
    """One cause gives one finding: what is wrong as it was given is `derivative`'s."""
    if probe.intent != "exact" or not is_wrong(probe):
        return None
    return probe.skipped(f"The derivative is wrong {where} already.")


def dies_in_a_copy(probe: Probe) -> bool:
    """Whether a copy of the process ends with the arguments as they are.

    So it does where threads have been started that a copy has not, as those of OpenMP by numba.
    """
    try:
        forked(lambda: len(Run.of(probe).every))
    except ProcessDied:
        return True
    except Exception:  # an error is no end
        return False
    return False
