"""Vectors of eight numbers inside numba kernels: loads, stores and arithmetic, as they are written.

A compiler makes vector instructions of a plain loop only if it can prove much about it: few
arrays, no index that could be negative, no stores that could meet a load. A kernel written with
these vectors does not depend on that. They are LLVM's own vectors, so that any CPU runs them, one
instruction for each of its widest registers; sums are not fused with products nor reordered.

Everything here is used inside functions that `compile_kernel` compiles.
Nothing checks bounds.
"""

import operator
from collections.abc import Callable, Iterable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.typing import signature
from numba.core.typing.templates import AbstractTemplate, infer_global
from numba.extending import intrinsic, lower_builtin, register_model

from pullback.internal.kernels._cpu import compile_part

__all__ = [
    "ROW",
    "VECTOR_BYTES",
    "count_bytes",
    "fence",
    "load",
    "load_first",
    "on_stack",
    "pointer_at",
    "pointer_to",
    "pointers_at",
    "splat",
    "store",
    "store_first",
    "store_past_caches",
    "widen",
]

# Callers do not pass the first argument, which is the compiler's; type checkers cannot know that.
_intrinsic: Any = intrinsic

VECTOR_BYTES = 64
ROW = 8
"""How many numbers a vector holds, whatever their type: an arm has seven joints."""
_INDEX = ir.IntType(32)


class _Vector(types.Type):
    """Eight numbers of one type."""

    def __init__(self, item: Any) -> None:
        self.item = item
        super().__init__(name=f"Vector({item})")


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: _Vector) -> None:
        item = manager.lookup(vector.item).get_value_type()
        super().__init__(manager, vector, ir.VectorType(item, ROW))


def _place(context: Any, builder: Any, given: Any, arguments: Any) -> tuple[Any, Any, int]:
    """Where a vector begins in memory, its type there, and the bytes of one number."""
    item = given.args[0].dtype
    vector = ir.VectorType(context.get_value_type(item), ROW)
    place = builder.gep(arguments[0], [arguments[1]])
    return builder.bitcast(place, vector.as_pointer()), vector, item.bitwidth // 8


def _narrow(builder: Any, values: Any, vector: Any) -> Any:
    return values if values.type == vector else builder.fptrunc(values, vector)


def _fill(builder: Any, vector: Any, value: Any) -> Any:
    """Return a vector with one value in all lanes."""
    nothing = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(nothing, value, ir.Constant(_INDEX, 0))
    return builder.shuffle_vector(first, nothing, _numbers([0] * vector.count))


def _numbers(values: Iterable[int]) -> Any:
    numbers = list(values)
    return ir.Constant(ir.VectorType(_INDEX, len(numbers)), numbers)


def _mask(builder: Any, vector: Any, count: Any) -> Any:
    """Return a vector of bits that is true in the first ``count`` lanes."""
    numbers = ir.VectorType(ir.IntType(64), vector.count)
    lanes = ir.Constant(numbers, list(range(vector.count)))
    return builder.icmp_signed("<", lanes, _fill(builder, numbers, count))


def _store_pieces(builder: Any, place: Any, values: Any, count: Any, size: int) -> None:
    """Write fewer lanes than all: by powers of two, the largest first, the others moved down."""
    vector = values.type
    nothing, last = ir.Constant(vector, ir.Undefined), vector.count - 1
    lanes = vector.count // 2
    while lanes:
        some = builder.and_(count, ir.Constant(count.type, lanes))
        written = builder.icmp_signed("!=", some, ir.Constant(count.type, 0))
        with builder.if_then(written):
            piece = builder.shuffle_vector(values, nothing, _numbers(range(lanes)))
            where = builder.bitcast(place, piece.type.as_pointer())
            builder.store(piece, where, align=size)
        moved = [min(lane + lanes, last) for lane in range(vector.count)]
        rest = builder.shuffle_vector(values, nothing, _numbers(moved))
        values = builder.select(written, rest, values)
        place = builder.gep(place, [some])
        lanes //= 2


@_intrinsic
def pointer_to(_context: Any, array: Any) -> Any:
    """``pointer_to(array)``: the memory of a contiguous array, which the caller keeps alive.

    Arrays would be counted whenever a function takes them, in the innermost loops too.
    """

    def generate(context: Any, builder: Any, given: Any, arguments: Any) -> Any:
        return context.make_array(given.args[0])(context, builder, arguments[0]).data

    return types.CPointer(array.dtype)(array), generate


