"""`State`: what is known of a trajectory at one end, at one instant; and such data as pytrees."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal.torch import pytree
from pullback.trajectory._checks import (
    as_tensor,
    check_device,
    check_fit,
    concrete,
    fits_within,
    is_number,
    plain,
    somewhere,
)

__all__ = [
    "PARTS",
    "State",
    "check_is_state",
    "check_rows",
    "check_state",
    "free",
    "hold",
    "register_dataclass",
    "rest",
    "spread_part",
    "state_part",
]


def _is_constant(_name: str, part: Any) -> bool:
    # Numbers and None are constants of the structure, so that vmap and grad see tensors only.
    if isinstance(part, tuple):
        return all(_is_constant(_name, inner) for inner in part)
    return part is None or isinstance(part, (int, float))


def register_dataclass(
    cls: type, names: Sequence[str], is_constant: Callable[[str, Any], bool] = _is_constant
) -> None:
    """Let torch's transforms look into a dataclass: its leaves are in the order of the names.

    A field whose name and value are those of a constant is a part of the structure, and no leaf.
    """

    def flatten_with_keys(value: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        leaves, context = [], []
        known = getattr(value, "_leaves", ())
        for name in names:
            part = getattr(value, name)
            constant = name not in known and is_constant(name, part)
            context.append(part if constant else "leaf")
            leaves += [] if constant else [(pytree.GetAttrKey(name), part)]
        return leaves, tuple(context)

    def flatten(value: Any) -> tuple[list[Any], tuple[Any, ...]]:
        leaves, context = flatten_with_keys(value)
        return [part for _, part in leaves], context

    def unflatten(leaves: Iterable[Any], context: tuple[Any, ...]) -> Any:
        remaining = iter(leaves)
        found = object.__new__(cls)
        # Not checked as what is constructed is: a gradient with respect to limits may be negative.
        for name, part in zip(names, context, strict=True):
            object.__setattr__(found, name, next(remaining) if part == "leaf" else part)
        # Where vmap puts a number in the place of a leaf, it is no constant.
        known = tuple(name for name, part in zip(names, context, strict=True) if part == "leaf")
        object.__setattr__(found, "_leaves", known)
        return found

    pytree.register_pytree_node(
        cls,
        flatten,
        unflatten,
        serialized_type_name=f"pullback.trajectory.{cls.__name__}",
        flatten_with_keys_fn=flatten_with_keys,
        to_dumpable_context=list,
        from_dumpable_context=_as_tuple,
    )


def _as_tuple(context: Any) -> Any:
    """A context that was written as JSON, which has no tuples."""
    return tuple(map(_as_tuple, context)) if isinstance(context, list) else context


PARTS = ("position", "velocity", "acceleration", "jerk")


def _constant(name: str, part: Any) -> Any:
    """Numbers in lists as tuples, which are constants of the structure."""
    if isinstance(part, (list, tuple)):
        return tuple(_constant(name, inner) for inner in part)
    if is_number(part):
        return float(part)
    raise ArgumentTypeError(
        f"The {name} of a state is not a number.",
        given=f"{type(part).__name__} {part!r}",
        expected="a number, numbers in a list, a tensor or None",
    )


@dataclass(frozen=True, eq=False)
class State:
    """Position, velocity, acceleration and jerk at one instant; a part left out is free.

    All parts hold at the same instant: sample 0 for a start, the last sample for a goal. A `State`
    is a pytree whose leaves are its tensors.

    Arguments:
        position: a number, ``[dof]`` or ``[..., dof]``, a tensor or a list, in the unit of a joint,
            or ``None``.
        velocity: the same, per second.
        acceleration: the same, per second squared.
        jerk: the same, per second cubed.

    Raises:
        ArgumentTypeError: a part is neither a number, a list of them, a tensor nor ``None``.

    Example:
        >>> import torch
        >>> from pullback.trajectory import State, rest
        >>> State(position=torch.zeros(7), velocity=0.0).given
        ('position', 'velocity')
        >>> rest.given
        ('velocity', 'acceleration')
    """

    position: Tensor | float | Sequence[Any] | None = None
    velocity: Tensor | float | Sequence[Any] | None = None
    acceleration: Tensor | float | Sequence[Any] | None = None
    jerk: Tensor | float | Sequence[Any] | None = None

    def __post_init__(self) -> None:
        for name in PARTS:
            part = plain(getattr(self, name))
            # What stands for a tensor while a pytree is rebuilt is not constructed.
            if not (part is None or is_number(part) or isinstance(part, Tensor)):
                part = _constant(name, part)
            object.__setattr__(self, name, part)

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the parts that are given."""
        return tuple(name for name in PARTS if getattr(self, name) is not None)


