"""`form`: each returned gradient has its input's shape, dtype and device; the count is right."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from pullback.conformance._clause import Finding, Probe, clause
from pullback.conformance.comparison._changes import is_same
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
    args = () if probe.subject.function is None else probe.inputs.args
    for node in nodes:
        returned = call_backward(node, unit_cotangents(node))
        wrong = (
            _count(node, returned) or _elsewhere(node, returned, args) or _members(node, returned)
        )
        if wrong is None:
            continue
        if wrong.is_mended:
            return probe.untidy(
                wrong.said, expected=wrong.expected, got=wrong.got, place=wrong.place
            )
        return probe.broken(
            wrong.said, expected=wrong.expected, got=wrong.got, place=wrong.place, repro=_RAW
        )
    return probe.holds("Each gradient has its input's shape, dtype and device.")


class _Wrong(NamedTuple):
    """What is wrong with what backward returns."""

    place: str
    expected: str
    got: str
    said: str = "Backward returns what is no gradient of its input."
    is_mended: bool = False  # whether autograd took it: plain backward ran


def _count(node: Any, returned: tuple[Any, ...]) -> _Wrong | None:
    wanted = len(needed(node))
    extra = returned[wanted:]
    if len(returned) < wanted or any(value is not None for value in extra):
        return _Wrong("the returned tuple", f"{wanted} gradients", f"{len(returned)} gradients")
    return None


def _elsewhere(node: Any, returned: tuple[Any, ...], args: Sequence[Any]) -> _Wrong | None:
    """None for an argument whose gradient, by its shape, stands where no gradient is needed."""
    wanted = dict(edges(node))
    lost = [(k, entry) for k, entry in wanted.items() if returned[k] is None]
    for j, (value, arg) in enumerate(zip(returned, args, strict=False)):
        pair = isinstance(value, torch.Tensor) and isinstance(arg, torch.Tensor)
        for k, entry in lost if pair and j not in wanted else ():
            if value.shape == torch.Size(entry.shape) != arg.shape:
                return _Wrong(
                    _place(node, k), _form(entry), "None",
                    f"Backward returns None for argument {k}, and a gradient of its shape for "
                    f"argument {j}, which needs none and has shape {tuple(arg.shape)}.",
                )  # fmt: skip
    return None


def _members(node: Any, returned: tuple[Any, ...]) -> _Wrong | None:
    for k, entry in edges(node):
        value = returned[k]
        if value is None:
            continue
        if not isinstance(value, torch.Tensor):
            return _Wrong(_place(node, k), "a tensor or None", type(value).__name__)
        if _form(entry) != _form(value):
            others = (j for j, other in enumerate(returned) if j != k and _is(other, value))
            same = "".join(f" It is the one for argument {j}, too." for j in others)
            said = "Backward returns a gradient that does not have its input's form; autograd "
            said += f"sums, casts or moves it.{same}"
            return _Wrong(_place(node, k), _form(entry), _form(value), said, is_mended=True)
    return None


def _is(other: Any, value: torch.Tensor) -> bool:
    return isinstance(other, torch.Tensor) and is_same(other, value)


def _place(node: Any, number: int) -> str:
    return f"argument {number} of {function_of(node).__name__}"


def _form(tensor: Any) -> str:
    return f"shape {tuple(tensor.shape)}, {tensor.dtype}, {tensor.device}"
