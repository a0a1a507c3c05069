"""Run the clauses here, or in a process of their own: a crash or a hang there is a verdict here.

Two kinds of process: a fresh one, which imports the Function and reads the inputs from a file, and
a copy of this one, which has both as they are. Wherever clauses run, what is found is told by the
same messages.
"""

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pullback.conformance._clause import CAUSES, COMPILING, Clause
from pullback.conformance._worker import answer, judge, locate, pack
from pullback.conformance.inputs._arguments import Arguments
from pullback.conformance.inputs._held import own_generators
from pullback.conformance.inputs._subject import Subject
from pullback.conformance.process._forked import can_copy
from pullback.conformance.process._guard import environment, guarded
from pullback.errors import ArgumentError, UnsupportedError
from pullback.internal._defaults import read_defaults
from pullback.internal._processes import Child, Stopped, describe_end, start_copy, supervise
from pullback.internal._work_time import WorkTime
from pullback.internal._workers import prepare_worker, start_worker
from pullback.report import Finding, Report, Verdict

__all__ = ["CheckRun", "Isolation"]

Isolation = bool | Literal["copy"]

_WORKER = "pullback.conformance._worker"
# Importing torch in a new process takes seconds; no part of a Function's time.
_STARTUP = 120.0
_STARTS = "starts"  # what is told while a worker does
_FEW = 20  # clauses: of more, all are loaded beforehand


