"""The clause `compile`."""

import math
import os
import shutil
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from pullback.conformance._clause import Finding, Probe, Tensors, Verdict, clause
from pullback.conformance.clauses._hints import COMPLETE, SCALAR, TRACE
from pullback.conformance.evidence._screen import Run, own_gradients
from pullback.conformance.evidence._traced import survived
from pullback.conformance.evidence._transforms import ALONE, PAIRS, Batch, jvp
from pullback.conformance.inputs._tree import tensors
from pullback.conformance.probing._resize import resizings
from pullback.conformance.process._failure import attempt, classify, describe, raised

__all__ = ["compile_"]


@dataclass(frozen=True)
class _Way:
    """One way to compile, and what eager code gives."""

    name: str  # as one would write it
    run: Callable[[], Tensors]  # gives the answer of compiled code
    eager: Callable[[], Tensors]  # gives what is expected
    source: str = "f"  # a function of x that shows it, where ``f`` is the Function
    transforms: bool = False  # whether it compiles a transform of the Function


@clause(
    promise="`torch.compile(fullgraph=True)` equals eager, forward and backward, inside "
    "torch.func; asked to be thorough, also with shapes that change, and with inductor where a C++ "
    "compiler is.",
    why="A compiled model must compute what the eager one does, backward included. A "
    "backward that is dropped while compiling trains something else. "
    "`torch.compile(torch.func.grad(f))` drops a custom backward silently, and "
    "`torch.compile(torch.func.jvp(f))` a custom jvp.",
    breach="against eager: with aot_eager, then inside grad, jvp, vmap of grad, grad of vmap and "
    "jvp of grad, each judged though others are refused; with `thorough=True` (`--thorough`) then "
    "at a second size with `dynamic=True`, and with inductor. Where torch drops a backward that "
    "its eager `torch.func.grad` refuses, the hole is torch's: `lacking`.",
    mend="`pullback.Function`, or `pullback.complete(F)`.",
)
def compile_(probe: Probe) -> Finding:
    """Compile with fullgraph and compare with eager, alone and composed with torch.func."""
    if sys.version_info >= (3, 15):
        return probe.skipped("torch.compile does not run on this Python.")
    if probe.draws:
        return probe.skipped("It draws random numbers, which compiled code draws in another order.")
    return survived(probe, _compare)


def _compare(probe: Probe) -> Finding:
    right: list[str] = []
    failed: dict[str, Exception] = {}
    for way in _ways(probe, failed):
        try:
            got = way.run()
        except Exception as error:  # judged below, by where it is raised
            failed[way.name] = error
            continue
        expected = way.eager()
        place = probe.differ(got, expected, looser=1e4)
        if place is not None and "," not in way.name:
            return _wrong(probe, way, expected[place], got[place])
        if place is not None:
            failed[way.name] = ValueError("one of several differs")
            continue
        right.append(way.name)
    dropped = _dropped(probe)
    finding = _sum_up(probe, right, failed)
    if not dropped or finding.verdict is Verdict.CRASHES:
        return finding
    return probe.lacking(f"{dropped} {finding.detail}", COMPLETE)


def _dropped(probe: Probe) -> str:
    """What torch answers wrongly when it is compiled, and refuses when it is not: its own hole."""
    batch = Batch.of(probe)
    points, weights = ([*part] for part in batch.items[0][:2])
    way, expected = _way(batch, "torch.func.grad(f)"), probe.backward(points, weights)
    # torch's compiler may answer all the same: it differentiates what it sees of forward. Where
    # that gives the numbers of backward there is nothing to see, and nothing is compiled for it.
    own = own_gradients(probe, points, weights)
    if own is not None and probe.differ(own, expected, looser=1e4) is None:
        return ""
    if raised(way.eager) is None:
        return ""
    got = attempt(way.run, expected)  # refused as in eager code, without setup_context
    if probe.differ(got, expected, looser=1e4) is None:
        return ""
    return f"{way.name} is silently wrong, where eager torch refuses: torch drops the backward."


