"""Run the script of a finding before it is shown: it must print the numbers of the finding."""

import contextlib
import io
import math
import re
from dataclasses import replace

from pullback.conformance._guard import guarded
from pullback.conformance._limits import limited
from pullback.report import Finding, Verdict

__all__ = ["verify"]

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|inf|nan)", re.IGNORECASE)
_DIGITS = 1e-3
_TINY = 1e-12


def verify(finding: Finding, patience: float) -> Finding:
    """The finding with a script that was run, or that says in a comment what it does not show.

    Arguments:
        finding: what failed.
        patience: the seconds of CPU time that the script may take.
    """
    if not finding.repro or finding.verdict is not Verdict.BROKEN:
        return finding
    printed, fault = _run(finding.repro, patience)
    if fault:
        note = f"# Run by the checker, this ended with {fault}\n"
    elif _prints(printed, finding.expected) and _prints(printed, finding.got):
        return finding
    else:
        note = "# Run by the checker, this shows the fault with other numbers than the finding's.\n"
    return replace(finding, repro=note + finding.repro)


def _run(script: str, patience: float) -> tuple[str, str]:
    """What a script prints, and what it raises."""
    printed = io.StringIO()
    try:
        with (
            contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()),
            guarded(), limited(patience),
        ):  # fmt: skip
            exec(compile(script, "repro.py", "exec"), {"__name__": "repro"})  # noqa: S102 - ours
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # the checked code may raise anything
        return printed.getvalue(), f"{type(error).__name__}: {str(error).splitlines()[:1]}"
    return printed.getvalue(), ""


def _prints(printed: str, text: str) -> bool:
    """Whether the numbers of a finding are among those printed, to four digits."""
    shown = re.match(r"\[([^]]*)\]|([-+]?\d\S*|nan|inf)(?= \(| \+-|$)", text)
    if shown is None:
        return True
    wanted = [float(n) for n in _NUMBER.findall(shown.group(1) or shown.group(2) or "")]
    found = [float(n) for n in _NUMBER.findall(printed)]
    return all(any(_same(one, other) for other in found) for one in wanted)


def _same(one: float, other: float) -> bool:
    if not (math.isfinite(one) and math.isfinite(other)):
        return str(one) == str(other)
    return abs(one - other) <= _DIGITS * abs(one) + _TINY