@dataclass
class CheckRun:
    """One check of some clauses, and what has been said so far, here or by workers.

    A worker that dies or hangs is replaced for the next clause; that in which it died or hung has
    the verdict ``crashes``. Its options are those of `check`.
    """

    subject: Subject
    arguments: Arguments
    clauses: Sequence[Clause]
    seed: int
    timeout: float | None
    isolate: Isolation
    thorough: bool
    on_finding: Callable[[Finding], object] | None
    on_start: Callable[[str], object] | None
    findings: dict[str, Finding] = field(default_factory=dict)
    gradient: str = "exact"
    inferred: bool = True
    constants: Sequence[str] = ()
    cut_down: Sequence[str] = ()
    infer: bool = True
    running: str = ""
    trying: str = ""  # the clause for which edits are tried
    in_copies: bool = False  # whether edits are tried so, as one has ended a worker
    worked: float = 0.0  # seconds, all workers together
    since: float = 0.0  # what they had worked when the last one said something
    until: float | None = None  # and what they may
    read: int = 0
    hung: bool = False
    unfinished: str = ""

    def report(self) -> Report:
        """Run the clauses here, or in worker processes.

        Raises:
            ArgumentError: the subject or its inputs cannot be handed over, or do not fit.
        """
        started, declared = time.perf_counter(), self.subject.gradient
        self.gradient, self.inferred = declared or "exact", declared is None
        asked = [clause.id for clause in self.clauses]
        request: dict[str, Any] = {
            "gradient": declared, "seed": self.seed, "infer": True, "thorough": self.thorough,
            "asked": asked, "clauses": asked, "in_copies": False, "causes": (),
            "apart": bool(self.isolate), "seconds": None,
        }  # fmt: skip
        if self.isolate:
            with tempfile.TemporaryDirectory(
                prefix="pullback-", ignore_cleanup_errors=True
            ) as name:
                self._run_apart(request, Path(name))
        else:
            self._run_here(request)
        findings = tuple(self.findings[id_] for id_ in asked if id_ in self.findings)
        return Report(
            self.subject.name, self.gradient, self.inferred, findings, self.seed,
            time.perf_counter() - started, environment(), tuple(self.constants), self.unfinished,
            cut_down=tuple(self.cut_down),
        )  # fmt: skip

    def _run_here(self, request: dict[str, Any]) -> None:
        own = own_generators(self.subject.target)
        try:
            with guarded((*self.arguments.generators, *own)):
                judge(self.subject, self.arguments, request, self._heard, self.timeout)
        except RuntimeError as error:
            # On the way out the generators of a lost device cannot be put back either.
            first = error.__context__
            raise first if isinstance(first, UnsupportedError) else error from None

    # What is said -----------------------------------------------------------------------------

    def _heard(self, **message: Any) -> None:
        """Take in what is said, here or by a worker."""
        self.since = self.worked
        if self.until is None and self.timeout is not None:
            self.until = self.since + self.timeout
        if "started" in message:
            self._begins(message["started"])
        self.trying = message.get("trying", self.trying)
        vars(self).update(message.get("prepared", {}))
        if "over" in message:
            self.unfinished = self._said_over()
        if "finding" in message:
            self._add(Finding(**message["finding"]))
            self.running = ""
        if "misfit" in message:
            raise ArgumentError(
                message["misfit"], given=message["given"], expected="inputs the function accepts"
            )

    def _begins(self, what: str) -> None:
        """Tell what begins: a clause, which is what runs then, or work that is of none."""
        self.running, self.trying = what if what not in (CAUSES, _STARTS) else "", ""
        if self.on_start is not None:
            self.on_start(what)

    def _add(self, finding: Finding) -> None:
        """Keep a finding and tell whoever waits for it."""
        self.findings[finding.clause] = finding
        if self.on_finding is not None:
            self.on_finding(finding)

    def _left(self) -> list[str]:
        return [clause.id for clause in self.clauses if clause.id not in self.findings]

    # Workers ----------------------------------------------------------------------------------

    def _run_apart(self, request: dict[str, Any], folder: Path) -> None:
        """Have workers run the clauses, one after the other until all have a verdict."""
        start = self._starter(request, folder)
        while not self.unfinished and (left := self._left()):
            # Those that compile are run by another worker, copied when the compiler is loaded.
            quick = [name for name in left if name not in COMPILING]
            silent = (f for f in self.findings.values() if f.verdict is Verdict.BROKEN)
            request |= {
                "infer": self.infer, "defaults": read_defaults(), "in_copies": self.in_copies,
                "clauses": quick or left, "seconds": self._seconds_left(),
                "causes": [asdict(finding) for finding in silent if not finding.cause],
            }  # fmt: skip
            (folder / "answers.jsonl").write_text("")
            self.read, self.since = 0, self.worked
            self._begins(_STARTS)
            try:
                self._judge_end(self._run_worker(start(), folder), request["clauses"])
            except Stopped:
                self.unfinished = "interrupted"
        if self.unfinished:
            self.unfinished += f"; not run: {', '.join(self._left())}"

    def _starter(self, request: dict[str, Any], folder: Path) -> Callable[[], Child]:
        """How a worker is started on a request."""

        def copy() -> Child:
            return start_copy(lambda: answer(self.subject, self.arguments, request, folder), folder)

        if self.isolate == "copy":
            if not can_copy():
                raise ArgumentError(
                    "A copy of this process cannot check anything.",
                    given="a device in use, a backward that has run where there is a device, or a "
                    "platform other than Linux",
                    mend="Pass isolate=True or isolate=False.",
                )
            return copy
        try:
            where = locate(self.subject).to_data()
            pack(self.arguments, folder / "inputs.pt")
        except ArgumentError:
            if not can_copy():
                raise
            return copy

        def fresh() -> Child:
            (folder / "request.json").write_text(json.dumps({**request, "target": where}))
            # The first verdicts need little of what there is to load; torch's compiler is waited
            # for: it is loaded once, for all that are checked.
            compiles = [name for name in COMPILING if name in request["clauses"]]
            child = start_worker(_WORKER, folder, loaded=compiles[-1] if compiles else "")
            asked = request["asked"]
            if set(asked).intersection(COMPILING):  # while this one works
                named = tuple(sorted(asked)) if len(asked) <= _FEW else None
                prepare_worker(_WORKER, True, named)
            return child

        return fresh

    def _run_worker(self, child: Child, folder: Path) -> str:
        """Wait for one worker; how it died, or an empty text when it finished."""
        before, work = self.worked, WorkTime(child.pid)

        def give_up() -> str:
            self.worked = before + work.seconds
            self._read_answers(folder)
            return self._overdue()

        status, reason = supervise(child, give_up)
        if reason:
            return reason
        self._read_answers(folder)
        return describe_end(status, child.log)

    def _read_answers(self, folder: Path) -> None:
        """Take in the lines the worker has finished writing."""
        with (folder / "answers.jsonl").open("rb") as stream:
            stream.seek(self.read)
            fresh = stream.read()
        complete = fresh[: fresh.rfind(b"\n") + 1]
        self.read += len(complete)
        for line in complete.splitlines():
            self._heard(**json.loads(line))

    def _overdue(self) -> str:
        """Why the worker is waited for no longer, or an empty text."""
        allowed, over = self.timeout or 0.0, self.until is not None and self.worked > self.until
        if self.until is None:
            allowed, over = _STARTUP, self.worked - self.since > _STARTUP
        return f"It gave no answer within {allowed:g} s, the time that it may take." * over

    # Its end ----------------------------------------------------------------------------------

    def _judge_end(self, end: str, asked: Sequence[str]) -> None:
        """Give a verdict to the clause that a worker died in, of those it was asked for."""
        remaining = [c for c in self.clauses if c.id in asked and c.id not in self.findings]
        late = self.until is not None and self.worked > self.until
        if not remaining:
            return
        if late and not self._has_hung():
            self.unfinished = self._said_over()
        if self.unfinished:
            return
        if late:
            self.hung, self.until = True, None  # as long again, from the next one's first answer
        if self.running == "infer":
            self.infer = False  # the next one takes the default; the clauses will show the fault
            return
        if self.trying and not self.in_copies:
            self.in_copies = True  # what ended it was an edit of ours: again, in copies
            return
        early = self.running not in [clause.id for clause in remaining]
        # One cause gives one finding.
        first, *others = remaining if early else [c for c in remaining if c.id == self.running]
        self._add(Finding(
            first.id, Verdict.CRASHES, end or "The process ended without an answer.",
            seed=self.seed, source=self.subject.source, why=first.why,
            hint="Run the repro under a debugger (python -X faulthandler): the code called here "
            "dies.", fails="time" * late,
        ))  # fmt: skip
        for other in others:
            said = f"A plain call does not end well: see {first.id}."
            self._add(Finding(other.id, Verdict.SKIPPED, said, seed=self.seed))

    def _seconds_left(self) -> float | None:
        if self.timeout is None:
            return None
        return self.timeout if self.until is None else self.until - self.worked

    def _said_over(self) -> str:
        return f"the {self.timeout:g} s that it may take were over (--timeout)"

    def _has_hung(self) -> bool:
        """Whether the running clause, rather than all of them together, has taken the time."""
        if self.hung or not self.running or self.running in COMPILING:  # torch's compiler is slow
            return False
        return self.worked - self.since > (self.timeout or 0) / 2
