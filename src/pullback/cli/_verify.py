"""``pullback verify``: test whether a kernel computes what its reference computes."""

import shlex
from collections.abc import Sequence
from dataclasses import replace

from rich.markup import escape

from pullback.cli._options import Options
from pullback.cli._outputs import aside, write_outputs
from pullback.cli._show import show
from pullback.cli._targets import evaluate, find_target
from pullback.cli._tasks import Outcome, Task
from pullback.report import Report, make_console
from pullback.verification import verify

__all__ = ["run_verify"]

_BROKEN = 1


def run_verify(
    kernels: Sequence[str], reference: str, inputs: str, options: Options, *,
    forbid: Sequence[str], timeout: float,
) -> int:  # fmt: skip
    """Verify each kernel, print the table and write the files that were asked for.

    Arguments:
        kernels: ``package.module:name`` of each.
        reference: of plain torch with the same signature.
        inputs: of a function that makes inputs, or inputs as a Python expression.
        options: the files, and whether to isolate.
        forbid: names of functions and operators that a kernel must not call.
        timeout: seconds of work for one promise.

    Returns:
        0 if every kernel keeps its promises, 1 otherwise.

    Raises:
        PullbackError: a name cannot be found, or the inputs do not fit the reference.
    """
    options.refuse_conflicts()
    console = make_console(stderr=options.json == "-")
    plain = find_target(reference)
    make = find_target(inputs) if _is_name(inputs) else evaluate(inputs)
    outcomes = []
    with aside(when=options.json == "-"):
        for name in kernels:
            report = verify(
                find_target(name), plain, make, forbid=tuple(forbid), seed=options.seed,
                isolate=options.isolate is not False, timeout=timeout,
            )  # fmt: skip
            words = [name, "--reference", reference, "--inputs", inputs]
            words += [word for item in forbid for word in ("--forbid", item)]
            outcomes.append(_outcome(name, report, words, options.seed))
    seconds = sum(item.report.seconds for item in outcomes if item.report is not None)
    show(outcomes, (), console, seconds, verbose=options.verbose)
    for item in outcomes:
        if item.report is not None and item.report.environment["speed"]:
            said = f"{item.name} takes {item.report.environment['speed']} time."
            console.print(escape(said), highlight=False, soft_wrap=True)
    write_outputs(options, outcomes, (), console, seconds=seconds, partial="")
    return 0 if all(item.report for item in outcomes) else _BROKEN


def _is_name(text: str) -> bool:
    """Whether it names a function rather than being an expression."""
    module, colon, name = text.rpartition(":")
    dotted = module.removesuffix(".py").replace("/", ".").strip(".")
    return bool(colon) and all(part.isidentifier() for part in (*dotted.split("."), name))


def _outcome(name: str, report: Report, words: list[str], seed: int) -> Outcome:
    rerun = ["pullback", "verify", *words, *(["--seed", str(seed)] if seed else [])]
    task = Task(name, lambda: (None, []), ())
    return Outcome(task, replace(report, function=name), rerun=shlex.join(rerun))
