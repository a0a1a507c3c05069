"""What explains wrong numbers at one point: <w, f> around it, and what a rule has at hand there.

Around it an entry moves alone, or those that are tied to it, by finite differences. At hand are
tensors and numbers, and what a number in a rule may be.
"""

import ast
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pullback.conformance.comparison._changes import CLOSE, Difference, is_same
from pullback.conformance.evidence._derivative import aligned
from pullback.conformance.inputs._arguments import Arguments, is_composed, is_continuous
from pullback.conformance.inputs._held import context_tensors
from pullback.conformance.inputs._structure import moving
from pullback.conformance.inputs._tree import walk
from pullback.conformance.inputs._vectors import inner, scale
from pullback.conformance.probing._nodes import custom_nodes
from pullback.conformance.probing._probe import Probe, Tensors
from pullback.conformance.process._failure import attempt
from pullback.conformance.source._sources import written
from pullback.internal.torch import pytree

__all__ = [
    "EVERY", "Around", "at_hand", "chosen_places", "neutral", "slopes_along", "step_of",
    "unread_cotangent",
]  # fmt: skip

EVERY = 256
"""The entries of an input up to which each of them is moved."""
_SOME, _ENDS = 96, 24  # of a larger one, spread out and at either end


def slopes_along(
    probe: Probe, points: Tensors, step: Tensors, base: Tensors, size: float | None = None
) -> Tensors:
    """How each output changes along a step, by one central difference.

    Arguments:
        probe: the subject.
        points: where.
        step: the direction.
        base: the outputs there.
        size: how much of the step to go; as f in float32 or in float64 asks if ``None``.
    """
    size = _relative(probe) if size is None else size
    with torch.no_grad():
        up, down = (aligned(probe.output_values(probe.moved(points, step, t)), base)
                    for t in (size, -size))  # fmt: skip
    return [(a - b) / (2 * size) for a, b in zip(up, down, strict=True)]


def _relative(probe: Probe) -> float:
    """A step as a part of what moves, where f computes in float32 or in float64."""
    return 2.0**-17 if probe.dtype == torch.float64 else 2.0**-6


def _close(probe: Probe) -> float:
    """How far apart equal numbers may be, beside the largest."""
    return 3e-2 if probe.is_coarse else CLOSE


