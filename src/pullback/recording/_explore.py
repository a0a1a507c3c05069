"""The process behind `discover`: import a package, find its Functions and operators, try inputs."""

import contextlib
import functools
import importlib
import itertools
import json
import os
import pkgutil
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from pullback.internal._operator import (
    is_operator,
    registered_rules,
    resolve,
    signature_of_call,
)
from pullback.internal._processes import die_with
from pullback.internal.torch import OPERATORS, function_behind, pytree
from pullback.recording._call_sites import call_sites, sources
from pullback.recording._forms import forms
from pullback.recording._guess import guesses
from pullback.recording._spool import described
from pullback.recording.codec import Encoder, NotPlain
from pullback.recording.locator import Locator, load_script

__all__ = ["main"]

_CALL_BYTES = 32 * 2**20
_TRIALS = 400
_FORMED = 40  # of these, in each form that a domain may ask for
_CALL_SITES = 4
_KEEP = 2


def main(folder: Path) -> None:
    """Answer the request in ``folder``: lines of what is found, and a file for each call."""
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    package, only = request["package"], request["only"]

    def say(**message: Any) -> None:
        with (folder / "said.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(f"{json.dumps(message)}\n")

    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        try:
            if package.endswith(".py"):
                root = load_script(package, only and only.partition(".")[0])
            else:
                root = importlib.import_module(package)
        except BaseException as error:
            missing = error.name if isinstance(error, ModuleNotFoundError) else ""
            say(fault=_describe(error), missing=(missing or "").partition(".")[0])
            return
        for problem in _import_submodules(root) if only is None else ():
            say(problem=problem)
        files = list(sources(root))
        for function in _functions(root, only):
            locator = Locator.of(function)
            if locator.name not in request["skip"]:
                # Said before it is tried, so that a Function that ends the process is listed.
                say(name=locator.name, data=described(locator, reasons=None))
                reasons = _try(function, locator, folder, files)
                say(name=locator.name, data=described(locator, reasons=reasons))


def _import_submodules(root: ModuleType) -> Iterator[str]:
    """Import what lies in a package; a line for each module that cannot be."""
    for found in pkgutil.walk_packages(
        getattr(root, "__path__", []), f"{root.__name__}.", onerror=lambda _: None
    ):
        if found.name.rpartition(".")[2] == "__main__":
            continue  # importing it would run the program
        try:
            importlib.import_module(found.name)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # SystemExit too: scripts inside packages leave that way
            yield f"{found.name}: {_describe(error)}"


def _describe(error: BaseException) -> str:
    """What an import raised, in one line, and the file whose code did."""
    text = str(error).splitlines()[0] if str(error) else ""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    own = [file for file in files if not file.startswith("<") and file != __file__]
    # importlib itself is frozen, or a file of the standard library.
    own = [file for file in own if os.sep + "importlib" + os.sep not in file]
    place = f" (in {own[-1]})" if own else ""
    return f"{type(error).__name__}: {text}{place}"


def _functions(root: ModuleType, only: str | None) -> list[Any]:
    """The Functions of a package, or the one of that name; then the operators."""
    parts = (only or "").split(".")
    named: Any = functools.reduce(lambda v, part: getattr(v, part, None), parts, root)

    def is_meant(value: Any, home: str) -> bool:
        return f"{home}.".startswith(f"{root.__name__}.") if only is None else value is named

    base = torch.autograd.Function
    found = {kind for kind in _subclasses(base) if is_meant(kind, kind.__module__)}
    # Bases that others complete have no forward of their own.
    own = [kind for kind in found if kind.forward is not base.forward]
    operators = [op for _, op in sorted(OPERATORS.items())]
    return [
        *sorted(own, key=lambda kind: (kind.__module__, kind.__qualname__)),
        *(op for op in operators if is_meant(op, function_behind(op).__module__)),
    ]


def _subclasses(kind: Any) -> Iterator[Any]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


def _try(function: Any, locator: Locator, folder: Path, files: Sequence[Path]) -> dict[str, int]:
    """Spool the calls that work; returns the reason why there are none."""
    if is_operator(function) and registered_rules(resolve(function)).kind != "registered":
        return {"no gradient is registered for it": 1}
    if "<locals>" in locator.qualname:
        return {"it is defined inside a function and cannot be imported": 1}
    try:
        parameters = [*signature_of_call(function).parameters.values()]
    except (TypeError, ValueError) as error:
        return {f"the arguments of its forward cannot be seen: {error}": 1}
    sites = call_sites(locator.qualname.rpartition(".")[2], files)
    known = list(itertools.islice(sites, _CALL_SITES))
    taken, fault = _taken(function, itertools.islice(guesses(parameters, known), _TRIALS))
    if not taken:
        some = itertools.islice(guesses(parameters, known), _FORMED)
        taken, _ = _taken(function, (made for args in some for _, made in forms(args)))
    if not taken:
        shown = ", ".join(parameter.name for parameter in parameters)
        return {f"no inputs found for ({shown}); the last trial said {fault}": 1}
    for number, args in enumerate(taken):
        try:
            call = Encoder(_CALL_BYTES).encode_call(args, {})
        except NotPlain as reason:
            return {str(reason): 1}
        path = folder / f"call-{locator.module}.{locator.qualname}-{number}.pt"
        torch.save(described(locator, [call]), path)
    return {}


def _taken(function: Any, made: Iterable[tuple[Any, ...]]) -> tuple[list[tuple[Any, ...]], str]:
    """The first arguments with which a Function works, and the shortest reason against others."""
    taken, faults = [], ["no inputs were thought of"]
    for args in made:
        fault = _fault(function, args)
        if fault:
            faults.append(fault)
            continue
        taken.append(args)
        if len(taken) == _KEEP:
            break
    return taken, min(faults[1:] or faults, key=len)


def _fault(function: Any, args: tuple[Any, ...]) -> str:
    """Why a call and its backward do not work with these arguments; empty if they do."""
    torch.manual_seed(0)
    fresh = [_differentiable(item) if isinstance(item, torch.Tensor) else item for item in args]
    try:
        output = (function if is_operator(function) else function.apply)(*fresh)
        leaves = pytree.tree_leaves(output)
        outputs = [item for item in leaves if isinstance(item, torch.Tensor)]
        floating = [item for item in outputs if item.is_floating_point() or item.is_complex()]
        if not floating:
            return "it returned no floating tensor"
        if not all(bool(torch.isfinite(item).all()) for item in floating):
            return "it returned numbers that are not finite"
        graded = [item for item in floating if item.requires_grad]
        if graded:
            torch.autograd.backward(graded, [torch.ones_like(item) for item in graded])
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        text = " ".join(str(error).split())
        return f"{type(error).__name__}: {text[:120]}"
    return ""


def _differentiable(value: torch.Tensor) -> torch.Tensor:
    return value.clone().requires_grad_(value.is_floating_point())


if __name__ == "__main__":
    die_with(int(os.environ.get("PULLBACK_PARENT", os.getppid())))
    main(Path(sys.argv[1]))
