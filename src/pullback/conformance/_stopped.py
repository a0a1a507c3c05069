"""What forward detaches: a gradient that is stopped on purpose, written where it is meant.

A target network, a running estimate, a codebook's commitment or the scale of a normalisation may be
a constant to backward by the author's will, who writes ``.detach()``. Then backward is the
derivative of another function: forward with what it detaches held as it was. So that is what
finite differences are taken of: a run at the given point keeps what is detached, and those beside
it are handed the same, in the same order.

Not every ``.detach()`` means this. In the forward of a Function none has an effect, and arguments
are detached there for what takes no history, a kernel or numpy: a gradient that is missing then may
as well be forgotten.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pullback.conformance._probe import Probe, Tensors
from pullback.internal.torch import FunctionMode, storage_of

__all__ = ["Stop", "Stops", "held"]

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