def _ways(probe: Probe, failed: dict[str, Exception]) -> Iterator[_Way]:
    """Every way in turn: those that build on one that is refused are left out."""
    plain = _plain_ways(probe)
    first = next(plain)
    yield first
    composed = _composed_ways(probe)
    yield from composed[:1]
    if len(composed) > 1 and failed.pop(composed[0].name, None) is not None:
        yield from composed[1:]
    if first.name not in failed:
        yield from plain


def _sum_up(probe: Probe, right: list[str], failed: dict[str, Exception]) -> Finding:
    said = "; ".join(f"{name}: {describe(error, 120)}" for name, error in failed.items())
    # Dynamo wraps what went wrong: its own refusals are clear, its internal errors are not.
    refusals = ("Unsupported", "TorchRuntimeError")
    loud = {name for name, e in failed.items() if classify(e) is Verdict.LACKING}
    unclear = [n for n, e in failed.items() if n not in loud and type(e).__name__ not in refusals]
    if unclear:
        return probe.crashes(f"{unclear[0]} fails: {describe(failed[unclear[0]])}", TRACE)
    without = ""
    if probe.thorough and not _has_compiler():
        without = " inductor was not tried: there is no C++ compiler."
    if "torch.compile(fullgraph=True)" in failed:
        return probe.lacking(f"Refused: {said}.", TRACE)
    more = f" Refused: {said}." if said else ""
    return probe.holds(f"Equal to eager: {', '.join(right)}.{more}{without}")


def _wrong(probe: Probe, way: _Way, expected: object, got: object) -> Finding:
    own = "torch.autograd.grad(f(x), x)" if way.source == "f" else "''"
    options = "backend='inductor'" if "inductor" in way.name else "backend='aot_eager'"
    options += ", dynamic=True" if "dynamic" in way.name else ""
    finding = probe.broken(
        f"{way.name} is silently wrong.",
        expected=expected, got=got,
        hint="torch drops or loses the custom rule here: write Function from pullback, or use "
        "pullback.complete(F), which is right or refuses.",
        repro=[
            SCALAR,
            f"g = {way.source}",
            f"h = torch.compile(g, fullgraph=True, {options})",
            # Dynamo refuses what torch.func does to a Function of an input that needs a gradient.
            f"x = xs[0].detach(){'.requires_grad_()' * (not way.transforms)}; "
            f"print('eager   ', g(x), {own})",
            f"print('compiled', h(x), {own.replace('f(', 'h(')})",
        ],
    )  # fmt: skip
    return replace(finding, fails="transform" * way.transforms)


# What it gives when it is compiled, in each way that it can be ------------------------------------


def _has_compiler() -> bool:
    """Whether a C++ compiler is here, which inductor needs for the CPU."""
    usual = "clang++" if sys.platform == "darwin" else "g++"
    return shutil.which(os.environ.get("CXX", usual)) is not None


def _plain_ways(probe: Probe) -> Iterator[_Way]:
    """The Function itself, forward and backward.

    Yields:
        aot_eager first: what it refuses the others refuse too. Where all is asked for, then shapes
        that may change, then inductor, the slowest.
    """
    cotangents = probe.cotangents(probe.output_values())

    def eager() -> Tensors:
        return _both(probe, probe.subject.call, cotangents)

    def once(backend: str) -> Tensors:
        return _both(probe, _compiled(probe, backend), cotangents)

    def resized(other: Probe) -> Tensors:
        """Compile for shapes that may change, and change them."""
        call = _compiled(probe, dynamic=True)
        return [*_both(probe, call, cotangents), *_both(other, call)]

    yield _Way("torch.compile(fullgraph=True)", lambda: once("aot_eager"), eager)
    if not probe.thorough:
        return
    other = _other_size(probe)
    if other is not None:
        yield _Way(
            "torch.compile(dynamic=True)",
            lambda: resized(other),
            lambda: [*eager(), *_both(other, other.subject.call)],
        )
    if _has_compiler():
        yield _Way(
            "torch.compile(backend='inductor')",
            lambda: once("inductor"),
            eager,
        )


