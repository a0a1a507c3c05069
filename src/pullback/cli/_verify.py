"""``pullback verify``: test whether a kernel computes what its reference computes."""

import ast
import functools
import hashlib
import itertools
import json
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

from rich.markup import escape

from pullback.cli._options import TIMEOUT, VerifyOptions
from pullback.cli._outputs import Results, aside, show, write_outputs
from pullback.cli._targets import evaluate, find_target
from pullback.cli._tasks import Outcome
from pullback.conformance import reseed
from pullback.internal._syntax import parse
from pullback.internal._text import command_line
from pullback.recording import Locator, source_of
from pullback.report import Report, gather_reports, make_console
from pullback.verification import refuse_inputs, verify

__all__ = ["run_verify"]

_BROKEN, _UNCHECKED = 1, 3
_INSTALLED = {"site-packages", "dist-packages"}


def run_verify(options: VerifyOptions) -> int:
    """Verify each kernel, print the table and write the files that were asked for.

    Returns:
        0 if every kernel keeps its promises, 1 if one breaks one, 3 if one could not be verified.

    Raises:
        PullbackError: the only kernel or another name cannot be found, or the inputs do not fit the
            reference.
    """
    kernels, reference, inputs = options.kernels, options.reference, options.inputs
    console = make_console(stderr=options.json == "-")
    plain, made = find_target(reference), _inputs(inputs)  # refused before anything runs
    judged: Iterable[tuple[str, Report | Exception]]
    if len(kernels) == 1 and options.results is None:
        judged = ((name, verify(find_target(name), plain, made, **options.how)) for name in kernels)
    else:  # each in a process of its own
        refuse_inputs(plain, made, seed=options.seed, timeout=options.timeout)
        work = partial(_verified, reference=reference, inputs=inputs, **options.how)
        asked = partial(_asked, work)
        judged = gather_reports(work, kernels, results=options.results, asked=asked)
    words = ["--reference", reference, "--inputs", inputs]
    words += [word for item in options.forbid for word in ("--forbid", item)]
    words += ["--timeout", f"{options.timeout:g}"] if options.timeout != TIMEOUT else []
    found: dict[str, Outcome] = {}
    with aside(when=options.json == "-"):
        for name, outcome in judged:
            found[name] = _outcome(name, outcome, [name, *words], options.seed)
    outcomes = [found[name] for name in dict.fromkeys(kernels)]
    reports = [item.report for item in outcomes if item.report is not None]
    results = Results(outcomes, sum(report.seconds for report in reports))
    show(results, console, verbose=options.verbose)
    for report in reports:
        if report.environment["speed"]:
            said = f"{report.function} takes {report.environment['speed']} time."
            console.print(escape(said), highlight=False, soft_wrap=True)
    write_outputs(options, results, console)
    if not all(reports):
        return _BROKEN
    shown = sum(not report.unchecked for report in reports)
    return 0 if shown == len(outcomes) else _UNCHECKED


def _asked(work: partial[Report], name: str) -> str:
    """What a report depends on: the options, and the files of the kernel, reference and inputs.

    What these files import is among them, but for what is installed.
    """
    texts = []
    for each in (name, work.keywords["reference"], work.keywords["inputs"]):
        if _is_name(each):
            where = Locator.parse(each)
            texts.append(_digest(where))
    return json.dumps([work.keywords, texts])


def _digest(where: Locator) -> str:
    """Of a file, of what it imports that is not installed, and of what that imports."""
    path = [*([os.path.dirname(where.file)] if where.file else []), *sys.path]
    start = where.file or source_of(where.module)
    wanted, found = [(start, where.module)] if os.path.isfile(start) else [], dict[str, str]()
    while wanted:
        file, module = wanted.pop()
        if file not in found:
            found[file], names = _looked_into(file, module, os.stat(file).st_mtime_ns)
            pairs = ((source_of(name, path), name) for name in names)
            # What is installed is not edited from one run to the next.
            wanted += [(f, name) for f, name in pairs if f and _INSTALLED.isdisjoint(Path(f).parts)]
    return hashlib.sha256("".join(found[file] for file in sorted(found)).encode()).hexdigest()


@functools.cache
def _looked_into(file: str, module: str, modified: int) -> tuple[str, tuple[str, ...]]:
    """The digest of a file, and the full names of the modules that it may import anywhere."""
    del modified  # only tells one state of the file from another
    text, found = Path(file).read_bytes(), list[str]()
    package = module if file.endswith("__init__.py") else module.rpartition(".")[0]
    with suppress(SyntaxError, ValueError):  # said where it is imported
        for node in ast.walk(parse(text)):
            if isinstance(node, ast.Import):
                found += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                with suppress(ImportError):  # it leads out of the package
                    home = resolve_name("." * node.level + (node.module or ""), package)
                    # A module, or what is within one.
                    found += [f"{home}.{alias.name}" for alias in node.names]
    # A package runs before what it holds.
    every = (itertools.accumulate(name.split("."), "{}.{}".format) for name in [module, *found])
    names = dict.fromkeys(itertools.chain.from_iterable(every))
    return hashlib.sha256(text).hexdigest(), tuple(names)


def _verified(name: str, *, reference: str, inputs: str, **options: Any) -> Report:
    return verify(find_target(name), find_target(reference), _inputs(inputs), **options)


def _inputs(text: str) -> Any:
    reseed(0)  # an expression may draw from numpy's generator, or Python's, too
    return find_target(text) if _is_name(text) else evaluate(text)


def _is_name(text: str) -> bool:
    """Whether it names a function rather than being an expression."""
    module, colon, name = text.rpartition(":")
    dotted = module.removesuffix(".py").replace("/", ".").strip(".")
    return bool(colon) and all(part.isidentifier() for part in (*dotted.split("."), name))


def _outcome(name: str, found: Report | Exception, words: list[str], seed: int) -> Outcome:
    rerun = command_line(["pullback", "verify", *words, *(["--seed", str(seed)] if seed else [])])
    if isinstance(found, Report):
        return Outcome(name, replace(found, function=name), rerun=rerun)
    return Outcome(name, reason=" ".join(str(found).split()), rerun=rerun)
