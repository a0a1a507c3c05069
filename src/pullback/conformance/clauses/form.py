"""`form`: each returned gradient has its input's shape, dtype and device; the count is right."""

from typing import Any

import torch

from pullback.conformance._clause import Finding, Probe, clause
from pullback.conformance.probing._nodes import (
    call_backward,
    custom_nodes,
    edges,
    needed,
    unit_cotangents,
)
from pullback.internal.torch import METADATA, function_of

__all__ = ["form"]


_RAW = [
    "ys = outs(); node = ys[0].grad_fn",
    f"w = [torch.ones(m.shape, dtype=m.dtype) for m in node.{METADATA}]",
    "raw = torch.autograd.function.BackwardCFunction.apply(node, *w)",
    "raw = raw if isinstance(raw, tuple) else (raw,)",
    "print('returned', [(getattr(r, 'shape', r), getattr(r, 'dtype', None)) for r in raw])",
    "print('inputs  ', [(x.shape, x.dtype) for x in xs], 'of', len(args), 'arguments')",
]


@clause(
    why="Gradients of another shape, dtype or device than their input are cast, summed or "
    "refused somewhere downstream, far from the cause.",
    breach="in what backward itself returns. What autograd mends (it sums a broadcast gradient and "
    "casts a floating one) is `untidy`; what it refuses shows as a plain backward that fails.",
    mend="Return one gradient for each argument of forward, with its shape, dtype and device, "
    "or None.",
)
def form(probe: Probe) -> Finding:
    """Record what backward returns before autograd reshapes, casts or drops it."""
    leaves = probe.leaves()
    outputs = probe.evaluate(leaves)  # held: a node lives as long as what it made
    nodes = custom_nodes(outputs)
    if not nodes:
        return probe.skipped("No custom Function is in the graph.")
    for node in nodes:
        returned = call_backward(node, unit_cotangents(node))
        wrong = _count(node, returned) or _members(node, returned)
        if wrong is None:
            continue
        place, expected, got = wrong
        if "," in got:  # a tensor, which autograd took: plain backward ran
            return probe.untidy(
                "Backward returns a gradient that does not have its input's form; autograd sums, "
                "casts or moves it.",
                expected=expected, got=got, place=place,
            )  # fmt: skip
        return probe.broken(
            "Backward returns what is no gradient of its input.",
            expected=expected, got=got, place=place, repro=_RAW,
        )  # fmt: skip
    return probe.holds("Each gradient has its input's shape, dtype and device.")


def _count(node: Any, returned: tuple[Any, ...]) -> tuple[str, str, str] | None:
    wanted = len(needed(node))
    extra = returned[wanted:]
    if len(returned) < wanted or any(value is not None for value in extra):
        return "the returned tuple", f"{wanted} gradients", f"{len(returned)} gradients"
    return None


def _members(node: Any, returned: tuple[Any, ...]) -> tuple[str, str, str] | None:
    for k, entry in edges(node):
        value = returned[k]
        if value is None:
            continue
        place = f"argument {k} of {function_of(node).__name__}"
        if not isinstance(value, torch.Tensor):
            return place, "a tensor or None", type(value).__name__
        expected = (tuple(entry.shape), entry.dtype, entry.device)
        got = (tuple(value.shape), value.dtype, value.device)
        if expected != got:
            return place, _say(expected), _say(got)
    return None


def _say(form: tuple[Any, ...]) -> str:
    shape, dtype, device = form
    return f"shape {shape}, {dtype}, {device}"