free = State()
"""Nothing is known: the derivatives at the end come from the samples alone."""

rest = State(velocity=0.0, acceleration=0.0)
"""Standing still: velocity and acceleration are zero; the position is the sample's own."""

hold = State(velocity=0.0, acceleration=0.0, jerk=0.0)
"""Standing still and staying so: velocity, acceleration and jerk are zero."""


register_dataclass(State, PARTS)


def check_is_state(name: str, state: Any) -> None:
    """Refuse what is not a `State`."""
    if not isinstance(state, State):
        raise ArgumentTypeError(
            f"The {name} is not a State.",
            given=type(state).__name__,
            expected="pullback.trajectory.State, such as rest or State(velocity=0.0)",
        )


def check_state(name: str, state: Any, like: Tensor) -> None:
    """Refuse what is not a `State` of finite parts that fit points ``[..., count, dof]``."""
    check_is_state(name, state)
    for part in state.given:
        what = f"{part} of the {name}"
        value = as_tensor(what, getattr(state, part), torch.float64, like.device)
        check_fit(what, value, like)
        if somewhere(~torch.isfinite(value)):
            raise ArgumentError(f"The {what} is not finite.", given="NaN or infinity")


def state_part(state: State, part: str, like: Tensor) -> Tensor:
    """A part of a state, which must be given, as float64 ``[..., 1, dof]`` beside the points."""
    value = as_tensor(part, getattr(state, part), torch.float64, like.device).to(torch.float64)
    return (value if value.dim() else value.unsqueeze(-1)).unsqueeze(-2)


def check_rows(what: str, index: Tensor, rows: int) -> None:
    """Refuse an index of rows that a table does not have."""
    known = concrete(index)
    if known is not None and bool(((known < 0) | (known >= rows)).any()):
        raise ArgumentError(
            f"{what} is out of range.",
            given=f"indices from {int(known.min())} to {int(known.max())}",
            expected=f"0 to {rows - 1}, for a table of {rows} states",
        )


def spread_part(what: str, part: Any, samples: Tensor, index: Tensor | None = None) -> Tensor:
    """A number, ``[dof]`` or ``[..., dof]`` as ``[*batch, dof]`` in the dtype of the samples.

    With an index ``[*batch]`` of rows it is a table ``[states, dof]``.
    """
    shape = (*samples.shape[:-2], samples.shape[-1])
    value = as_tensor(what, part, samples.dtype, samples.device)
    check_device(what, value, samples, "samples")
    if value.dtype != samples.dtype:
        raise ArgumentTypeError(
            f"The {what} has another dtype than the samples.",
            given=f"{value.dtype}, samples {samples.dtype}",
            expected=str(samples.dtype),
        )
    if index is not None and value.ndim:
        if value.ndim != 2:
            raise ArgumentError(
                "With start_index, the parts of start are tables.",
                given=f"shape {tuple(value.shape)}",
                expected="[states, dof]",
            )
        check_rows("start_index", index, len(value))
        value = value.index_select(0, index.flatten()).unflatten(0, index.shape)
    if not fits_within(value.shape, shape) or (value.ndim and value.shape[-1] != shape[-1]):
        raise ArgumentError(
            f"The {what} does not fit the trajectories.",
            given=f"shape {tuple(value.shape)}",
            expected=f"[{shape[-1]}] or {list(shape)}: the batch and dof of the samples",
        )
    return value.expand(shape)
