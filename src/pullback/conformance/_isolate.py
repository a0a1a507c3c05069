"""Run the clauses in a process of their own: a crash or a hang there is a verdict here."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pullback.conformance._arguments import Arguments
from pullback.conformance._clause import Clause, bearer
from pullback.conformance._environment import environment
from pullback.conformance._subject import Subject
from pullback.conformance._transfer import locate, pack
from pullback.errors import ArgumentError
from pullback.report import Finding, Report, Verdict

__all__ = ["check_isolated"]

_POLL = 0.01
# Importing torch in a new process takes seconds on a busy machine; no part of a clause's time.
_STARTUP = 120.0


@dataclass
class _State:
    """What the workers have said so far."""

    findings: dict[str, Finding] = field(default_factory=dict)
    gradient: str = "exact"
    inferred: bool = True
    infer: bool = True
    running: str = ""
    since: float = 0.0
    read: int = 0
    on_finding: Callable[[Finding], object] | None = None

    def add(self, finding: Finding) -> None:
        """Keep a finding and tell whoever waits for it."""
        self.findings[finding.clause] = finding
        if self.on_finding is not None:
            self.on_finding(finding)


def check_isolated(
    subject: Subject,
    arguments: Arguments,
    clauses: Sequence[Clause],
    seed: int,
    timeout: float | None,
    *,
    on_finding: Callable[[Finding], object] | None = None,
) -> Report:
    """Check in worker processes; a worker that dies or hangs is replaced for the next clause.

    Arguments:
        subject: what is checked; another process must find it by module and name, or in a script.
        arguments: its inputs: tensors and plain data.
        clauses: the clauses to run.
        seed: the seed of every random choice.
        timeout: seconds for each clause, or ``None``.
        on_finding: called with each finding as soon as there is one.

    Returns:
        The report; a clause in which the process died or hung has the verdict ``crashes``.

    Raises:
        ArgumentError: the subject or its inputs cannot be handed over, or do not fit.
    """
    started = time.perf_counter()
    state = _State(
        gradient=subject.gradient or "exact",
        inferred=subject.gradient is None,
        on_finding=on_finding,
    )
    where = locate(subject).to_data()
    with tempfile.TemporaryDirectory(prefix="pullback-") as name:
        folder = Path(name)
        pack(arguments, folder / "inputs.pt")
        while left := [clause.id for clause in clauses if clause.id not in state.findings]:
            request = {
                "target": where, "gradient": subject.gradient, "clauses": left, "seed": seed,
                "infer": state.infer, "bearing": bearer(clauses),
            }  # fmt: skip
            (folder / "request.json").write_text(json.dumps(request))
            (folder / "answers.jsonl").write_text("")
            state.read, state.running = 0, ""
            end = _run_worker(folder, state, timeout)
            _judge_end(state, end, clauses, subject, seed)
    findings = tuple(state.findings[clause.id] for clause in clauses)
    return Report(
        subject.name, state.gradient, state.inferred, findings, seed,
        time.perf_counter() - started, environment(),
    )  # fmt: skip


def _run_worker(folder: Path, state: _State, timeout: float | None) -> str:
    """Run one worker to its end; how it died, or an empty text when it finished."""
    paths = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    log = folder / "errors.txt"
    with log.open("w") as stream:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [
                sys.executable,
                "-P",
                "-W",
                "ignore",
                "-m",
                "pullback.conformance._worker",
                str(folder),
            ],
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stream,
            start_new_session=True,
        )
        state.since = time.monotonic()
        try:
            while process.poll() is None:
                _read_answers(folder, state)
                limit = timeout if state.running else _STARTUP
                if limit is not None and time.monotonic() - state.since > limit:
                    return f"It gave no answer within {limit:g} s."
                time.sleep(_POLL)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        _read_answers(folder, state)
    return _describe_end(process.returncode, log)


def _read_answers(folder: Path, state: _State) -> None:
    """Take in the lines the worker has finished writing."""
    with (folder / "answers.jsonl").open("rb") as stream:
        stream.seek(state.read)
        fresh = stream.read()
    complete = fresh[: fresh.rfind(b"\n") + 1]
    state.read += len(complete)
    for line in complete.splitlines():
        message = json.loads(line)
        state.since = time.monotonic()
        if "started" in message:
            state.running = message["started"]
        if "prepared" in message:
            state.gradient = message["prepared"]["gradient"]
            state.inferred = message["prepared"]["inferred"]
        if "finding" in message:
            fields = message["finding"]
            state.add(Finding(verdict=Verdict(fields.pop("verdict")), **fields))
            state.running = ""
        if "misfit" in message:
            raise ArgumentError(
                message["misfit"], given=message["given"], expected="inputs the function accepts"
            )


def _describe_end(code: int, log: Path) -> str:
    """How a process ended, in words; empty for a clean end."""
    if code == 0:
        return ""
    if code < 0:
        return f"The process was killed by {signal.Signals(-code).name}."
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"The process ended with status {code}: {lines[-1] if lines else 'no message'}"


def _judge_end(
    state: _State, end: str, clauses: Sequence[Clause], subject: Subject, seed: int
) -> None:
    """Give a verdict to the clause that a worker died in, or to all when it died before any."""
    remaining = {clause.id: clause for clause in clauses if clause.id not in state.findings}
    if not remaining:
        return
    if state.running == "infer":
        state.infer = False  # the next worker takes the default; the clauses will show the fault
        return
    early = state.running in ("", "prepare") or state.running not in remaining
    text = end or "The process ended without an answer."
    hint = "Run the repro under a debugger (python -X faulthandler): the code called here dies."
    for id_ in list(remaining) if early else [state.running]:
        state.add(
            Finding(id_, Verdict.CRASHES, text, seed=seed, hint=hint, source=subject.source,
                    why=remaining[id_].why)
        )  # fmt: skip
