"""bfloat16 in Triton's interpreter, as a compiler has it.

NumPy has no such type, so the interpreter keeps the bits in integers: it cuts float32 short where
hardware rounds to the nearest, and adds, multiplies and casts to other types the integers
themselves. Here all of that is done in float32, and rounded by torch.
"""

from collections.abc import Callable
from typing import Any

import numpy
import torch

__all__ = ["install"]


def widened(bits: numpy.ndarray) -> numpy.ndarray:
    """The float32 numbers of bfloat16 bits."""
    return (
        torch.from_numpy(numpy.array(bits).view(numpy.int16)).view(torch.bfloat16).float().numpy()
    )


def rounded(numbers: numpy.ndarray) -> numpy.ndarray:
    """The bits of the nearest bfloat16 numbers."""
    near = torch.from_numpy(numpy.array(numbers, dtype=numpy.float32)).to(torch.bfloat16)
    return near.view(torch.int16).numpy().view(numpy.uint16)


def install(interpreter: Any, tl: Any) -> None:
    """Change the interpreter of this process."""
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle

    def wide(one: Any) -> Any:
        half = one.dtype.scalar == tl.bfloat16
        return handle(widened(one.data), tl.float32) if half else one

    def narrow(one: Any) -> Any:
        return handle(rounded(one.data), tl.bfloat16)

    def in_float32(operation: Callable[..., Any], many: int) -> Callable[..., Any]:
        def operate(self: Any, *given: Any) -> Any:
            found = operation(self, *map(wide, given[:many]), *given[many:])
            half = given[many - 1].dtype.scalar == tl.bfloat16 and found.data.dtype != bool
            return narrow(found) if half else found

        return operate

    cast, select, dot, add = (builder.cast_impl, builder.ternary_op, builder.create_dot,
                              builder.create_atomic_rmw)  # fmt: skip

    def between(self: Any, source: Any, kind: Any) -> Any:
        if kind.scalar == tl.bfloat16:
            return narrow(
                source if source.dtype.scalar == tl.bfloat16 else cast(self, source, tl.float32)
            )
        return cast(self, wide(source), kind)

    def ternary(self: Any, *given: Any) -> Any:
        return (
            select(self, *given)
            if given[-1] is numpy.where
            else in_float32(select, 3)(self, *given)
        )

    def atomic(self: Any, operation: Any, at: Any, value: Any, mask: Any, *more: Any) -> Any:
        if value.dtype.scalar != tl.bfloat16:
            return add(self, operation, at, value, mask, *more)
        if operation != interpreter._ir.ATOMIC_OP.FADD:
            raise NotImplementedError(f"{operation} of bfloat16")
        before = numpy.zeros(at.data.shape, dtype=numpy.uint16)
        for k in numpy.ndindex(at.data.shape):
            if not mask.data[k]:
                continue
            place = handle(numpy.asarray(at.data[k]), at.dtype)
            held = self.create_load(place, None, False)
            before[k] = held.data
            sum_ = widened(held.data) + widened(numpy.asarray(value.data[k]))
            self.create_store(place, handle(rounded(sum_), tl.bfloat16), None)
        return handle(before, tl.bfloat16)

    def as_kind(tensor: Any, kind: Any, change: Callable[[Any], Any]) -> Any:
        whole = tensor.type.with_element_ty(kind) if tensor.type.is_block() else kind
        return tl.tensor(change(tensor.handle), whole)

    def along(operation: Callable[..., Any]) -> Callable[..., Any]:
        def apply(self: Any, given: tuple[Any, ...]) -> Any:
            half = [it.dtype.scalar == tl.bfloat16 for it in given]
            if not any(half):
                return operation(self, given)
            pairs = zip(half, given, strict=True)
            found = operation(
                self, tuple(as_kind(x, tl.float32, wide) if h else x for h, x in pairs)
            )
            if not isinstance(found, list | tuple):
                return as_kind(found, tl.bfloat16, narrow)
            pairs = zip(half, found, strict=False)  # an index has no input of its own
            narrowed = [as_kind(x, tl.bfloat16, narrow) if h else x for h, x in pairs]
            return (*narrowed, *found[len(half) :])

        return apply

    for kind in (interpreter.ReduceOps, interpreter.ScanOps):
        kind.apply_impl = along(kind.apply_impl)
    builder.cast_impl = between
    builder.binary_op = in_float32(builder.binary_op, 2)
    builder.unary_op = in_float32(builder.unary_op, 1)
    builder.ternary_op = ternary
    builder.create_dot = lambda self, a, b, *more: dot(self, wide(a), wide(b), *more)
    builder.create_atomic_rmw = atomic
