"""The process that `check(..., isolate=True)` runs the clauses in.

It appends one JSON line to ``answers.jsonl`` before and after each clause, so that the parent knows
which one killed it. A fresh process reads ``request.json`` and ``inputs.pt`` from the same folder.
Standard output and error stay free for the checked code.
"""

import importlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from dataclasses import replace as with_fields
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pullback.conformance._clause import COMPILING, run_clauses
from pullback.conformance.clauses import CLAUSES
from pullback.conformance.evidence._intent import infer_intent
from pullback.conformance.inputs._arguments import Arguments
from pullback.conformance.inputs._subject import Subject
from pullback.conformance.inputs._tree import replace, tensors
from pullback.conformance.probing._fresh import Answers, Fresh
from pullback.conformance.probing._prepare import prepare, unprepared
from pullback.conformance.probing._resize import shapes_cut_down
from pullback.conformance.process._failure import describe
from pullback.conformance.process._forked import Copy, can_copy
from pullback.conformance.process._guard import (
    guarded,
    has_device,
    silenced,
    unpatched,
    what_device_says,
)
from pullback.conformance.process._limits import limited
from pullback.errors import ArgumentError, UnsupportedError
from pullback.internal._defaults import set_defaults
from pullback.internal._processes import die_with
from pullback.internal.torch import compile_in_one_thread, parts_of_compiler
from pullback.recording.codec import EXPRESSION, Encoder, Keywords, Loader, NotPlain, decode_call
from pullback.recording.locator import Locator, find
from pullback.report import Finding

__all__ = ["answer", "judge", "locate", "main", "pack", "unpack", "warm"]


def main(folder: Path) -> None:
    """Answer the request in ``folder``, in a fresh process."""
    request = json.loads((folder / "request.json").read_text())
    try:
        subject = Subject.of(find(Locator.from_data(request["target"])), request["gradient"])
        # A copy can use a device that its original has not used: so before the inputs are read.
        copied = has_device() and "first-call" in request["clauses"] and can_copy()
        copy = Copy(partial(_first_answers, subject, request, folder)) if copied else None
        arguments = Arguments.of(*unpack(folder / "inputs.pt"))
    except ArgumentError as error:
        _say(folder, misfit=error.what, given=error.given)
    except Exception as error:  # a module that fails to load is the caller's to hear of
        said = "The function cannot be loaded in another process."
        _say(folder, misfit=said, given=describe(error))
    else:
        answer(subject, arguments, request, folder, copy)


def _first_answers(subject: Subject, request: dict[str, Any], folder: Path) -> Answers:
    """What a process answers that has called nothing and has used no device."""
    _settle(request)
    arguments = Arguments.of(*unpack(folder / "inputs.pt"))
    with guarded():
        return Fresh.before(unprepared(subject, arguments, request["seed"])).apart()


_CLAUSES = 0.8  # of the time that a Function may take; the rest is left for causes


def _worked() -> float:
    """The seconds that this process and its copies have worked."""
    return sum(os.times()[:4])


# What torch loads for forward mode, and its compiler, of which transforms load the most.
_LOADING = ("forward", "transforms", "fake")


def _say(folder: Path, **message: Any) -> None:
    """Append a message to the answers."""
    with (folder / "answers.jsonl").open("a") as stream:
        stream.write(json.dumps(message) + "\n")


class _Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return cotangents[0] * x.cos()


def warm(compiling: bool, named: tuple[str, ...] | None = None) -> Iterator[str]:
    """Check a small Function, so that copies of this process have loaded what a check loads.

    The clauses that load much, of those that are named: others will not be asked for. Clause by
    clause, each of which is told: between two of them the process may be copied. Not where there
    is a device: to differentiate starts a thread for each, which no copy has.
    """
    if has_device():
        return
    torch.set_num_threads(1)
    with suppress(ImportError):  # torch's compiler shows its progress by it, where it is
        tqdm = importlib.import_module("tqdm").tqdm
        tqdm.monitor_interval = 0  # a thread, which no copy has
    arguments = Arguments.of((torch.ones(2, dtype=torch.float64, device="cpu"),), {})
    probe = infer_intent(prepare(Subject.of(_Sine), arguments, 0))
    for chosen in (_LOADING, COMPILING if compiling else ()):
        yield from parts_of_compiler() if chosen == COMPILING else ()
        asked = [c for c in CLAUSES if c.id in chosen and (named is None or c.id in named)]
        for finding in run_clauses(asked, probe) if asked else ():
            yield finding.clause


def _settle(request: dict[str, Any]) -> None:
    """Have torch compute and make tensors as where the request was made."""
    # Checks run side by side, and the threads of an original are not in its copy: what waits for
    # one would wait for ever. So are the numbers of a check the same on any machine.
    torch.set_num_threads(1)
    compile_in_one_thread()
    set_defaults(*request["defaults"])