@_intrinsic
def pointer_at(_context: Any, address: Any, item: Any) -> Any:
    """``pointer_at(address, item)``: memory of numbers of the type of ``item``, kept alive outside.

    A number that is an address reaches a kernel in a twentieth of the time that an array takes.
    """

    def generate(context: Any, builder: Any, given: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(given.return_type))

    return types.CPointer(item)(types.intp, item), generate


@_intrinsic(prefer_literal=True)
def on_stack(_context: Any, item: Any, count: Any) -> Any:
    """``on_stack(item, count)``: memory of so many numbers, a constant, until a kernel returns."""

    def generate(context: Any, builder: Any, given: Any, _arguments: Any) -> Any:
        memory = context.get_value_type(given.return_type.dtype)
        return cgutils.alloca_once(builder, memory, size=count.literal_value)

    return types.CPointer(item)(item, count), generate


@compile_part(nogil=True)
def pointers_at(addresses: Any, item: Any) -> Any:
    """`pointer_at` each of four addresses."""
    first, second, third, fourth = addresses
    return (
        pointer_at(first, item),
        pointer_at(second, item),
        pointer_at(third, item),
        pointer_at(fourth, item),
    )


@_intrinsic
def count_bytes(_context: Any, pointer: Any, size: Any, value: Any) -> Any:
    """``count_bytes(pointer, size, value)``: how many bytes have a value, of a multiple of 64.

    Each lane counts for itself, in a byte: ``size`` is at most 255 times 64.
    """
    vector = ir.VectorType(ir.IntType(8), VECTOR_BYTES)

    def generate(context: Any, builder: Any, given: Any, arguments: Any) -> Any:
        start, size, value = arguments
        wanted = _fill(builder, vector, value)
        counts = cgutils.alloca_once_value(builder, ir.Constant(vector, None))
        width = ir.Constant(size.type, VECTOR_BYTES)
        with cgutils.for_range(builder, builder.udiv(size, width)) as loop:
            place = builder.gep(start, [builder.mul(loop.index, width)])
            found = builder.load(builder.bitcast(place, vector.as_pointer()), align=1)
            same = builder.sext(builder.icmp_unsigned("==", found, wanted), vector)
            # All bits of a lane that is the same: minus one.
            builder.store(builder.sub(builder.load(counts), same), counts)
        wide = builder.zext(builder.load(counts), ir.VectorType(ir.IntType(16), VECTOR_BYTES))
        kind = ir.FunctionType(wide.type.element, [wide.type])
        name = f"llvm.vector.reduce.add.v{VECTOR_BYTES}i16"
        total = builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [wide])
        return builder.zext(total, context.get_value_type(given.return_type))

    return types.intp(pointer, types.intp, types.uint8), generate


@_intrinsic
def load(_context: Any, pointer: Any, index: Any) -> Any:
    """``load(pointer, index)``: the vector that begins at ``pointer[index]``."""

    def generate(context: Any, builder: Any, given: Any, arguments: Any) -> Any:
        place, _, size = _place(context, builder, given, arguments)
        return builder.load(place, align=size)

    return _Vector(pointer.dtype)(pointer, types.intp), generate


@_intrinsic
def load_first(_context: Any, pointer: Any, index: Any, count: Any) -> Any:
    """``load_first(pointer, index, count)``: ``count`` numbers, at most `ROW`, and then zeros."""

    def generate(context: Any, builder: Any, given: Any, arguments: Any) -> Any:
        return _load_masked(builder, *_place(context, builder, given, arguments), arguments[2])

    return _Vector(pointer.dtype)(pointer, types.intp, types.intp), generate


@_intrinsic
def widen(_context: Any, vector: Any) -> Any:
    """``widen(vector)``: the same numbers in float64."""

    def generate(context: Any, builder: Any, given: Any, arguments: Any) -> Any:
        wide = context.get_value_type(given.return_type)
        return arguments[0] if vector.item == types.float64 else builder.fpext(arguments[0], wide)

    return _Vector(types.float64)(vector), generate


