"""One package: a forked child for each Function and state, rows on standard output."""

import contextlib
import csv
import importlib
import importlib.metadata
import json
import os
import select
import signal
import sys
import time
import traceback

import torch

import pullback
from benchmarks.wild.__main__ import COLUMNS, STATES
from benchmarks.wild._case import Published
from benchmarks.wild._intent import intent_of
from benchmarks.wild._probe import PROBES, prepare, verdict_of

PROBE_SECONDS = 60


def run_child(case: Published, state: str, names: list[str], pipe: int) -> None:
    """Run the probes in order and send one JSON line for each."""

    def send(**values: str) -> None:
        os.write(pipe, (json.dumps(values) + "\n").encode())

    torch.manual_seed(0)
    try:
        truth = prepare(case)
        truth.intent = intent_of(truth)
        send(probe="intent", verdict=truth.intent, detail="")
    except Exception as error:
        traceback.print_exc()
        send(probe="prepare", verdict="crashes", detail=f"{type(error).__name__}: {error}")
        return
    for name in names:
        send(probe=name, verdict="starts", detail="")
        caught: BaseException | None = None
        try:
            subject = prepare(case)
            subject.intent = truth.intent
            if state == "completed":
                subject.function = pullback.complete(subject.function)
            PROBES[name](subject, truth)
        except Exception as error:
            caught = error
            if os.environ.get("WILD_TRACEBACK"):
                traceback.print_exc()
        verdict, detail = verdict_of(caught)
        send(probe=name, verdict=verdict, detail=detail)


def read_lines(pipe: int, deadline: float):
    """Yield the child's lines until it ends or the time is over."""
    pending = b""
    while (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([pipe], [], [], left)
        if not ready:
            break
        chunk = os.read(pipe, 65536)
        if not chunk:
            return
        pending += chunk
        while b"\n" in pending:
            line, _, pending = pending.partition(b"\n")
            yield json.loads(line)
    yield {"probe": "time", "verdict": "over", "detail": ""}


def survey_state(case: Published, state: str) -> dict[str, str]:
    """All probes of one Function; a probe that ends the child `crashes`, and the next go on."""
    row: dict[str, str] = {"state": state}
    details: list[str] = []
    waiting = list(PROBES)
    while waiting:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            with contextlib.suppress(BaseException):
                run_child(case, state, waiting, writer)
            sys.stderr.flush()
            os._exit(0)
        os.close(writer)
        current, why = waiting[0], "the process ended"
        for line in read_lines(reader, time.monotonic() + PROBE_SECONDS * 3):
            if line["probe"] == "intent":
                row["intent"] = line["verdict"]
            elif line["probe"] == "prepare":
                raise SystemExit(f"{case.name}: the case does not run: {line['detail']}")
            elif line["probe"] == "time":
                why = "no answer in time"
            elif line["verdict"] == "starts":
                current = line["probe"]
            else:
                row[line["probe"]] = line["verdict"]
                waiting.remove(line["probe"])
                if line["detail"]:
                    details.append(f"{line['probe']}: {line['detail']}")
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        if waiting:
            row[current] = "crashes"
            waiting.remove(current)
            details.append(f"{current}: {why}")
    row["detail"] = " | ".join(details)
    return row


def warm_up() -> None:
    """Compile and transform something once, so that the children find everything imported."""
    torch.compile(torch.sin, fullgraph=True, backend="aot_eager")(torch.ones(1, requires_grad=True))
    torch.func.hessian(lambda x: x.sin().sum())(torch.ones(1))
    torch._dynamo.reset()


def main(stem: str, states: tuple[str, ...]) -> None:

    module = importlib.import_module(f"benchmarks.wild.cases_{stem}")
    version = importlib.metadata.version(module.PACKAGE)
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    for case in module.CASES:
        case.load()
        for state in states:
            row = survey_state(case, state)
            row |= {"package": module.PACKAGE, "version": version, "function": case.name}
            sys.stdout.write("row:")
            writer.writerow(row)
            sys.stdout.flush()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], tuple(sys.argv[2:]) or STATES)
