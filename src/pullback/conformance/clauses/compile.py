"""The clause `compile`."""

import sys
from collections.abc import Callable
from typing import Any

import torch

from pullback.conformance._clause import clause
from pullback.conformance._failure import classify, describe
from pullback.conformance._probe import Probe, Tensors
from pullback.conformance._tree import tensors
from pullback.conformance.clauses._hints import TRACE
from pullback.report import Finding, Verdict

__all__ = ["compiles"]


@clause(
    "compile",
    promise="`torch.compile(fullgraph=True)` equals eager, forward and backward, and inside "
    "torch.func.",
    why="A compiled model must compute what the eager one does, backward included. A "
    "backward that is dropped while compiling trains something else. "
    "`torch.compile(torch.func.grad(f))` drops a custom backward silently.",
    breach="against eager.",
    mend="`pullback.Function`, or `pullback.complete(F)`.",
)
def compiles(probe: Probe) -> Finding:
    """Compile with fullgraph and compare with eager, alone and composed with torch.func."""
    if sys.version_info >= (3, 15):
        return probe.skipped("torch.compile does not run on this Python.")
    points = probe.inputs.points()
    if probe.draws:
        return probe.skipped("It draws random numbers, which compiled code draws in another order.")
    cotangents = probe.cotangents(probe.output_values())
    expected = [
        *(y.detach() for y in probe.evaluate(probe.leaves())),
        *probe.backward(points, cotangents),
    ]
    try:
        torch._dynamo.reset()
        for what, run in _WAYS.items():
            try:
                got = run(probe, cotangents)
            except Exception as error:  # judged by where it is raised
                return _refuses(probe, error, what)
            reference = expected[len(expected) - len(got) :]
            place = probe.differ(got, reference, looser=1e4)
            if place is not None:
                return _wrong(probe, what, reference[place], got[place])
    finally:
        torch._dynamo.reset()
    return probe.holds("fullgraph code equals eager, forward, backward and inside torch.func.grad.")


def _refuses(probe: Probe, error: Exception, what: str) -> Finding:
    """Dynamo wraps what went wrong: its own refusals are clear, its internal errors are not."""
    name = type(error).__name__
    if classify(error) is Verdict.LACKING or name in ("Unsupported", "TorchRuntimeError"):
        return probe.lacking(f"{what} refuses: {describe(error)}", TRACE)
    return probe.crashes(f"{what} fails: {describe(error)}", TRACE)


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def _alone(probe: Probe, cotangents: Tensors) -> Tensors:
    leaves = probe.leaves()
    args, kwargs = probe.inputs.build(leaves)
    call = probe.subject.call

    def run(args: Any, kwargs: Any) -> Any:
        return call(*args, **kwargs)

    every = tensors(_compiled(run)(args, kwargs))
    outputs = [every[k] for k in probe.outputs]
    return [t.detach() for t in (*outputs, *probe.pull(leaves, cotangents, outputs))]


def _composed(probe: Probe, cotangents: Tensors) -> Tensors:
    points = tuple(probe.inputs.points())

    def loss(*leaves: torch.Tensor) -> torch.Tensor:
        pairs = zip(cotangents, probe.unseeded(*leaves), strict=True)
        return sum(((w.conj() * y).real.sum() for w, y in pairs), torch.zeros(()))

    slope = torch.func.grad(loss, argnums=tuple(range(len(points))))
    try:
        slope(*points)
    except Exception:  # without torch.func there is nothing to compile; `transforms` reports it
        return []
    return [g.detach() for g in _compiled(slope)(*points)]


_WAYS: dict[str, Callable[[Probe, Tensors], Tensors]] = {
    "torch.compile(fullgraph=True)": _alone,
    "torch.compile(torch.func.grad(f))": _composed,
}


def _wrong(probe: Probe, what: str, expected: object, got: object) -> Finding:
    composed = "func" in what
    own = "''" if composed else "torch.autograd.grad(f(x), x)"
    return probe.broken(
        f"{what} is silently wrong.",
        expected=expected, got=got,
        hint="torch drops or loses the custom backward here: write Function from pullback, or use "
        "pullback.complete(F), which is right or refuses.",
        repro=[
            "def f(x): return sum(y.sum() for y in torch.utils._pytree.tree_leaves(call("
            "*[x if a is xs[0] else a for a in args], **kwargs)))",
            "g = torch.func.grad(f)" if composed else "g = f",
            "h = torch.compile(g, fullgraph=True, backend='aot_eager')",
            f"x = xs[0].detach().requires_grad_(); print('eager   ', g(x), {own})",
            f"print('compiled', h(x), {own.replace('f(', 'h(')})",
        ],
    )  # fmt: skip