def _load_masked(builder: Any, place: Any, vector: Any, size: int, count: Any) -> Any:
    mask = _mask(builder, vector, count)
    values = [place, ir.Constant(_INDEX, size), mask, ir.Constant(vector, None)]
    kind = ir.FunctionType(vector, [value.type for value in values])
    name = f"llvm.masked.load.v{vector.count}{vector.element.intrinsic_name}.p0"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values)


def _storing(*, past_caches: bool) -> Callable[..., Any]:
    def generate(context: Any, builder: Any, given: Any, arguments: Any) -> Any:
        place, vector, size = _place(context, builder, given, arguments)
        values = _narrow(builder, arguments[2], vector)
        stored = builder.store(values, place, align=size * (vector.count if past_caches else 1))
        if past_caches:
            hint = builder.module.add_metadata([ir.Constant(_INDEX, 1)])
            stored.set_metadata("nontemporal", hint)
        return context.get_dummy_value()

    return generate


@_intrinsic
def store(_context: Any, pointer: Any, index: Any, vector: Any) -> Any:
    """``store(pointer, index, vector)``: write all lanes from ``pointer[index]`` on.

    Here and below, numbers are rounded where the memory's are narrower than the vector's.
    """
    return types.void(pointer, types.intp, vector), _storing(past_caches=False)


@_intrinsic
def store_past_caches(_context: Any, pointer: Any, index: Any, vector: Any) -> Any:
    """``store_past_caches(pointer, index, vector)``: the same, straight to memory.

    Half the traffic for what no cache would hold until it is used: an ordinary store first reads
    the line that it writes. ``pointer[index]`` must lie at a multiple of the vector's bytes, and a
    kernel that has used this must call `fence` before it returns.
    """
    return types.void(pointer, types.intp, vector), _storing(past_caches=True)


@_intrinsic
def store_first(_context: Any, pointer: Any, index: Any, vector: Any, count: Any) -> Any:
    """``store_first(pointer, index, vector, count)``: write the first ``count`` lanes.

    In whole pieces: the masked stores of AVX2 take some twenty cycles each on AMD's processors, so
    that the seven joints of an arm took three times as long as what was computed of them.
    """

    def generate(context: Any, builder: Any, given: Any, arguments: Any) -> Any:
        place, vector, size = _place(context, builder, given, arguments)
        pointer, index, values, count = arguments
        values = _narrow(builder, values, vector)
        every = builder.icmp_signed("==", count, ir.Constant(count.type, vector.count))
        with builder.if_else(every) as (whole, part):
            with whole:
                builder.store(values, place, align=size)
            with part:
                _store_pieces(builder, builder.gep(pointer, [index]), values, count, size)
        return context.get_dummy_value()

    return types.void(pointer, types.intp, vector, types.intp), generate


@_intrinsic
def fence(_context: Any) -> Any:
    """``fence()``: whatever was stored past the caches is seen by all threads from here on."""

    def generate(context: Any, builder: Any, _given: Any, _arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@_intrinsic
def splat(_context: Any, value: Any) -> Any:
    """``splat(value)``: one number in all lanes."""
    vector = _Vector(value)

    def generate(context: Any, builder: Any, _given: Any, arguments: Any) -> Any:
        return _fill(builder, context.get_value_type(vector), arguments[0])

    return vector(value), generate


class _OfVectors(AbstractTemplate):
    def generic(self, arguments: tuple[Any, ...], _named: Any) -> Any:
        vector = arguments[0]
        if isinstance(vector, _Vector) and arguments == (vector, vector):
            return signature(vector, *arguments)
        return None


def _define(symbol: Callable[[Any, Any], Any], instruction: str) -> None:
    """Let a symbol work lane by lane on two vectors of one type."""

    def generate(_context: Any, builder: Any, _given: Any, arguments: Any) -> Any:
        return getattr(builder, instruction)(*arguments)

    # pyrefly: ignore[not-callable]  # numba sets it while it is imported
    infer_global(symbol)(type(f"_{instruction}", (_OfVectors,), {}))
    lower_builtin(symbol, _Vector, _Vector)(generate)


_define(operator.add, "fadd")
_define(operator.iadd, "fadd")
_define(operator.sub, "fsub")
_define(operator.mul, "fmul")
_define(operator.truediv, "fdiv")
