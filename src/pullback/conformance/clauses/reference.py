"""`reference`: a kernel and the plain reference that it was completed with agree."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from pullback.conformance._clause import Finding, Probe, Tensors, clause
from pullback.conformance.inputs._arguments import is_continuous
from pullback.conformance.inputs._vectors import wide
from pullback.conformance.process._failure import attempt, describe
from pullback.internal.torch import pytree
from pullback.tensor import reference_of

__all__ = ["reference"]

_POINTS = 3  # the one given, and close to it
_LOOSER = 1e3
_FACTOR = 16.0  # of the reference's own error in a low precision
_ROUNDING = 4.0
_REPRO = [
    "def show(name, f):",
    "    ys = [y for y in tree_leaves(f(*args, **kwargs)) if isinstance(y, torch.Tensor)]",
    "    moved = [y for y in ys if y.requires_grad]",
    "    w = [torch.ones_like(y) for y in moved]",
    "    slopes = moved and torch.autograd.grad(moved, xs, w, allow_unused=True)",
    "    print(name, ys, slopes)",
    "show('kernel', lambda *a, **k: call(*a, **k))",
    "show('reference', F.reference)",
]


@clause(
    why="First order is the kernel's, all else the reference's. Where they differ, a gradient is "
    "not the one that is differentiated, and a tangent belongs to another function. No run looks "
    "for it.",
    breach="in the outputs and gradients of both, at the arguments given and close to them: other "
    "numbers than rounding explains, another dtype, shape or structure, an output that only one "
    "of them differentiates.",
    mend="Make the reference compute what the kernel does, with its constants, masks and "
    "dtypes; pullback.verify tells how far apart they are.",
)
def reference(probe: Probe) -> Iterator[Finding | None]:
    """Compare outputs and gradients, as given and in float64 where the kernel takes that."""
    plain = reference_of(probe.subject.target)
    if plain is None:
        yield probe.skipped("It was completed without a reference.")
        return
    if probe.draws:
        yield probe.skipped("It draws random numbers, which a reference draws otherwise.")
    given = probe.at(probe.original)
    for number, each in [(0, given), *((n, probe) for n in range(_POINTS))]:
        yield _compare(each, plain, each.neighbour(number))
    dtypes = dict.fromkeys(str(p.dtype).removeprefix("torch.") for p in (given, probe))
    yield probe.holds(f"Outputs and gradients agree at {_POINTS} points, in {', '.join(dtypes)}.")


def _compare(probe: Probe, plain: Callable[..., Any], points: Tensors) -> Finding | None:
    other = replace(probe, subject=replace(probe.subject, call=plain))
    form, got = _answers(probe, points)
    try:
        plain_form, expected = _answers(other, points)
    except Exception as error:  # it may raise anything
        said = f"The reference does not run: {describe(error)}"
        return probe.crashes(said, repro=["print(F.reference(*args, **kwargs))"])
    if form != plain_form:
        return probe.broken(
            "The kernel and its reference return other structures, shapes or dtypes, or "
            "differentiate other outputs.",
            expected=plain_form, got=form, repro=_REPRO,
        )  # fmt: skip
    # The truth is what the reference answers in float64, where it takes that.
    exact = other.at(other.inputs.with_points(points).cast(torch.float64))
    truth = attempt(lambda: _answers(exact, exact.inputs.points())[1], expected)
    place = _differ(probe, got, expected, truth)
    if place is None:
        return None
    count = len(got) - len(points)
    where = probe.place(place, count)
    return probe.broken(
        f"The kernel gives another value of {where} than its reference.",
        expected=expected[place], got=got[place], place=where, repro=_REPRO,
    )  # fmt: skip


def _answers(probe: Probe, points: Tensors) -> tuple[str, Tensors]:
    """What the outputs are like, then the outputs and the gradient of each input."""
    leaves = probe.leaves(points)
    found: dict[str, Any] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        found["output"] = probe.subject.call(*args, **kwargs)
        return found["output"]

    outputs = replace(probe, subject=replace(probe.subject, call=call)).run(leaves)
    kinds = [f"{tuple(y.shape)} {y.dtype}{'' if y.requires_grad else ' constant'}" for y in outputs]
    form = f"{', '.join(kinds)} in {pytree.tree_structure(found['output'])}"
    cotangents = probe.cotangents(outputs)
    slopes = probe.pull(leaves, cotangents, outputs)
    return form, [t.detach() for t in (*outputs, *slopes)]


def _differ(probe: Probe, got: Tensors, expected: Tensors, truth: Tensors) -> int | None:
    """The first place where a kernel is further from the truth than rounding takes it.

    That is a factor of the reference's own error in the kernel's dtype. In float64 the reference is
    the truth, and the two may sum in another order.
    """
    for k, (one, other, true) in enumerate(zip(got, expected, truth, strict=True)):
        if not is_continuous(one) or one.dtype.to_real() is torch.float64:
            if probe.differ([one], [other], looser=_LOOSER) is not None:
                return k
            continue
        finite = torch.isfinite(true)
        if not torch.equal(torch.isfinite(one), torch.isfinite(other)) or not finite.any():
            return k
        gaps = [(wide(t) - true)[finite].abs().max() for t in (one, other)]
        rounding = _ROUNDING * torch.finfo(one.dtype).eps * true[finite].abs().max()
        if gaps[0] > _FACTOR * torch.maximum(gaps[1], rounding):
            return k
    return None
