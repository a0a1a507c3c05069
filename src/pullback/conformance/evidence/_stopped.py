"""Where a gradient is not the derivative on purpose: what then moves otherwise than as computed.

**What forward detaches.** A target network, a running estimate, a codebook's commitment or the
scale of a normalisation may be a constant to backward by the author's will, who writes
``.detach()``. Then backward is the derivative of another function: forward with what it detaches
held as it was. So that is what finite differences are taken of: a run at the given point keeps what
is detached, and those beside it are handed the same, in the same order.

Not every ``.detach()`` means this. In the forward of a Function none has an effect, and arguments
are detached there for what takes no history, a kernel or numpy: a gradient that is missing then may
as well be forgotten.

**What is saved with a history.** To what is computed of an output, and to a backward that reads it,
the output moves as the rule says: by J v, where J is the transpose of B. Autograd has it so, and so
has a second derivative; how forward moves it, which a straight-through estimator says is not meant,
has no part in it. Where the rule is the derivative both are the same, and where it is a wrong one
that is told once, of the gradient. So where differences of backward are taken, it is handed what
was saved with a history as that history moves it, in the order in which it was saved.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pullback.conformance.inputs._vectors import products
from pullback.conformance.probing._nodes import Saved
from pullback.conformance.probing._probe import Probe, Tensors
from pullback.internal.torch import FunctionMode, storage_of

__all__ = ["Stop", "Stops", "as_meant", "held"]

_data: Any = inspect.getattr_static(torch.Tensor, "data")  # a property, on the class
_ENDS: tuple[Callable[..., Any], ...] = (torch.Tensor.detach, torch.detach, _data.__get__)
# By these numbers leave torch.
_LEAVES: tuple[Callable[..., Any], ...] = (
    torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.data_ptr, torch.Tensor.__dlpack__,
)  # fmt: skip


@dataclass(frozen=True)
class Stop:
    """One value that forward detaches."""

    value: torch.Tensor  # a copy
    cuts: bool  # whether that ends a history
    within: int  # the storage that it lies in


class _Watch(FunctionMode):
    """Notes what is detached, or hands out what an earlier run has detached in its place."""

    def __init__(self, known: Sequence[Stop] | None = None) -> None:
        super().__init__()
        self.known = None if known is None else iter(known)
        self.found: list[Stop] = []
        self.leaves = False  # whether numbers leave torch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in _LEAVES:
            self.leaves = True
        if func not in _ENDS:
            return made
        if self.known is not None:
            return next(self.known).value.clone()  # the end of these is an error, as it should be
        cuts = torch.is_grad_enabled() and args[0].requires_grad
        self.found.append(Stop(made.detach().clone(), cuts, storage_of(made)))
        return made


@dataclass(frozen=True)
class Stops:
    """What one run detaches."""

    values: list[Stop]
    leaves: bool  # whether numbers leave torch in it
    given: frozenset[int]  # the storages of the arguments

    @classmethod
    def of(cls, probe: Probe, points: Tensors) -> "Stops":
        """What a run at ``points`` detaches."""
        watch, leaves = _Watch(), probe.leaves(points)
        with watch:
            probe.run(leaves)
        return cls(watch.found, watch.leaves, frozenset(map(storage_of, leaves)))

    @property
    def are_meant(self) -> bool:
        """Whether one of them is more than an argument, detached where that has no effect."""
        return any(s.cuts or not (self.leaves or s.within in self.given) for s in self.values)


def held(probe: Probe, points: Tensors) -> Probe:
    """The probe of forward with what it detaches at ``points`` held as it is there."""
    known = Stops.of(probe, points).values
    if not known:
        return probe

    def call(*args: Any, **kwargs: Any) -> Any:
        with _Watch(known):
            return probe.subject.call(*args, **kwargs)

    return replace(probe, subject=replace(probe.subject, call=call))


def as_meant(probe: Probe, points: Tensors, step: Tensors) -> Callable[[float], Probe]:
    """``t -> probe``, for a backward at ``points + t step``: what moves does so as is meant."""
    there = held(probe, points) if probe.stops else probe
    known = {} if probe.intent == "nonlinear" else _ruled(there, points, step)
    if not known:
        return lambda t: there

    def at(t: float) -> Probe:
        def call(*args: Any, **kwargs: Any) -> Any:
            with Saved({k: x + t * tangent for k, (x, tangent) in known.items()}):
                return there.subject.call(*args, **kwargs)

        return replace(there, subject=replace(there.subject, call=call))

    return at


def _ruled(
    probe: Probe, points: Tensors, step: Tensors
) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """What is saved with a history, by its number, and its tangent along a step by the rules alone.

    <B(w), v> is linear in w, and its derivative by w is the tangent. Nothing where it is not: a
    backward that autograd does not follow from its cotangent says nothing here.
    """
    leaves, saved = probe.leaves(points), _Moving()
    try:
        with saved:
            probe.evaluate(leaves)
        moving, saved.found = saved.found, {}  # or what is saved keeps itself
        weights = [w.requires_grad_() for w in probe.cotangents([*moving.values()], "ruled")]
        gradients = probe.pull(leaves, weights, [*moving.values()], create_graph=True)
        # Of what refuses `torch.autograd.grad` the graph of a gradient is torch's all the same.
        tangents = replace(probe, accumulates=False).pull(weights, step, gradients)
    except Exception:  # a second derivative is refused, or what is saved is not shown
        return {}
    (one, size), (other, _) = products(gradients, step), products(weights, tangents)
    if not abs(one - other) <= size * torch.finfo(probe.dtype).eps ** 0.6:
        return {}
    pairs = zip(moving.items(), tangents, strict=True)
    return {k: (x.detach(), tangent.detach()) for (k, x), tangent in pairs}


class _Moving(Saved):
    """Also keeps what has a history, by its number."""

    def __init__(self) -> None:
        super().__init__()
        self.found = dict[int, torch.Tensor]()

    def _pack(self, tensor: torch.Tensor) -> int:
        number = super()._pack(tensor)
        if tensor.requires_grad:
            self.found[number] = tensor
        return number
