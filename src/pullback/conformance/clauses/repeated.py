"""`repeated`: the same tensor given twice, or a view of another argument, gets the sum."""

from collections.abc import Callable, Iterator
from itertools import combinations

import torch

from pullback.conformance._clause import Finding, Probe, Tensors, clause
from pullback.conformance.evidence._screen import Run

__all__ = ["repeated"]

View = Callable[[torch.Tensor], torch.Tensor]

_PAIRS = 6


@clause(
    why="Tied weights, self-attention and `f(x, x)` hand one tensor over twice. A backward that "
    "writes gradients into the memory of its inputs, or a table that is keyed by tensors, then "
    "gives the gradient of one argument twice, and no version counter sees it.",
    breach="against clones: other outputs, or a gradient that is not the sum of the two.",
    mend="Write into memory of the call's own, never into an input's, and tell arguments by "
    "their position, not by identity or address.",
)
def repeated(probe: Probe) -> Iterator[Finding | None]:
    """Hand one tensor over for two arguments, as it is and as a view, and compare with clones."""
    points = probe.inputs.points()
    if len(points) < 2:
        yield probe.skipped("It takes one differentiated tensor alone.")
    if probe.inputs.detached:
        yield probe.skipped("It changes an input in place: what the other would see is not told.")
    tried = []
    for one, other, view in _pairs(points):
        apart = [*points]
        apart[other] = view(points[one])
        try:
            expected = Run.of(probe, leaves=probe.leaves(apart)).every
        except Exception:  # noqa: S112 - such arguments are not taken
            continue
        kept = probe.leaves()
        handed: Tensors = [*kept]
        handed[other] = view(kept[one])
        try:
            got = Run.of(probe, leaves=handed, wanted=kept).every
        except Exception as error:  # judged by its type
            doing = f"One tensor for {probe.path(one)} and {probe.path(other)} is refused"
            yield probe.failed(error, doing, transform=False)
            return
        count = len(expected) - len(points)
        slopes = expected[count:]
        whole = points[one].detach().clone().requires_grad_()
        slopes[one] = slopes[one] + torch.autograd.grad(view(whole), whole, slopes[other])[0]
        slopes[other] = torch.zeros_like(points[other])  # which is not there
        expected = [*expected[:count], *slopes]
        yield _compare(probe, (one, other), got, expected)
        tried.append(f"{probe.path(one)} for {probe.path(other)}")
    if not tried:
        yield probe.skipped("No two arguments can be one tensor.")
    yield probe.holds(
        f"As clones do, with the sum of the gradients: {', '.join(dict.fromkeys(tried))}."
    )


def _pairs(points: Tensors) -> Iterator[tuple[int, int, View]]:
    """Two arguments, and the view of the first that can stand for the second."""
    found = 0
    for pair in combinations(range(len(points)), 2):
        for one, other in (pair, pair[::-1]):
            views = _views(points[one], points[other])
            yield from ((one, other, view) for view in views)
            found += bool(views)
        if found >= _PAIRS:
            return


def _views(x: torch.Tensor, like: torch.Tensor) -> list[View]:
    if x.dtype != like.dtype:
        return []
    if x.shape == like.shape:
        return [lambda t: t, lambda t: t.view_as(t)]
    if x.ndim > 1 and x.mT.shape == like.shape:
        return [lambda t: t.mT]
    return [lambda t: t[0]] if x.ndim and len(x) and x.shape[1:] == like.shape else []


def _compare(
    probe: Probe, pair: tuple[int, int], got: Tensors, expected: Tensors
) -> Finding | None:
    one, other = (probe.path(k) for k in pair)
    return probe.unlike(
        got, expected, f"Other numbers where {other} is {one} or a view of it than for a clone.",
        outputs=len(expected) - len(probe.inputs.differentiable),
        given={"w": probe.cotangents(expected[: len(expected) - len(probe.inputs.differentiable)])},
        repro=[
            f"one, other, own = {one}, {other}, args; kept = one.detach().clone()",
            "def show(name, t):",
            "    global args",
            "    args = tree_map(lambda a: t if a is other else a, own)",
            "    ys = outs()",
            "    print(name, ys, torch.autograd.grad(ys, one, w, allow_unused=True))",
            "    with torch.no_grad(): one.copy_(kept)",
            "view = one",
            "if one.shape != other.shape:",
            "    turned = one.ndim > 1 and one.mT.shape == other.shape",
            "    view = one.mT if turned else one[0]",
            "show('clone', view.clone())",
            "show('same ', view)",
        ],
    )  # fmt: skip
