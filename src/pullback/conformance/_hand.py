"""What a rule has at hand, and what a number in it may be: all that may explain wrong numbers."""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import torch

from pullback.conformance._arguments import Arguments
from pullback.conformance._held import context_tensors
from pullback.conformance._nodes import custom_nodes
from pullback.conformance._pair import CLOSE, Difference, is_same
from pullback.conformance._probe import Probe, Tensors
from pullback.conformance._tree import walk

__all__ = ["at_hand"]


def at_hand(
    probe: Probe, points: Tensors, outputs: Tensors, handed: Mapping[str, torch.Tensor]
) -> Difference:
    """A difference that says what is at hand, before it is known what differs.

    Arguments:
        probe: the subject.
        points: the differentiated inputs.
        outputs: the outputs there.
        handed: the cotangents or tangents, by what they are.
    """
    inputs, left = probe.inputs.with_points(points), _left(probe, points)
    arguments = dict(zip(inputs.paths, inputs.values, strict=True))
    named = {f"output {k}": y for k, y in enumerate(outputs)}
    least = torch.finfo(probe.dtype).eps
    return Difference(
        outputs[0],
        None,
        sizes=_sizes(inputs.names(), points, outputs),
        hand=_distinct({**arguments, **named, **handed, **left}),
        numbers=_numbers(inputs, left),
        counts=_counts(arguments),
        lowered={
            path: t.dtype
            for path, t in left.items()
            if t.is_floating_point() and torch.finfo(t.dtype).eps > least
        },
        close=3e-2 if probe.rough or probe.grain else CLOSE,
    )


def _distinct(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Each of the tensors under its first name."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.numel() and not any(is_same(tensor, other) for other in found.values()):
            found[name] = tensor
    return found


def _counts(arguments: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, int]]:
    """How many entries of targets and masks count, where not all of them do."""
    plain = {
        path: v for path, v in arguments.items() if not (v.is_floating_point() or v.is_complex())
    }
    found = {f"entries of {path} are not negative": v >= 0 for path, v in plain.items()}
    found |= {f"entries of {path} are not zero": v != 0 for path, v in plain.items()}
    counts = {said: (int(used.sum()), used.numel()) for said, used in found.items()}
    return {said: (some, every) for said, (some, every) in counts.items() if 0 < some < every}


def _left(probe: Probe, points: Tensors) -> dict[str, torch.Tensor]:
    """What forward left for backward, by the expression that reaches it."""
    outputs = probe.evaluate(probe.leaves(points))
    found: dict[str, Any] = {}
    for node in custom_nodes(outputs):
        found |= {f"ctx.saved_tensors[{k}]": t for k, t in enumerate(node.saved_tensors)}
        found |= {held.path: held.value for held in context_tensors(node)}
    return {
        path: value.detach()
        for path, value in found.items()
        if isinstance(value, torch.Tensor) and value.layout is torch.strided
    }


def _numbers(inputs: Arguments, left: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """The numbers among the arguments and what forward left, those in tensors of one entry too."""
    plain = [*walk(inputs.args, "args"), *walk(dict(inputs.kwargs), "kwargs")]
    tensors = [*zip(inputs.paths, inputs.values, strict=True), *left.items()]
    single = [(path, v.item()) for path, v in tensors if v.numel() == 1 and v.is_floating_point()]
    return {
        path: float(value)
        for path, value in [*plain, *single]
        if type(value) in (int, float) and value not in (0, 1, -1) and math.isfinite(value)
    }


def _sizes(names: list[str], points: Tensors, outputs: Tensors) -> dict[str, int]:
    """What a factor may be: the sizes of dimensions, and numbers of entries."""
    found = {}
    every = [*zip(names, points, strict=True), *((f"output {k}", y) for k, y in enumerate(outputs))]
    for name, tensor in every:
        for dim, size in enumerate(tensor.shape):
            found[f"dimension {dim} of {name}"] = size
        for count in range(2, tensor.ndim):
            for dims in itertools.combinations(range(tensor.ndim), count):
                sizes = [tensor.shape[dim] for dim in dims]
                shown = f"dimensions {' and '.join(map(str, dims))} of {name}"
                found[f"{shown} ({' x '.join(map(str, sizes))})"] = math.prod(sizes)
    for name, tensor in every:
        if tensor.ndim > 1:
            found[f"{name} in all ({tensor.numel()} entries)"] = tensor.numel()
    return found
