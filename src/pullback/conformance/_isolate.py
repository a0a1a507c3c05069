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

from pullback.conformance._arguments import Arguments
from pullback.conformance._clause import COMPILING, Clause
from pullback.conformance._forked import can_copy
from pullback.conformance._guard import environment, guarded
from pullback.conformance._held import own_generators
from pullback.conformance._subject import Subject
from pullback.conformance._worker import LOADING, answer, judge, locate, pack
from pullback.errors import ArgumentError, UnsupportedError
from pullback.internal._defaults import read_defaults
from pullback.internal._processes import Child, Stopped, describe_end, start_copy, supervise
from pullback.internal._work_time import WorkTime
from pullback.internal._workers import prepare_worker, start_worker
from pullback.report import Finding, Report, Verdict

__all__ = ["Isolation", "check_clauses"]

Isolation = bool | Literal["copy"]

_WORKER = "pullback.conformance._worker"
# Importing torch in a new process takes seconds; no part of a Function's time.
_STARTUP = 120.0
_FEW = 20  # clauses: of more, all are loaded beforehand


@dataclass
class _State:
    """What the workers have said so far."""

    timeout: float | None
    findings: dict[str, Finding] = field(default_factory=dict)
    gradient: str = "exact"
    inferred: bool = True
    constants: Sequence[str] = ()
    infer: bool = True
    running: str = ""
    trying: str = ""  # the clause for which edits are tried
    spared: list[str] = field(default_factory=list)  # those for which one ended a worker
    worked: float = 0.0  # seconds, all workers together
    since: float = 0.0  # what they had worked when the last one said something
    until: float | None = None  # and what they may
    read: int = 0
    hung: bool = False
    unfinished: str = ""
    on_finding: Callable[[Finding], object] | None = None
    on_start: Callable[[str], object] | None = None

    def add(self, finding: Finding) -> None:
        """Keep a finding and tell whoever waits for it."""
        self.findings[finding.clause] = finding
        if self.on_finding is not None:
            self.on_finding(finding)

    def take(self, message: dict[str, Any]) -> None:
        """Take in what is said, here or by a worker."""
        self.since = self.worked
        if self.until is None and self.timeout is not None:
            self.until = self.since + self.timeout
        if "started" in message:
            self.running, self.trying = message["started"], ""
            if self.on_start is not None:
                self.on_start(self.running)
        self.trying = message.get("trying", self.trying)
        vars(self).update(message.get("prepared", {}))
        if "finding" in message:
            self.add(Finding(**message["finding"]))
            self.running = ""
        if "misfit" in message:
            raise ArgumentError(
                message["misfit"], given=message["given"], expected="inputs the function accepts"
            )

    def overdue(self) -> str:
        """Why the worker is waited for no longer, or an empty text."""
        if self.until is None:
            return _no_answer(_STARTUP) if self.worked - self.since > _STARTUP else ""
        return _no_answer(self.timeout or 0) if self.worked > self.until else ""


def _no_answer(seconds: float) -> str:
    return f"It gave no answer within {seconds:g} s, the time that it may take."


def check_clauses(
    subject: Subject,
    arguments: Arguments,
    clauses: Sequence[Clause],
    *,
    seed: int,
    timeout: float | None,
    isolate: Isolation = False,
    thorough: bool = False,
    on_finding: Callable[[Finding], object] | None = None,
    on_start: Callable[[str], object] | None = None,
) -> Report:
    """Check here, or in worker processes, with the options of `check`.

    A worker that dies or hangs is replaced for the next clause; that in which it died or hung has
    the verdict ``crashes``.

    Raises:
        ArgumentError: the subject or its inputs cannot be handed over, or do not fit.
    """
    started = time.perf_counter()
    state = _State(
        timeout,
        gradient=subject.gradient or "exact",
        inferred=subject.gradient is None,
        on_finding=on_finding,
        on_start=on_start,
    )
    asked = [clause.id for clause in clauses]
    request: dict[str, Any] = {
        "gradient": subject.gradient, "seed": seed, "infer": True, "thorough": thorough,
        "asked": asked, "clauses": asked, "spared": (), "causes": (), "apart": bool(isolate),
    }  # fmt: skip
    if isolate:
        _check_apart(subject, arguments, clauses, state, request, isolate)
    else:
        _check_here(subject, arguments, request, state, timeout)
    findings = tuple(state.findings[c.id] for c in clauses if c.id in state.findings)
    return Report(
        subject.name, state.gradient, state.inferred, findings, seed,
        time.perf_counter() - started, environment(), tuple(state.constants), state.unfinished,
    )  # fmt: skip


def _check_here(
    subject: Subject, arguments: Arguments, request: dict[str, Any], state: _State,
    timeout: float | None,
) -> None:  # fmt: skip
    """Run the clauses in this process."""
    try:
        with guarded((*arguments.generators, *own_generators(subject.target))):
            judge(subject, arguments, request, lambda **said: state.take(said), timeout)
    except RuntimeError as error:
        # On the way out the generators of a lost device cannot be put back either.
        first = error.__context__
        raise first if isinstance(first, UnsupportedError) else error from None


