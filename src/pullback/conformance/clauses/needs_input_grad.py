"""`needs-input-grad`: unneeded gradients are not computed, and the needed ones do not change."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch

from pullback.conformance._clause import Finding, Probe, Tensors, clause
from pullback.conformance.cause._repair import Right
from pullback.conformance.cause._wrong_derivative import edit_of
from pullback.conformance.evidence._derivative import judge
from pullback.conformance.evidence._screen import Run
from pullback.conformance.inputs._arguments import is_continuous
from pullback.conformance.inputs._vectors import filled
from pullback.internal.torch import Observing

__all__ = ["needs_input_grad"]

_EVERY = "Return as many gradients as forward has arguments, None in the place of the others."


class _Counter(Observing):
    """Counts the operations that reach a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@clause(
    why="Frozen layers and partial fine-tuning skip unneeded gradients. Computing them "
    "wastes time and memory; skipping the wrong one loses a gradient. An index that "
    "is off by one loses it only then.",
    breach="when one gradient at a time is asked for, or the inputs are no leaves. Wasted "
    "operations alone are `lacking`.",
    mend="`ctx.needs_input_grad[k]` counts arguments of forward.",
)
def needs_input_grad(probe: Probe) -> Iterator[Finding | None]:
    """Ask for one gradient at a time: it must not change, and should cost less than all.

    Nor may it change where the inputs are no leaves, as behind a first layer.
    """
    run = Run.of(probe)
    yield _with_history(probe, run)
    points, cotangents = probe.inputs.points(), run.cotangents
    yield _with_constants(probe, cotangents)
    if len(points) < 2:
        yield probe.holds("The only gradient is the same where the input has a history.")
    found, everything = _count(probe, points, cotangents, tuple(range(len(points))))
    joint, wasted = filled(points, found), True
    for k in range(len(points)):
        try:
            got, operations = _count(probe, points, cotangents, (k,))
        except Exception as error:  # judged by its type
            doing = f"Backward fails where {probe.path(k)} alone needs a gradient"
            yield probe.failed(error, doing, _EVERY, transform=False)
            return
        wasted = wasted and operations >= everything
        if probe.differ([got[k]], [joint[k]], looser=1e3) is not None:
            yield _changed(probe, cotangents, joint, got[k], k)
    if wasted and everything > len(points):
        yield probe.lacking(
            f"Each gradient alone costs all {everything} operations of backward.",
            "Skip what ctx.needs_input_grad does not ask for.",
        )
    yield probe.holds("Each gradient alone is the same, and costs no more than it must.")


def _changed(
    probe: Probe, cotangents: Tensors, joint: Tensors, got: torch.Tensor | None, k: int
) -> Finding:
    """The finding of a gradient that changes; of one that is there, its branch is wrong."""
    path, beside = probe.path(k), _asked_instead(probe, cotangents, joint, k)
    told = f" It is right where {beside} needs one too: its flag is asked." * bool(beside)
    instead = f", not for {beside}" * bool(beside)
    hint = f"Ask ctx.needs_input_grad for {path}{instead}: it counts the arguments of forward."
    edit = Right()
    if got is not None:
        hint = f"Look at what backward computes for {path} where it is the only one."
        alone = probe.inputs.with_differentiable([probe.inputs.differentiable[k]])
        edit = edit_of(probe.at(alone)) if probe.intent == "exact" else edit
    return probe.broken(
        f"A gradient changes when the other inputs need none.{told} {edit.said}".strip(),
        expected=joint[k], got=got, place=path, hint=edit.mend or hint,
        given={"w": cotangents},
        repro=[
            "print('all  ', torch.autograd.grad(outs(), xs, w, allow_unused=True))",
            f"for j, x in enumerate(xs): x.requires_grad_(j == {k})",
            f"print('alone', torch.autograd.grad(outs(), xs[{k}], w, allow_unused=True))",
        ],
    )  # fmt: skip


def _asked_instead(probe: Probe, cotangents: Tensors, joint: Tensors, k: int) -> str:
    """The input that alone brings a gradient back when it needs one too; empty if none does."""
    points = probe.inputs.points()
    for j in range(len(points)):
        if j != k:
            got, _ = _count(probe, points, cotangents, (j, k))
            if probe.differ([got[k]], [joint[k]], looser=1e3) is None:
                return probe.path(j)
    return ""


