"""The process that `check(..., isolate=True)` runs the clauses in.

It reads ``request.json`` and ``inputs.pt`` from a folder and appends one JSON line to
``answers.jsonl`` before and after each clause, so that the parent knows which one killed it.
Standard output and error stay free for the checked code.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pullback.conformance._arguments import Arguments
from pullback.conformance._clause import in_running_order, run_clause
from pullback.conformance._failure import describe
from pullback.conformance._intent import infer_intent
from pullback.conformance._prepare import prepare
from pullback.conformance._subject import Subject
from pullback.conformance._transfer import unpack
from pullback.conformance.clauses import CLAUSES
from pullback.errors import ArgumentError
from pullback.recording.locator import Locator, find

__all__ = ["main"]


def main(folder: Path) -> None:
    """Run the requested clauses and append the findings.

    Arguments:
        folder: holds the request and takes the answers.
    """
    request = json.loads((folder / "request.json").read_text())

    def say(**message: Any) -> None:
        with (folder / "answers.jsonl").open("a") as stream:
            stream.write(json.dumps(message) + "\n")

    say(started="prepare")
    try:
        subject = Subject.of(find(Locator.from_data(request["target"])), request["gradient"])
        args, kwargs = unpack(folder / "inputs.pt")
        probe = prepare(subject, Arguments.of(args, kwargs), request["seed"])
    except ArgumentError as error:
        say(misfit=error.what, given=error.given)
        return
    except Exception as error:  # a module that fails to load is the caller's to hear of
        say(misfit="The function cannot be loaded in another process.", given=describe(error))
        return
    if request["infer"]:
        say(started="infer")
        probe = infer_intent(probe)
    say(prepared={"gradient": probe.intent, "inferred": probe.inferred})
    for clause in in_running_order(CLAUSES):
        if clause.id in request["clauses"]:
            say(started=clause.id)
            say(finding=asdict(run_clause(clause, probe, bearing=request["bearing"])))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