# How each is written, whether it takes all items at once, and a function of x that shows it.
_INSIDE: dict[str, tuple[Callable[..., Any], bool, str]] = {
    "torch.func.grad(f)": (ALONE["grad"].ask, False, "torch.func.grad(f)"),
    "torch.func.jvp(f)": (
        lambda b, x, w, v, u: jvp(b.call, x, v), False,
        "lambda x: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1]",
    ),
    "torch.func.vmap(torch.func.grad(f))": (
        PAIRS["vmap of grad"].ask, True,
        "lambda x: torch.func.vmap(torch.func.grad(f))(torch.stack([x, x]))",
    ),
    "torch.func.grad(torch.func.vmap(f))": (
        PAIRS["grad of vmap"].ask, True,
        "torch.func.grad(lambda x: torch.func.vmap(f)(torch.stack([x, x])).sum())",
    ),
    "torch.func.jvp(torch.func.grad(f))": (
        PAIRS["jvp of grad"].ask, False,
        "lambda x: torch.func.jvp(torch.func.grad(f), (x,), (torch.ones_like(x),))[1]",
    ),
}  # fmt: skip


def _composed_ways(probe: Probe) -> list[_Way]:
    """Transforms of the Function, and compositions of them, where eager code answers.

    Returns:
        First all of them compiled at once, then each alone: to be asked only if that is refused.
    """
    batch = Batch.of(probe)
    # What is refused in eager code the other clauses say.
    alone = [name for name in _INSIDE if raised(_way(batch, name).eager) is None]
    ways = [_way(batch, name) for name in alone]
    return [_way(batch, *alone), *ways] if len(ways) > 1 else ways


def _way(batch: Batch, *names: str) -> _Way:
    """Some transforms, compiled at once."""
    chosen = [_INSIDE[name] for name in names]
    given = [batch.stacked if stacked else batch.items[0] for _, stacked, _ in chosen]

    def whole(*parts: Any) -> list[Any]:
        return [ask(batch, *part) for (ask, *_), part in zip(chosen, parts, strict=True)]

    shown = ", ".join(names)
    return _Way(
        f"torch.compile({shown})", lambda: _flat(_compile(whole)(*given)),
        lambda: _flat(whole(*given)), chosen[0][2], transforms=True,
    )  # fmt: skip


def _flat(answer: Any) -> Tensors:
    return [t.detach() for t in tensors(answer)]


def _compile(function: Callable[..., Any], backend: str = "aot_eager", **options: Any) -> Any:
    """Compile a function whose code nobody has compiled before, so that nothing is left behind."""
    code = function.__code__.replace()
    again = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    return torch.compile(again, fullgraph=True, backend=backend, **options)


def _compiled(probe: Probe, *how: str, **options: Any) -> Callable[..., Any]:
    call = probe.subject.call

    def run(args: Any, kwargs: Any) -> Any:
        return call(*args, **kwargs)

    compiled = _compile(run, *how, **options)
    return lambda *args, **kwargs: compiled(args, kwargs)


def _both(probe: Probe, call: Callable[..., Any], cotangents: Tensors | None = None) -> Tensors:
    """Outputs and gradients of a way to call the Function."""
    subject = replace(probe.subject, call=call)
    # A compiler takes its time, and is not tried on the CPU before a device (`CpuTrial`).
    there = replace(probe, subject=subject, patience=math.inf, trial=None)
    return Run.of(there, cotangents).every


def _other_size(probe: Probe) -> Probe | None:
    """The probe at a size one or two larger that eager code takes."""
    for resizing in resizings(probe.inputs, 2**10, 2**16, probe.generator("dynamic")):
        for size in (resizing.size + 1, resizing.size + 2):
            if not 2 < size <= resizing.largest:
                continue  # Dynamo takes 0 and 1 for constants
            inputs = resizing.at(size)
            if inputs is None:
                continue
            other = probe.at(inputs)
            if raised(lambda there=other: _both(there, there.subject.call)) is None:
                return other
    return None
