"""Several ranks, as the process sees them that has started them.

It asks all of them at once and hears from each by itself: where one has answered and another sleeps
in a collective, that is what a collective left out looks like.
"""

import os
import pickle
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import torch.distributed as dist

from pullback.conformance.inputs._arguments import Arguments
from pullback.conformance.inputs._subject import Subject
from pullback.conformance.process._forked import can_copy
from pullback.conformance.ranks._rank import ENTERED, Answer, Rank
from pullback.errors import ArgumentError
from pullback.internal._arguments import Within, checked
from pullback.internal._processes import Child, describe_end, start_copy
from pullback.internal._work_time import WorkTime
from pullback.report import Verdict

__all__ = ["Failed", "Group", "Ranks", "Several", "refuse_here", "refuse_misfit"]

_MOST = 16
_POLL = 0.05
_STARTUP = 120.0
# A rank of another group that is started meanwhile would hold what must close when a rank ends.
_STARTING = threading.Lock()
_AFTER_ERROR = 0.3  # seconds: the others wait for a rank that has raised, as a rule

Several = Annotated[int, Within(f"2 to {_MOST}", lambda count: 2 <= count <= _MOST)]
"""How many ranks."""


@checked
@dataclass(frozen=True)
class Ranks:
    """The processes that a Function is checked on.

    Arguments:
        count: how many, 2 to 16.
        inputs: called with the rank in each rank's own process, where `torch.distributed` is ready:
            returns the tuple of its positional arguments, or ``None`` where the rank takes no part.
            It is the place to make process groups. Without it each rank is given what `check` was
            given, with other numbers: the same ones where all hold copies of one tensor.
        loss: ``"sum"``: each rank has a loss of its own, and the gradient is that of their sum.
            ``"replicated"``: all ranks compute the one loss, which counts once. ``None``: either;
            the report says which holds.

    Raises:
        ArgumentError: there are too few ranks or too many.
        ArgumentTypeError: there is no such loss, or the inputs are no function.

    Example:
        >>> Ranks(2, loss="sum").count
        2
    """

    count: Several
    inputs: Callable[[int], tuple[Any, ...] | None] | None = None
    loss: Literal["sum", "replicated"] | None = None


class Failed(Exception):
    """Not every rank has answered; the message says which, and what it does.

    It is ``lacking`` where the code refuses on purpose.
    """

    def __init__(self, said: str, verdict: Verdict = Verdict.CRASHES) -> None:
        super().__init__(said)
        self.verdict = verdict


