"""`non-differentiable`: outputs marked so carry no history, the others do."""

from dataclasses import replace
from typing import Any

import torch

from pullback.conformance._clause import Finding, Probe, Tensors, clause
from pullback.conformance.cause._wrong_derivative import wrong_derivative
from pullback.conformance.evidence._derivative import judge
from pullback.conformance.evidence._screen import Run
from pullback.conformance.inputs._arguments import is_continuous
from pullback.conformance.probing._nodes import (
    Marks,
    call_backward,
    custom_nodes,
    edges,
    unit_cotangents,
    watched_marks,
)
from pullback.internal.torch import metadata_of

__all__ = ["non_differentiable"]


@clause(
    why="Integer outputs, masks and indices carry no gradient; every other output must, "
    "or its part of the loss is dropped without a word.",
    breach="in what was marked, what carries history, and what backward uses.",
    mend="Mark the very tensor that is returned.",
    gradient=False,
)
def non_differentiable(probe: Probe) -> Finding:
    """Compare what was marked with what carries history, and with what backward uses."""
    leaves = probe.leaves()
    if not leaves:
        return probe.skipped("No input has a gradient.")
    with watched_marks() as marks:
        every = probe.run(leaves)
    stray = _stray(marks, every)
    if stray and probe.subject.function is not None:
        return _broken(
            probe,
            "mark_non_differentiable was given a tensor that is not an output; it has no effect.",
            "the very tensor that forward returns",
            f"a tensor of shape {tuple(stray[0].shape)}",
            "Mark the tensor that is returned, after the last operation on it.",
        )
    dropped = {t.data_ptr() for t in marks.dropped}
    forgotten = [k for k, y in enumerate(every) if y.requires_grad and y.data_ptr() in dropped]
    if forgotten:
        return _broken(
            probe,
            f"Output {forgotten[0]} is marked, and carries history all the same: of two calls of "
            "mark_non_differentiable torch keeps the second.",
            "no history",
            "an output that asks for a gradient",
            "Mark all outputs in one call.",
        )
    if not probe.outputs:
        return _no_history(probe, every, marks)
    ignored = _dropped(custom_nodes([every[k] for k in probe.outputs]), every)
    if ignored is not None:
        return _broken(
            probe,
            f"Output {ignored} is marked as non-differentiable, but backward uses its cotangent: "
            "its gradient is silently dropped.",
            "no mark, or a backward that does not use that cotangent",
            "a gradient that nobody receives",
            "Do not mark an output whose derivative backward computes.",
        )
    return _unmarked(probe) or probe.holds("Marked outputs carry no history, the others do.")


def _stray(marks: Marks, every: Tensors) -> Tensors:
    """What the Function has marked and does not return.

    What another one within has marked it need not hand on: its context is no node of the outputs,
    or one of other outputs.
    """
    outputs = {y.data_ptr() for y in every}
    nodes = [n for n in custom_nodes(every) if len(metadata_of(n)) == len(every)]
    marked = (t for node in nodes for t in marks.non_differentiable.get(node, ()))
    return [t for t in marked if t.numel() and t.data_ptr() not in outputs]


def _no_history(probe: Probe, every: Tensors, marks: Marks) -> Finding:
    """No output carries history: right where none can, or where that is declared."""
    floats = tuple(k for k, y in enumerate(every) if is_continuous(y))
    if not floats:
        return probe.holds("No output is floating, so that none can carry history.")
    if probe.intent != "exact":
        return probe.holds(f"No output carries history; the gradient is {probe.intent}.")
    trial = judge(replace(probe, outputs=floats))
    if not trial.is_wrong:
        return probe.holds("No output carries history, and none has a derivative other than zero.")
    given = {t.data_ptr() for some in marks.non_differentiable.values() for t in some}
    marked = [k for k in floats if every[k].data_ptr() in given]
    detail, hint = (
        f"Output {marked[0]} is marked as non-differentiable, and moves with the inputs: none gets "
        "a gradient.",
        "Remove the detach, or the mark: mark_non_differentiable is for integers and masks.",
    ) if marked else (
        "No output carries history although forward depends on an input that requires a gradient.",
        'Remove the detach (.detach(), .data, numpy, no_grad), or declare gradient = "surrogate".',
    )  # fmt: skip
    return _broken(
        probe, detail, f"a derivative of {trial.estimate.value:.6g} (finite differences)",
        f"{len(floats)} floating output(s), all detached or marked", hint,
    )  # fmt: skip


def _dropped(nodes: list[Any], every: Tensors) -> int | None:
    """An output without history whose cotangent the raw backward nevertheless uses."""
    if len(nodes) != 1 or len(metadata_of(nodes[0])) != len(every):
        return None  # which output is which is not known
    for k, y in enumerate(every):
        if y.requires_grad or not is_continuous(y):
            continue
        alone = [g if j == k else g * 0 for j, g in enumerate(unit_cotangents(nodes[0]))]
        returned = call_backward(nodes[0], alone)
        kept = [returned[j] for j, _ in edges(nodes[0]) if isinstance(returned[j], torch.Tensor)]
        if any(bool(value.abs().gt(0).any()) for value in kept):
            return k
    return None


def _unmarked(probe: Probe) -> Finding | None:
    """An output with history whose cotangent backward ignores although forward depends on it.

    A surrogate stands for the derivative of outputs that jump. What moves smoothly beside them, a
    distance or a scale, and gets no gradient is forgotten, or meant as a constant and not marked.
    """
    if probe.intent == "nonlinear" or len(probe.outputs) < 2:
        return None
    for k in probe.outputs:
        alone = replace(probe, outputs=(k,))
        if any(bool(g.abs().gt(0).any()) for g in Run.of(alone).gradients):
            continue
        trial = judge(alone)
        if trial.is_wrong:
            return wrong_derivative(
                alone, trial,
                detail=f"Output {k} carries history, but backward ignores its cotangent.",
                place="every input at once",
                hint="Differentiate the output, or declare it with ctx.mark_non_differentiable.",
            )  # fmt: skip
    return None


def _broken(probe: Probe, detail: str, expected: str, got: str, hint: str) -> Finding:
    return probe.broken(
        detail, expected=expected, got=got, hint=hint,
        repro=[
            "ys = [y for y in tree_leaves(call(*args, **kwargs)) "
            "if isinstance(y, torch.Tensor)]",
            "for k, y in enumerate(ys):",
            "    print('output', k, 'carries history:', y.requires_grad, y.grad_fn)",
            "    if y.requires_grad: print('  gradient:', torch.autograd.grad(y, xs, "
            "torch.ones_like(y), retain_graph=True, allow_unused=True))",
        ],
    )  # fmt: skip
