"""The clause `compile`."""

import sys
from collections.abc import Iterator

from pullback.conformance._clause import clause
from pullback.conformance._compiled import Way, composed_ways, has_compiler, plain_ways, refused_way
from pullback.conformance._failure import classify, describe
from pullback.conformance._probe import Probe
from pullback.conformance._traced import survived
from pullback.conformance.clauses._hints import COMPLETE, SCALAR, TRACE
from pullback.report import Finding, Verdict

__all__ = ["compile_"]


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
    way = refused_way(probe)
    if way is None:
        return ""
    try:
        place = probe.differ(way.run(), way.eager(), looser=1e4)
    except Exception:  # refused as in eager code
        return ""
    if place is None:
        return ""
    return f"{way.name} is silently wrong, where eager torch refuses: torch drops the backward."


def _ways(probe: Probe, failed: dict[str, Exception]) -> Iterator[Way]:
    """Every way in turn: those that build on one that is refused are left out."""
    plain = plain_ways(probe)
    first = next(plain)
    yield first
    composed = composed_ways(probe)
    yield from composed[:1]
    if len(composed) > 1 and failed.pop(composed[0].name, None) is not None:
        yield from composed[1:]
    if first.name not in failed:
        yield from plain


def _sum_up(probe: Probe, right: list[str], failed: dict[str, Exception]) -> Finding:
    said = "; ".join(f"{name}: {describe(error, 120)}" for name, error in failed.items())
    unclear = [name for name, error in failed.items() if not _is_refusal(error)]
    if unclear:
        return probe.crashes(f"{unclear[0]} fails: {describe(failed[unclear[0]])}", TRACE)
    without = ""
    if probe.thorough and not has_compiler():
        without = " inductor was not tried: there is no C++ compiler."
    if "torch.compile(fullgraph=True)" in failed:
        return probe.lacking(f"Refused: {said}.", TRACE)
    more = f" Refused: {said}." if said else ""
    return probe.holds(f"Equal to eager: {', '.join(right)}.{more}{without}")


def _is_refusal(error: Exception) -> bool:
    """Dynamo wraps what went wrong: its own refusals are clear, its internal errors are not."""
    name = type(error).__name__
    return classify(error) is Verdict.LACKING or name in ("Unsupported", "TorchRuntimeError")


def _wrong(probe: Probe, way: Way, expected: object, got: object) -> Finding:
    own = "torch.autograd.grad(f(x), x)" if way.source == "f" else "''"
    options = "backend='inductor'" if "inductor" in way.name else "backend='aot_eager'"
    options += ", dynamic=True" if "dynamic" in way.name else ""
    return probe.broken(
        f"{way.name} is silently wrong.",
        expected=expected, got=got,
        hint="torch drops or loses the custom rule here: write Function from pullback, or use "
        "pullback.complete(F), which is right or refuses.",
        repro=[
            SCALAR,
            f"g = {way.source}",
            f"h = torch.compile(g, fullgraph=True, {options})",
            f"x = xs[0].detach().requires_grad_(); print('eager   ', g(x), {own})",
            f"print('compiled', h(x), {own.replace('f(', 'h(')})",
        ],
    )  # fmt: skip
