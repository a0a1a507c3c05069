"""How long a process has worked: a limit on it means the same on a busy machine as on a quiet one.

What counts is the time in which the process and what it has forked computes, and the time in which
all of it sleeps: a lock that nobody opens ends nothing by itself. What does not count is waiting
for a processor or a disk, which others keep busy, and being stopped.
"""

import os
import sys
import time
from contextlib import suppress

__all__ = ["WorkTime", "stat_fields"]

_EVERY = 0.2  # seconds between two looks: the kernel counts CPU time in hundredths
_LATE = 1.0  # a longer gap between two looks says that this process itself was stopped
_IDLE = 0.1  # of the clock: less CPU time is none, as a loop of short sleeps takes
_UNMOVED = 600.0  # seconds, by the clock: what is stopped may never be continued

# The states of a thread in which it waits of its own will, or has ended.
_ASLEEP = "SIZX"


class WorkTime:
    """The time that a process has worked since this was made.

    Where the system does not tell what a process does, all time counts.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._total = 0.0
        self._unmoved = 0.0
        self._at = time.monotonic()
        self._cpu, self._asleep = _look(pid)

    @property
    def seconds(self) -> float:
        """The time so far; endless for a process that has not moved at all for very long."""
        passed = time.monotonic() - self._at
        if passed >= _EVERY:
            self._count(passed)
        return float("inf") if self._unmoved > _UNMOVED else self._total

    def _count(self, passed: float) -> None:
        cpu, asleep = _look(self._pid)
        used = max(0.0, cpu - self._cpu)
        elapsed = min(passed, _LATE)
        if self._asleep and asleep and used < _IDLE * passed:
            self._total += elapsed
        else:
            # Of many threads no more than the clock: a machine with more of them is no reason.
            self._total += min(used, elapsed)
        self._unmoved = 0.0 if used else self._unmoved + elapsed
        self._at += passed
        self._cpu, self._asleep = max(cpu, self._cpu), asleep


def _look(pid: int) -> tuple[float, bool]:
    """The CPU time of a process and its descendants, and whether all their threads sleep."""
    if sys.platform != "linux":
        return 0.0, True
    ticks, states, pending = 0, set(), [str(pid)]
    while pending:
        home = f"/proc/{pending.pop()}"
        with suppress(OSError):  # it may end at any moment
            ticks += sum(map(int, stat_fields(home)[11:15]))  # its own, and of children that ended
            for thread in os.listdir(f"{home}/task"):
                states.add(stat_fields(f"{home}/task/{thread}")[0])
                with open(f"{home}/task/{thread}/children", encoding="ascii") as stream:
                    pending += stream.read().split()
    return ticks / os.sysconf("SC_CLK_TCK"), all(state in _ASLEEP for state in states)


def stat_fields(home: str) -> list[str]:
    """What stands in ``stat`` of /proc after the name of the program, which may hold anything."""
    with open(f"{home}/stat", encoding="utf-8", errors="replace") as stream:
        return stream.read().rpartition(")")[2].split()
