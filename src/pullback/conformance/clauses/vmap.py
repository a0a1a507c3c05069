"""`vmap`: a batched call equals a loop, forward and backward, for every `in_dims`."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from pullback.conformance._clause import Finding, Probe, Tensors, clause
from pullback.conformance.process._guard import seed_of_draws

__all__ = ["vmap"]

_BATCH = 3


@clause(
    why="Per-sample gradients and ensembles batch the Function with vmap. A wrong rule "
    "mixes samples.",
    breach="with all inputs batched first, all last, and each alone.",
    mend="Correct the vmap staticmethod, set generate_vmap_rule = True, write Function from "
    "pullback, or use pullback.complete(F).",
)
def vmap(probe: Probe) -> Iterator[Finding | None]:
    """Batch each choice of inputs along the first and the last dimension, and compare."""
    items = [probe.point(0), *(probe.neighbour(number) for number in range(2, _BATCH + 1))]
    count = len(items[0])
    # All inputs at the first dimension, all at the last, then each alone.
    choices: list[tuple[int | None, ...]] = [(0,) * count, tuple(x.ndim for x in items[0])]
    for k in range(min(count, 4) if count > 1 else 0):
        choices.append(tuple(0 if j == k else None for j in range(count)))
    for dims in choices:
        yield _compare(probe, items, dims)
    yield probe.holds(f"A batch of {_BATCH} equals a loop, forward and backward.")


def _compare(probe: Probe, items: list[Tensors], dims: tuple[int | None, ...]) -> Finding | None:
    """A finding where the batched call differs from the loop or fails, else ``None``."""
    rows = [
        [
            x if d is not None else items[0][k]
            for k, (x, d) in enumerate(zip(item, dims, strict=True))
        ]
        for item in items
    ]
    expected, slopes, cotangents = _loop(probe, rows, dims)
    batched = [
        torch.stack([row[k] for row in rows], d) if d is not None else items[0][k].clone()
        for k, d in enumerate(dims)
    ]
    leaves = [x.detach().requires_grad_() for x in batched]
    options: dict[str, Any] = {"randomness": "same" if probe.random else "error"}
    try:
        got = torch.func.vmap(probe.flat, in_dims=dims, **options)(*leaves)
        gradients = probe.pull(leaves, cotangents, list(got))
    except Exception as error:  # judged by its type
        return probe.failed(error, f"vmap refuses in_dims={dims}", rule="vmap")
    said = f"vmap with in_dims={dims} gives other numbers than a loop."
    return probe.unlike(
        [*got, *gradients], [*expected, *slopes], said, outputs=len(expected), looser=1e4,
        given={"new": batched, "w": cotangents}, repro=_repro(probe, dims),
    )  # fmt: skip


def _loop(
    probe: Probe, rows: list[Tensors], dims: Sequence[int | None]
) -> tuple[Tensors, Tensors, Tensors]:
    """Outputs, gradients and the cotangents that give them, one item at a time."""
    outputs = [[y.detach() for y in probe.evaluate(probe.leaves(row))] for row in rows]
    cotangents = [probe.cotangents(ys, number) for number, ys in enumerate(outputs)]
    gradients = [probe.backward(row, ws) for row, ws in zip(rows, cotangents, strict=True)]
    slopes = [
        torch.stack([g[k] for g in gradients], d)
        if d is not None
        else torch.stack([g[k] for g in gradients]).sum(0)
        for k, d in enumerate(dims)
    ]
    stacked = [torch.stack(parts) for parts in zip(*outputs, strict=True)]
    return stacked, slopes, [torch.stack(parts) for parts in zip(*cotangents, strict=True)]


def _repro(probe: Probe, dims: tuple[int | None, ...]) -> list[str]:
    """Lines that print outputs and gradients of the batch that was judged, and of the loop."""
    how = f"randomness={'same' if probe.random else 'error'!r}"
    return [
        "def f(*new):",
        f"    torch.manual_seed({seed_of_draws(probe.seed)})" if probe.random else "",
        "    found = call(*[next((n for x, n in zip(xs, new) if x is a), a) for a in args], "
        "**kwargs)",
        "    ys = [y for y in tree_leaves(found) if isinstance(y, torch.Tensor)]",
        f"    return tuple(ys[k] for k in {list(probe.outputs)})",
        f"dims = {dims}",
        "new = [x.requires_grad_() for x in new]",
        f"ys = torch.func.vmap(f, in_dims=dims, {how})(*new)",
        "print('vmap', ys, torch.autograd.grad(ys, new, w, allow_unused=True))",
        "items = [[x if d is None else x.select(d, k) for x, d in zip(new, dims)] "
        f"for k in range({_BATCH})]",
        "ys = [torch.stack(y) for y in zip(*[f(*item) for item in items])]",
        "print('loop', ys, torch.autograd.grad(ys, new, w, allow_unused=True))",
    ]