def _check_apart(  # noqa: PLR0917 - what one check is made of
    subject: Subject, arguments: Arguments, clauses: Sequence[Clause], state: _State,
    request: dict[str, Any], isolate: Isolation,
) -> None:  # fmt: skip
    """Have workers run the clauses, one after the other until all have a verdict."""
    with tempfile.TemporaryDirectory(prefix="pullback-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        start = _starter(subject, arguments, folder, isolate, request["asked"])
        while not state.unfinished and (left := _left(clauses, state)):
            # Those that compile are run by another worker, copied when the compiler is loaded.
            quick = [name for name in left if name not in COMPILING]
            silent = (f for f in state.findings.values() if f.verdict is Verdict.BROKEN)
            request |= {
                "infer": state.infer, "defaults": read_defaults(), "spared": state.spared,
                "clauses": quick or left,
                "causes": [asdict(finding) for finding in silent if not finding.cause],
            }  # fmt: skip
            (folder / "answers.jsonl").write_text("")
            state.read, state.running, state.since = 0, "", state.worked
            try:
                end = _run_worker(start(request), folder, state)
            except Stopped:
                state.unfinished = "interrupted"
                break
            asked = [clause for clause in clauses if clause.id in request["clauses"]]
            _judge_end(state, end, asked, subject, request["seed"])
    if state.unfinished:
        state.unfinished += f"; not run: {', '.join(_left(clauses, state))}"


def _left(clauses: Sequence[Clause], state: _State) -> list[str]:
    return [clause.id for clause in clauses if clause.id not in state.findings]


def _starter(
    subject: Subject,
    arguments: Arguments,
    folder: Path,
    isolate: Isolation,
    asked: Sequence[str],
) -> Callable[..., Child]:
    """How a worker is started on a request."""

    def copy(request: dict[str, Any]) -> Child:
        return start_copy(lambda: answer(subject, arguments, request, folder), folder)

    if isolate == "copy":
        if not can_copy():
            raise ArgumentError(
                "A copy of this process cannot check anything.",
                given="a device in use, a backward that has run where there is a device, or a "
                "platform other than Linux",
                mend="Pass isolate=True or isolate=False.",
            )
        return copy
    try:
        where = locate(subject).to_data()
        pack(arguments, folder / "inputs.pt")
    except ArgumentError:
        if not can_copy():
            raise
        return copy

    def fresh(request: dict[str, Any]) -> Child:
        (folder / "request.json").write_text(json.dumps({**request, "target": where}))
        # What its clauses load is loaded before the copy: once, for all that are checked.
        heavy = [name for name in LOADING + COMPILING if name in request["clauses"]]
        child = start_worker(_WORKER, folder, loaded=heavy[-1] if heavy else "")
        if set(asked).intersection(COMPILING):  # while this one works
            named = tuple(sorted(asked)) if len(asked) <= _FEW else None
            prepare_worker(_WORKER, True, named)
        return child

    return fresh


def _run_worker(child: Child, folder: Path, state: _State) -> str:
    """Wait for one worker; how it died, or an empty text when it finished."""
    before, work = state.worked, WorkTime(child.pid)

    def give_up() -> str:
        state.worked = before + work.seconds
        _read_answers(folder, state)
        return state.overdue()

    status, reason = supervise(child, give_up)
    if reason:
        return reason
    _read_answers(folder, state)
    return describe_end(status, child.log)


def _read_answers(folder: Path, state: _State) -> None:
    """Take in the lines the worker has finished writing."""
    with (folder / "answers.jsonl").open("rb") as stream:
        stream.seek(state.read)
        fresh = stream.read()
    complete = fresh[: fresh.rfind(b"\n") + 1]
    state.read += len(complete)
    for line in complete.splitlines():
        state.take(json.loads(line))


def _judge_end(
    state: _State, end: str, asked: Sequence[Clause], subject: Subject, seed: int
) -> None:
    """Give a verdict to the clause that a worker died in, of those it was asked for."""
    remaining = {clause.id: clause for clause in asked if clause.id not in state.findings}
    late = state.until is not None and state.worked > state.until
    if not remaining:
        return
    if late and not _has_hung(state):
        state.unfinished = f"the {state.timeout:g} s that it may take were over (--timeout)"
        return
    if late:
        state.hung, state.until = True, None  # as long again, from the next worker's first answer
    if state.running == "infer":
        state.infer = False  # the next worker takes the default; the clauses will show the fault
        return
    if state.trying and state.trying not in state.spared:
        state.spared.append(state.trying)  # what ended it was an edit of ours: again without any
        return
    text = end or "The process ended without an answer."
    hint = "Run the repro under a debugger (python -X faulthandler): the code called here dies."
    early = state.running not in remaining
    first = next(iter(remaining))
    for id_ in list(remaining) if early else [state.running]:
        # One cause gives one finding.
        cause = id_ == first or not early
        state.add(
            Finding(
                id_, Verdict.CRASHES if cause else Verdict.SKIPPED,
                text if cause else f"A plain call does not end well: see {first}.", seed=seed,
                hint=hint if cause else "", source=subject.source if cause else "",
                why=remaining[id_].why if cause else "",
            )
        )  # fmt: skip


def _has_hung(state: _State) -> bool:
    """Whether the running clause, rather than all of them together, has taken the time."""
    if state.hung or not state.running or state.running in COMPILING:  # torch's compiler takes long
        return False
    return state.worked - state.since > (state.timeout or 0) / 2
