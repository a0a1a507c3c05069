"""`once`: `once_differentiable` is loud, under autograd and under torch.func."""

from collections.abc import Callable, Sequence

import torch

from pullback.conformance._clause import Finding, Probe, clause
from pullback.conformance.clauses._hints import COMPLETE
from pullback.conformance.evidence._derivative import ask_second, second_slopes
from pullback.conformance.inputs._vectors import flatten
from pullback.conformance.probing._nodes import is_once
from pullback.conformance.process._failure import raised
from pullback.tensor import Function

__all__ = ["once"]


@clause(
    why="A Function that does not support second derivatives must say so. Where it stays "
    "silent, the second derivative is taken as zero, and a penalty on the gradient "
    "does nothing. torch itself gives silent zeros under "
    "`torch.func.grad(torch.func.grad(f))`, with `allow_unused=True`, and when the "
    "gradient is summed with other terms.",
    breach="as a second derivative that answers although backward bends. It is `lacking` for "
    "torch's own decorator, used as documented: the hole is torch's.",
    mend="Derive from `pullback.Function`, or use `pullback.complete(F)`: both raise.",
)
def once(probe: Probe) -> Finding:
    """Where a second derivative is refused, each way to ask for it must raise or be right."""
    if not is_once(probe.functions()):
        return probe.skipped("Backward is not marked once_differentiable.")
    bends = [k for k in range(len(probe.inputs.differentiable)) if _bends(probe, k)]
    if not bends:
        return probe.holds("The second derivative is zero, so that no silent zero is wrong.")
    silent = [name for name, ask in _WAYS.items() if raised(lambda a=ask: a(probe)) is None]
    if not silent:
        return probe.holds("A second derivative raises under autograd and under torch.func.")
    if not _is_ours(probe):
        return probe.lacking(
            "torch's once_differentiable, used as documented, is silent in some ways to ask for a "
            f"second derivative and answers with zeros: {'; '.join(silent)}.",
            f"The hole is torch's own; close it for this Function. {COMPLETE}",
        )
    return probe.broken(
        f"A second derivative is silently zero, not refused: {'; '.join(silent)}.",
        expected="an error that names once_differentiable",
        got="zeros in place of the second derivative",
        place=probe.path(bends[0]),
        hint=f"torch's once_differentiable is silent here. {COMPLETE}",
        repro=[
            "g = torch.autograd.grad(sum(y.sum().real for y in outs()) + "
            "sum((x * x.conj()).sum().real for x in xs), xs, create_graph=True)",
            "h = torch.autograd.grad(sum(b.sum().real for b in g), xs)",
            "print('second derivative, no error raised (2 is from x squared):', h)",
        ],
    )


def _is_ours(probe: Probe) -> bool:
    """Whether every Function in the graph is one of pullback's, which promise to be loud."""
    function = probe.subject.function
    if function is not None and issubclass(function, Function):
        return True
    every = probe.functions()
    return bool(every) and all(issubclass(kind, Function) for kind in every)


def _bends(probe: Probe, only: int) -> bool:
    """Whether the Function's own backward changes with an input, by finite differences."""
    points = probe.inputs.points()
    cotangents = probe.cotangents(probe.output_values(points), "second")
    step = [*probe.direction("second alone", only), *[g * 0 for g in cotangents]]
    found = second_slopes(probe, [*points, *cotangents], step)
    if found is None:
        return False
    estimate = found.weigh(flatten(probe.spread(points, "second weights")) * found.settled)
    return estimate.error < 1e-3 * estimate.magnitude and abs(estimate.value) > 1e-6 * max(
        estimate.magnitude, 1e-12
    )


def _summed(probe: Probe) -> object:
    leaves = probe.leaves()
    outputs = probe.evaluate(leaves)
    total = _total(outputs) + _total([x * x.conj() for x in leaves])
    gradients = torch.autograd.grad(total, leaves, create_graph=True)
    return torch.autograd.grad(_total(gradients), leaves)


def _functional(probe: Probe) -> object:
    points = tuple(probe.point(0))  # copies: a forward may write to what it is given
    positions = tuple(range(len(points)))

    def loss(*leaves: torch.Tensor) -> torch.Tensor:
        return _total(probe.flat(*leaves))

    def slope(*leaves: torch.Tensor) -> torch.Tensor:
        return _total(torch.func.grad(loss, argnums=positions)(*leaves))

    return torch.func.grad(slope, argnums=positions)(*points)


def _total(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The real sum of every entry."""
    return torch.stack([part.real.sum().double() for part in parts]).sum()


_WAYS: dict[str, Callable[[Probe], object]] = {
    "autograd.grad of autograd.grad with allow_unused": ask_second,
    "autograd.grad of a gradient summed with other terms": _summed,
    "torch.func.grad of torch.func.grad": _functional,
}