def answer(
    subject: Subject, arguments: Arguments, request: dict[str, Any], folder: Path,
    copy: Copy | None = None,
) -> None:  # fmt: skip
    """Answer a request, in a fresh process or in a copy of the one that made it."""
    _settle(request)
    try:
        judge(subject, arguments, request, partial(_say, folder), copy=copy)
    except ArgumentError as error:
        _say(folder, misfit=error.what, given=error.given)
    except UnsupportedError as error:
        print(error.what, error.given, file=sys.stderr, flush=True)
        sys.exit(1)


def judge(
    subject: Subject, arguments: Arguments, request: dict[str, Any], say: Callable[..., object],
    timeout: float | None = None, *, copy: Copy | None = None,
) -> None:  # fmt: skip
    """Run the clauses that a request asks for, and say each thing as soon as it is known.

    Raises:
        ArgumentError: the inputs do not fit.
        UnsupportedError: an assertion of the device has ended its use in this process.
    """
    say(started="prepare")
    seconds = request["seconds"]
    until = math.inf if seconds is None else _worked() + _CLAUSES * seconds

    def is_over() -> bool:
        """Whether no more clause is begun: to tell causes and edits takes time, too."""
        over = _worked() > until
        if over:
            say(over=True)
        return over

    with unpatched() as replaced, silenced(), limited(timeout or math.inf, timeout):
        fresh = "first-call" in request["clauses"]
        probe = prepare(subject, arguments, request["seed"], fresh=fresh, copy=copy)
        if request["infer"]:
            say(started="infer")
            probe = infer_intent(probe)
    probe = with_fields(
        probe, thorough=request["thorough"], in_copies=request["in_copies"],
        trying=(lambda clause: say(trying=clause)) if request["apart"] else None, timeout=timeout,
    )  # fmt: skip
    say(prepared={"gradient": probe.intent, "inferred": probe.inferred,
                  "constants": probe.constants,
                  "cut_down": shapes_cut_down(arguments, probe.inputs)})  # fmt: skip
    asked = [clause for clause in CLAUSES if clause.id in request["asked"]]
    for finding in run_clauses(
        [clause for clause in asked if clause.id in request["clauses"]], probe,
        asked=asked, replaced=replaced, started=lambda id_: say(started=id_),
        known=[Finding(**fields) for fields in request["causes"]], is_over=is_over,
    ):  # fmt: skip
        if said := what_device_says():  # nor is what was found to be trusted
            raise UnsupportedError(
                f"A call of clause {finding.clause} ended the use of the device.", given=said,
                mend="Check with isolate=True: then it is the device of another process.",
            )  # fmt: skip
        say(finding=asdict(finding))


if __name__ == "__main__":
    die_with(int(os.environ.get("PULLBACK_PARENT", os.getppid())))
    main(Path(sys.argv[1]))


_UNLIMITED = 2**63


def locate(subject: Subject) -> Locator:
    """Where another process finds the subject.

    Raises:
        ArgumentError: no other process can find it.
    """
    if not subject.importable():
        raise ArgumentError(
            f"{subject.name} cannot be found by another process.",
            given="a local, unnamed or replaced object",
            expected="a Function or callable at the top level of a module or script",
            mend="Move it to the top level, or pass isolate=False.",
        )
    if subject.locator.module == "__main__" and not subject.locator.file:
        raise ArgumentError(
            f"{subject.name} was defined at a prompt, where no other process finds it.",
            mend="Save it to a file, or pass isolate=False.",
        )
    return subject.locator


def pack(arguments: Arguments, path: Path) -> None:
    """Write arguments so that they are read without executing code.

    Raises:
        ArgumentError: an argument is neither a tensor nor plain data.
    """
    chosen = set(arguments.differentiable if arguments.declared else ())
    values = [
        arguments.owned[k] if k in arguments.owned else value.clone().requires_grad_(k in chosen)
        for k, value in enumerate(arguments.values)
    ]
    slots = iter(values)
    parts = (replace(part, slots) for part in (arguments.args, dict(arguments.kwargs)))
    try:
        call = Encoder(_UNLIMITED).encode_call(*parts)
    except NotPlain as reason:
        raise ArgumentError(
            "An argument cannot be handed to another process.",
            given=str(reason),
            expected="tensors, plain data, and what is found by its name",
            mend="Pass isolate=False.",
        ) from reason
    sources = [arguments.source(k) for k in range(len(values))]
    torch.save({**call, "sources": sources, "recorded": arguments.recorded}, path)


def unpack(path: Path) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Read the positional and keyword arguments that `pack` wrote.

    The chosen tensors require a gradient.
    """
    packed = torch.load(path, weights_only=True)
    sources, recorded = packed.pop("sources"), packed.pop("recorded")
    args, kwargs = decode_call(**packed, loader=Loader())
    for value, source in zip(tensors((args, kwargs)), sources, strict=True):
        setattr(value, EXPRESSION, source)
    return args, Keywords(kwargs, recorded)
