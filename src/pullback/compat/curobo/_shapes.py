"""What tensors are shaped like, said in letters; and the caller's buffers, which are filled."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.internal.kernels._kernel import broadcast_shapes
from pullback.internal.torch import (
    TransformType,
    get_interpreter_stack,
    get_unwrapped,
    innermost,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    maybe_get_level,
    run_eagerly,
)
from pullback.trajectory._checks import concrete

__all__ = ["check_shapes", "fill"]

_KNOWN = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.bool, torch.uint8,
          torch.int8, torch.int16, torch.int32, torch.int64)  # fmt: skip


def check_shapes(sizes: dict[str, int] | None = None, /, **given: tuple[Any, str]) -> None:
    """Refuse by name what is no tensor of real numbers, or not shaped as is said.

    Each stands beside its form, as in ``"batch horizon dof"``; for ``"..."`` there may be any
    first dimensions, which broadcast with each other's. Sizes are what letters stand for that is
    known; the others stand for what comes first.
    """
    known, batch = {"1": 1, **(sizes or {})}, torch.Size()
    for name, (value, form) in given.items():
        if not isinstance(value, Tensor):
            raise ArgumentTypeError(
                f"{name} is not a tensor.", given=type(value).__name__, expected=f"[{form}]"
            )
        if value.dtype not in _KNOWN or value.layout is not torch.strided:
            raise ArgumentTypeError(
                f"{name} is not a dense tensor of numbers.", given=f"{value.dtype}, {value.layout}"
            )
        letters = form.replace("...", "").split()
        shape, more = value.shape, torch.Size()
        if "..." in form:
            first = max(value.ndim - len(letters), 0)
            more, shape = shape[:first], shape[first:]
        fits = len(shape) == len(letters) and not (more and not _broadcast(batch, more))
        if not fits or any(
            known.setdefault(k, n) != n for k, n in zip(letters, shape, strict=True)
        ):
            named = {"...": tuple(batch)} if batch and more else {}
            named |= {k: known[k] for k in letters if k in known and k != "1"}
            where = ", ".join(f"{k} = {size}" for k, size in named.items())
            raise ArgumentError(
                f"{name} does not fit the other arguments.",
                given=f"shape {tuple(value.shape)}",
                expected=f"[{form}]" + (f" with {where}" if where else ""),
            )
        if more and more != batch:
            batch = broadcast_shapes(batch, more) if batch else more


def _broadcast(one: torch.Size, other: torch.Size) -> bool:
    """Whether two shapes are broadcast with each other."""
    pairs = zip(reversed(one), reversed(other), strict=False)
    return all(n == m or 1 in (n, m) for n, m in pairs)


def fill(
    buffers: Mapping[str, Any], values: Sequence[Tensor], inputs: Mapping[str, Tensor]
) -> None:
    """Copy values into a caller's buffers, outside of the graph; all are checked before the first.

    Nothing may be written into inputs; a buffer that is ``None`` is not asked for.
    """
    if any(buffer is not None for buffer in buffers.values()):
        _fill(buffers, values, inputs)


def _fill(
    buffers: Mapping[str, Any], values: Sequence[Tensor], inputs: Mapping[str, Tensor]
) -> None:
    wanted = dict(zip(buffers, values, strict=True))
    given = {name: buffer for name, buffer in buffers.items() if buffer is not None}
    for name, buffer in given.items():
        _check_kind(name, buffer, wanted[name])
    _check_apart(given, inputs)
    for name, buffer in given.items():
        _check_levels(name, buffer, wanted[name])
    with torch.no_grad():
        for name, buffer in given.items():
            buffer.detach().copy_(wanted[name].detach())


# What shares memory is known to no graph.
run_eagerly(
    _fill, "Out buffers of pullback.compat.curobo are filled outside of graphs: pass None instead."
)


def _check_kind(name: str, buffer: Any, values: Tensor) -> None:
    sizes: dict[str, int] = dict(zip("abcdefgh", values.shape, strict=False))
    check_shapes(sizes, **{f"The out buffer {name}": (buffer, " ".join(sizes))})
    if not torch.can_cast(values.dtype, buffer.dtype):
        raise ArgumentTypeError(
            f"The out buffer {name} has a dtype that cannot hold the result.",
            given=str(buffer.dtype),
            expected=f"a dtype like {values.dtype}",
        )


def _check_levels(name: str, buffer: Tensor, values: Tensor) -> None:
    """Refuse a buffer that a transform of torch.func does not let be filled.

    A level of derivatives lets be written only what it is given, and the items of a batch need
    buffers of their own.
    """
    derivatives = TransformType.Grad, TransformType.Jvp
    stack = get_interpreter_stack() or ()
    need = {level.level() for level in stack if level.key() in derivatives}
    need |= {level for level, batched in _levels(values) if batched}
    if not need <= {level for level, _ in _levels(buffer)}:
        raise UnsupportedError(
            f"The out buffer {name} is not an argument of what torch.func transforms.",
            expected="a buffer that the transformed function is given; for vmap one for each item",
            mend="Pass None, and take the values that are returned.",
        )


def _levels(tensor: Tensor) -> list[tuple[int, bool]]:
    """The levels of torch.func that a tensor is of, and whether it is a batch there."""
    found = []
    while is_functorch_wrapped_tensor(tensor):
        found.append((maybe_get_level(tensor), is_batchedtensor(tensor)))
        tensor = get_unwrapped(tensor)
    return found


def _check_apart(buffers: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> None:
    """Refuse what would change an input, or be overwritten; slices of one tensor lie apart.

    While a program is exported there is no memory yet.
    """
    of_inputs = {_storage(tensor): name for name, tensor in inputs.items()}
    together: dict[int, dict[str, Tensor]] = {}
    for name, buffer in buffers.items():
        place = _storage(buffer)
        if place is not None and buffer.numel():
            together.setdefault(place, {})[name] = buffer
    for place, group in together.items():
        first, *others = group
        if place in of_inputs:
            raise _shared(first, f"shares memory with {of_inputs[place]}")
        if not others and group[first].is_contiguous():
            continue
        elements = torch.cat([_elements(buffer) for buffer in group.values()])
        if elements.unique().numel() < elements.numel():
            what = f"shares memory with {others[0]}" if others else "has elements that share memory"
            raise _shared(first, what)


def _shared(name: str, what: str) -> ArgumentError:
    return ArgumentError(
        f"The out buffer {name} {what}.",
        expected="a buffer of its own memory",
        mend=f"Pass None, or torch.empty_like({name}).",
    )


def _storage(tensor: Tensor) -> int | None:
    known = concrete(tensor) is not None
    return innermost(tensor).untyped_storage().data_ptr() if known else None


def _elements(buffer: Tensor) -> Tensor:
    """Where each element lies in its storage, in bytes."""
    plain: Any = innermost(buffer)
    places = torch.full((), plain.storage_offset(), device="cpu")
    for size, stride in zip(plain.shape, plain.stride(), strict=True):
        places = places[..., None] + torch.arange(size, device="cpu") * stride
    return places.flatten() * plain.element_size()