def _with_constants(probe: Probe, cotangents: Tensors) -> Finding | None:
    """A gradient that is there, and right, only where another argument needs one, too.

    That was given without, or it is the gradient of one that was: with others it may need one.
    """
    inputs = probe.inputs
    known = {*inputs.differentiable, *inputs.owned}
    every = enumerate(inputs.values)
    fixed = [k for k, value in every if k not in known and is_continuous(value)]
    for some, beside in itertools.chain(
        ((inputs.differentiable, k) for k in fixed),
        (((k,), j) for k in fixed for j in inputs.differentiable),
    ):
        there = probe.at(inputs.with_differentiable(some), same=True)
        with suppress(Exception):  # refused
            finding = _lost(there, cotangents, beside)
            if finding is not None:
                return finding
    return None


def _lost(probe: Probe, cotangents: Tensors, k: int) -> Finding | None:
    """A gradient that is None, and there and right where one more argument needs one."""
    inputs = probe.inputs
    found, _ = _count(probe, inputs.points(), cotangents, tuple(range(len(inputs.differentiable))))
    every = sorted({*inputs.differentiable, k})
    there = probe.at(inputs.with_differentiable(every), same=True)
    missing = [j for j, t in zip(inputs.differentiable, found, strict=True) if t is None]
    if not missing:
        return None
    answered, _ = _count(there, there.inputs.points(), cotangents, tuple(range(len(every))))
    for j in missing:
        got, exact = answered[every.index(j)], probe.intent == "exact"
        if got is None or not got.any() or (exact and judge(there, every.index(j)).is_wrong):
            continue
        name, beside = inputs.paths[j], inputs.paths[k]
        return probe.broken(
            f"A gradient is None where {beside} needs none, and there where it needs one: "
            "its flag is asked.",
            expected=got, got=None, place=name,
            hint=f"Ask ctx.needs_input_grad for {name}, not for {beside} alone: it counts the "
            "arguments of forward.",
            given={"w": cotangents},
            repro=[
                "print('as given', torch.autograd.grad(outs(), xs, w, allow_unused=True))",
                f"{beside}.requires_grad_()",
                "print('with it ', torch.autograd.grad(outs(), xs, w, allow_unused=True))",
            ],
        )  # fmt: skip
    return None


# What an input behind a first layer is: said, and made as it is and as Python source for ``x``.
_WAYS: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "has a history": ("x * 1", lambda x: x * 1),
    "is a view": ("x.view_as(x)", lambda x: x.view_as(x)),
    "is a view of a result": ("torch.stack([x, x])[0]", lambda x: torch.stack([x, x])[0]),
}


def _with_history(probe: Probe, run: Run) -> Finding | None:
    """Compare gradients of leaves with those of tensors of the same numbers that are no leaves."""
    for what, (source, make) in _WAYS.items():
        leaves, handed = probe.leaves(), [g.clone() for g in run.cotangents]
        got = Run.of(probe, handed, [make(x) for x in leaves], wanted=leaves)
        place = probe.differ(got.gradients, run.gradients, looser=1e3)
        if place is not None:
            return probe.broken(
                f"The gradient is another where the input {what}, as behind any layer: "
                f"{probe.path(place)} is no leaf then.",
                expected=run.gradients[place], got=got.answered[place], place=probe.path(place),
                hint="Ask ctx.needs_input_grad[k], by the position of the argument: is_leaf, _base "
                "and grad_fn of an input say how it was made, not whether its gradient is needed.",
                given={"w": run.cotangents},
                repro=[
                    "print('leaf   ', torch.autograd.grad(outs(), xs, w, allow_unused=True))",
                    f"made = [{source} for x in xs]",
                    "args = tree_map(lambda a: next((m for x, m in zip(xs, made) if x is a), a), "
                    "args)",
                    "print('no leaf', torch.autograd.grad(outs(), xs, w, allow_unused=True))",
                ],
            )  # fmt: skip
    return None


def _count(
    probe: Probe, points: Tensors, cotangents: Tensors, wanted: tuple[int, ...]
) -> tuple[list[torch.Tensor | None], int]:
    """Gradients of some inputs, and how many operations backward took."""
    leaves = [x.clone().requires_grad_(k in wanted) for k, x in enumerate(points)]
    outputs = probe.evaluate(leaves)
    handed = [g.clone() for g in cotangents]  # which backward may write into
    with _Counter() as counter:  # of backward alone, not of zeros for what was not asked for
        answered = probe.answers(leaves, handed, outputs)
    return answered, counter.count