class Group:
    """Ranks that run what they are asked to run, all at once.

    Raises:
        ArgumentError: the arguments cannot be made on a rank.
        Failed: a rank died.

    Attributes:
        described: the tensors among the arguments of each rank.
        alive: whether the ranks can be asked again.
        took: seconds that the last answer took, by the clock.
        speaks: whether any rank has entered a collective.
    """

    def __init__(self, subject: Subject, arguments: Arguments, ranks: Ranks, seed: int) -> None:
        self.subject, self.arguments, self.ranks, self.seed = subject, arguments, ranks, seed
        self.alive, self.speaks, self.took = False, False, 0.0
        with torch.enable_grad():  # a first backward imports much of torch: not on each rank
            x = torch.ones(1, requires_grad=True, device="cpu")
            torch.autograd.grad(x.clone(), x, torch.ones_like(x))
        self.start()

    def start(self) -> None:
        """Start the ranks where they have ended."""
        if self.alive:
            return
        self.alive, self._connections, self._children = True, list[Connection](), list[Child]()
        self._folder = tempfile.TemporaryDirectory(prefix="pullback-", ignore_cleanup_errors=True)
        self.close = weakref.finalize(
            self, _end, os.getpid(), self._children, self._connections, self._folder
        )
        whole, count = Path(self._folder.name), self.ranks.count
        self._entered = [whole / str(number) / ENTERED for number in range(count)]
        with _STARTING:
            for number, entered in enumerate(self._entered):
                ours, theirs = Pipe()
                entered.parent.mkdir()
                rank = Rank(number, count, self.subject, self._make, self.seed, theirs, whole)
                self._children.append(start_copy(rank.run, entered.parent))
                self._connections.append(ours)
                theirs.close()
        try:
            self.described: list[Arguments] = self._hear(_STARTUP)
        except BaseException:
            self.close()
            raise

    def _make(self, rank: int) -> Arguments | None:
        """The arguments of a rank, made there, or ``None`` where it takes no part."""
        if self.ranks.inputs is None:
            return self.arguments
        given = self.ranks.inputs(rank)
        if given is None:
            return None
        if not isinstance(given, (tuple, list)):
            raise TypeError(f"it returned no tuple, but {type(given).__name__}")
        made = Arguments.of(tuple(given), self.arguments.kwargs)
        refuse_misfit(self.subject, made)
        return made

    def ask(
        self, name: str, given: Sequence[tuple[Any, ...]], patience: float,
        late: Sequence[float] = (), linger: Sequence[float] = (),
    ) -> list[Answer]:  # fmt: skip
        """Have all ranks run a method of theirs, forward or backward, at once.

        Each may take so many seconds of work, or of sleep; some come late, or linger when they have
        entered a collective.

        Raises:
            Failed: a rank raised, died, or stands still.
        """
        if not self.alive:
            raise Failed("The ranks have ended.")
        still = [0.0] * len(given)
        each = zip(self._connections, given, late or still, linger or still, strict=True)
        for connection, *asked in each:
            connection.send_bytes(pickle.dumps((name, *asked)))
        return self._hear(patience)

    def _hear(self, patience: float) -> list[Any]:
        started = time.monotonic()
        waiting = dict(enumerate(self._connections))
        spent = [WorkTime(child.pid) for child in self._children]
        answers: dict[int, tuple[str, Any]] = {}
        while waiting:
            ready = wait([*waiting.values()], _POLL)
            for rank in [rank for rank, connection in waiting.items() if connection in ready]:
                answers[rank] = self._message(rank)
                del waiting[rank]
            failed = any(kind != "answer" for kind, _ in answers.values())
            limit = min(patience, _AFTER_ERROR) if failed else patience
            # One that others starve of a processor neither works nor sleeps: it is waited for.
            if waiting and min(spent[rank].seconds for rank in waiting) > limit:
                break
        self.took = time.monotonic() - started
        entered = [path.read_text().splitlines() if path.exists() else [] for path in self._entered]
        self.speaks = self.speaks or any(entered)
        if waiting or any(kind == "died" for kind, _ in answers.values()):
            self.alive = False
            ends: Any = self.close()
            for rank in [rank for rank, (kind, _) in answers.items() if kind == "died"]:
                answers[rank] = "died", (ends[rank] or "The process ended.", Verdict.CRASHES)
        _raise_cause(answers, entered)
        return [answers[rank][1] for rank in range(len(answers))]

    def _message(self, rank: int) -> tuple[str, Any]:
        try:
            return pickle.loads(self._connections[rank].recv_bytes())  # noqa: S301 - of our own
        except (EOFError, OSError):
            return "died", None


def _end(
    owner: int, children: Sequence[Child], connections: Sequence[Connection],
    folder: tempfile.TemporaryDirectory[str],
) -> list[str]:  # fmt: skip
    """End the ranks, and tell how each has ended; a copy of their owner leaves them alone."""
    if os.getpid() != owner:
        return []
    for connection in connections:
        connection.close()
    ends = [describe_end(child.end(), child.log) for child in children]
    folder.cleanup()
    return ends


def _raise_cause(answers: dict[int, tuple[str, Any]], entered: Sequence[Sequence[str]]) -> None:
    """Of one that died and one that raised, the other may have heard of it only."""
    for rank, (kind, value) in answers.items():
        if kind == "unmade":
            raise ArgumentError(
                "The inputs of a rank cannot be made.", given=f"rank {rank}: {value[0]}",
                expected="a function of the rank that returns a tuple of arguments, or None",
            )  # fmt: skip
    for wanted in ("died", "raised"):
        for rank, (kind, value) in answers.items():
            if kind == wanted:
                raise Failed(f"rank {rank}: {value[0]}", value[1])
    told = []
    for rank, names in enumerate(entered):
        if rank in answers:
            told.append(f"rank {rank} is through, after {' and '.join(names) or 'no collective'}")
        elif names:
            told.append(f"rank {rank} waits in {names[-1]}, its collective number {len(names)}")
        else:
            told.append(f"rank {rank} waits, in no collective of torch.distributed")
    if len(answers) < len(entered):
        raise Failed(f"It does not end: {'; '.join(told)}.")


def refuse_misfit(subject: Subject, arguments: Arguments) -> None:
    """Refuse arguments that do not fit the signature of what is checked."""
    said = subject.misfit(arguments.args, arguments.kwargs)
    if said:
        raise ArgumentError("The function does not take these inputs.", given=said)


def refuse_here() -> None:
    """Refuse to start ranks where no copy of this process can be one."""
    if not (can_copy() and dist.is_available() and dist.is_gloo_available()):
        raise ArgumentError(
            "No ranks can be started from here.",
            given="a device in use, a backward that has run where there is a device, another "
            "platform than Linux, or a torch without gloo",
            mend="Check on ranks in a fresh process.",
        )
    if dist.is_initialized():
        raise ArgumentError(
            "A check on ranks starts processes of its own, and this one is a rank already.",
            given="a process in which torch.distributed is initialized",
            mend="Check in a program of its own, without torchrun.",
        )