@dataclass(frozen=True)
class Around:
    """<w, f> around one point."""

    probe: Probe  # the subject
    points: Tensors  # the differentiated inputs
    weights: Tensors  # the cotangents
    base: Tensors  # the outputs there
    until: float  # when time is over
    # what keeps the structure of each point
    steps: Sequence[Callable[[torch.Tensor], torch.Tensor]]

    @classmethod
    def of(cls, probe: Probe, points: Tensors, until: float) -> "Around":
        """With random weights, none of them close to zero."""
        base, steps = probe.output_values(points), [moving(point) for point in points]
        return cls(probe, points, probe.spread(base, "weights 0"), base, until, steps)

    @property
    def close(self) -> float:
        """How far apart equal numbers may be, beside the largest."""
        return _close(self.probe)

    def pushed(self, only: int, step: torch.Tensor, size: float | None = None) -> Tensors | None:
        """How each output changes with one input along a step; ``None`` where f is refused."""
        alone = [step if k == only else torch.zeros_like(x) for k, x in enumerate(self.points)]
        return attempt(lambda: slopes_along(self.probe, self.points, alone, self.base, size), None)

    def slope(self, only: int, step: torch.Tensor, size: float | None = None) -> float | None:
        """The same, of <w, f>."""
        found = self.pushed(only, step, size)
        if found is None:
            return None
        return sum(inner(w, change) for w, change in zip(self.weights, found, strict=True))

    def entry(self, only: int, place: int) -> complex | float | None:
        """d<w, f> by one entry; of a complex entry as autograd has it.

        Nothing moves with one that is infinite: a mask leaves it out.
        """
        point = self.points[only]
        if not point.reshape(-1)[place].isfinite():
            return 0.0
        size = step_of(self.probe, point, place)
        units = (1.0, 1j) if point.is_complex() else (1.0,)
        found = [self.slope(only, self.unit(only, place, unit), size) for unit in units]
        known = [slope for slope in found if slope is not None]
        if len(known) < len(units):
            return None
        return complex(*known) if point.is_complex() else known[0]

    def unit(self, only: int, place: int, size: complex = 1.0) -> torch.Tensor:
        """A step of one entry, and of those that its structure ties to it."""
        step = torch.zeros_like(self.points[only]).contiguous()
        step.view(-1)[place] = torch.tensor(size, dtype=step.dtype)
        return self.steps[only](step)

    def gradient(self, only: int, places: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradient of one input at some entries, as many as there is time for, and which."""
        found = torch.full_like(self.points[only], torch.nan).contiguous()
        known = torch.zeros(found.shape, dtype=torch.bool, device="cpu")
        for place in places:
            value = self.entry(only, place)
            if value is not None:
                found.view(-1)[place] = torch.as_tensor(value, dtype=found.dtype)
                known.view(-1)[place] = True
            if time.process_time() > self.until:
                break
        return found, known

    def with_constants(self) -> "Around":
        """The same, with every floating input as one that is differentiated."""
        given = self.probe.inputs.with_points(self.points)
        every = [k for k, value in enumerate(given.values) if is_continuous(value)]
        inputs = given.with_differentiable(every)
        steps = [moving(point) for point in inputs.points()]
        return replace(self, probe=self.probe.at(inputs), points=inputs.points(), steps=steps)

    def whole(self, only: int, weights: Tensors | None = None) -> torch.Tensor | None:
        """All entries of a gradient; ``None`` where one cannot be had, or time is over."""
        count = self.points[only].numel()
        if count > EVERY or time.process_time() > self.until:
            return None
        there = self if weights is None else replace(self, weights=weights)
        found, known = there.gradient(only, range(count))
        return found if bool(known.all()) else None

    def lone_place(self, only: int) -> int:
        """An entry of a large input that is wrong: the range that moves is halved each time."""
        low, high = 0, self.points[only].numel()
        if high <= EVERY:
            return 0
        step = self.probe.direction("lone entry", only)[only].reshape(-1)
        gradient = self.probe.backward(self.points, self.weights)[only].reshape(-1)

        def gap(low: int, high: int) -> float:
            moved = torch.zeros_like(step)
            moved[low:high] = step[low:high]
            slope = self.slope(only, moved.view(self.points[only].shape))
            return 0.0 if slope is None else abs(slope - inner(gradient, moved))

        while high - low > 1 and time.process_time() < self.until:
            middle = (low + high) // 2
            left = gap(low, middle) >= gap(middle, high)
            low, high = (low, middle) if left else (middle, high)
        return low


def step_of(probe: Probe, point: torch.Tensor, place: int) -> float:
    """How far one entry moves; one that is infinite stays, whatever is added."""
    step = float(scale(point).abs().reshape(-1)[place]) * _relative(probe) or 1.0
    return float(f"{step:.0e}")  # short to write down


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
        close=_close(probe),
    )


def _distinct(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Each of the tensors under its first name."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        plain = tensor.numel() and not is_composed(tensor)
        if plain and not any(is_same(tensor, other) for other in found.values()):
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
        if type(value) in (int, float) and math.isfinite(value)
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


def chosen_places(count: int) -> list[int]:
    """Every entry, or those at both ends and some between."""
    if count <= EVERY:
        return list(range(count))
    between = [int(k * count / _SOME) for k in range(_SOME)]
    ends = [*range(_ENDS), *range(count - _ENDS, count)]
    return sorted({*between, *ends})


def neutral(inputs: Arguments) -> Iterator[tuple[str, Any, Arguments]]:
    """Each argument with a value at which it does nothing, in many a forward."""
    leaves = pytree.tree_leaves((inputs.args, dict(inputs.kwargs)))
    paths = [path for part in ("args", "kwargs") for path, _ in walk(getattr(inputs, part), part)]
    tensors = iter(range(len(inputs.values)))
    for k, (path, leaf) in enumerate(zip(paths, leaves, strict=False)):
        if isinstance(leaf, torch.Tensor):
            place = next(tensors)
            given = inputs.values[place]
            for number in (0, 1):
                other = torch.full_like(given, number)
                if place not in inputs.owned and not torch.equal(other, given):
                    yield path, number, inputs.with_some({place: other})
        elif type(leaf) in (bool, int, float):
            for number in {type(leaf)(0), type(leaf)(1)} - {leaf}:
                yield path, number, inputs.with_leaves({k: number})


def unread_cotangent(
    function: Any, outputs: tuple[int, ...], terms: Mapping[str, torch.Tensor],
    lacks: Callable[[torch.Tensor], bool],
) -> tuple[str, str]:  # fmt: skip
    """What is said of such a cotangent, and the mend; two empty texts without one.

    Arguments:
        function: the Function.
        outputs: the positions of its outputs that are differentiated.
        terms: that of each of these in the gradient, by ``"output 0"`` and so on.
        lacks: whether a term is all that the gradient lacks: else another fault is there, too.
    """
    back = written(getattr(function, "backward", None))
    given = [] if back is None else back.rule.tree.args.args[1:]
    for k, place in enumerate(outputs):
        term = terms.get(f"output {k}")
        if back is None or place >= len(given) or given[place].arg not in back.rule.unread:
            continue
        if term is not None and bool(term.any()) and lacks(term):
            name, where = given[place].arg, back.rule.where(given[place])
            said = f"Backward does not read `{name}`, the cotangent of output {k}, at {where}."
            output = _returned(function, place)
            return said, (
                f"Add the term of `{name}`, or write `ctx.mark_non_differentiable({output})` in "
                "forward, where no gradient is to flow through that output."
            )
    return "", ""


def _returned(function: Any, place: int) -> str:
    """How forward calls an output that it returns."""
    source = written(function.forward)
    forward = None if source is None else source.rule
    nodes = ast.walk(forward.tree) if forward is not None else ()
    values = [n.value.elts for n in nodes if isinstance(n, ast.Return)
              and isinstance(n.value, ast.Tuple) and place < len(n.value.elts)]  # fmt: skip
    return forward.text(values[0][place]) if forward is not None and values else "..."
