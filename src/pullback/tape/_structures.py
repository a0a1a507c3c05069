"""Operations on texts, lists, tuples and dicts, and on the gradients of them."""

from collections.abc import Sequence
from typing import Any

from pullback.errors import ArgumentTypeError
from pullback.internal._arguments import checked
from pullback.tape._feedback import Feedback, distinct, gather, held
from pullback.tape._function import Function
from pullback.tape._mode import mode
from pullback.tape._registry import OPERATIONS, space_of
from pullback.tape._variable import Variable, data_of, describe, wrap

__all__ = ["Unstack", "assemble", "stack", "union"]


class _Structure(Function):
    """A Function on structures, whose rules are known to be right; tests hold them to it."""

    _trusted = True


class Concatenate(_Structure):
    """Two texts, or two lists or tuples, one after the other.

    What is said of the whole text is said to both parts; the gradient of a list is split.
    """

    _linear = "jointly"

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any) -> Any:
        left, right = data_of(a), data_of(b)
        ctx.size = None if isinstance(left, str) else len(left)
        roles = [value.role for value in (a, b) if isinstance(value, Variable) and value.role]
        return wrap(left + right, " and ".join(dict.fromkeys(roles)))

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return (g, g) if ctx.size is None else (g[: ctx.size], g[ctx.size :])


def _entry(value: Any, role: str) -> Variable:
    if isinstance(value, Feedback):
        return Feedback(value.notes, value.role)
    return Variable(value, role)


class Item(_Structure):
    """One entry of a list, tuple or dict, or a slice."""

    _linear = "jointly"

    @staticmethod
    def forward(ctx: Any, a: Any, key: Any) -> Any:
        ctx.space, ctx.key = space_of(a._data), key
        return _entry(a._data[key], a.role)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        space, key = ctx.space, ctx.key  # zero but for the entry, or the slice
        slots = [slot.zero() for slot in space.slots]
        if isinstance(key, slice):
            slots[key] = list(g)
        else:
            slots[key if space.name == "sequence" else space.keys.index(key)] = g
        return assemble(space, slots), None


class Stack(_Structure):
    """A list, tuple or dict made of Variables."""

    _linear = "jointly"

    @staticmethod
    def forward(ctx: Any, values: Any, build: Any) -> Any:
        ctx.keys = list(values) if isinstance(values, dict) else range(len(values))
        ctx.kind = type(values)
        ctx.build = build
        entries = values.values() if isinstance(values, dict) else values
        return wrap(build([held(value) for value in entries]))

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        entries = Unstack.apply(g)
        return dict(zip(ctx.keys, entries, strict=True)) if ctx.kind is dict else entries, None


class Unstack(_Structure):
    """The entries of a list, tuple or dict, all at once."""

    _linear = "jointly"

    @staticmethod
    def forward(ctx: Any, a: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.space = space = space_of(a._data)
        entries = space.entries(a._data)  # type: ignore[missing-attribute]
        return tuple([_entry(value, a.role) for value in entries])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        slots = zip(ctx.space.slots, gradients, strict=True)
        return assemble(ctx.space, [slot.zero() if g is None else g for slot, g in slots])


class Join(_Structure):
    """The feedback that notes form together; what is said of it is said to each note."""

    @staticmethod
    def forward(ctx: Any, notes: Any) -> Any:
        ctx.count = len(notes)
        return Feedback(notes)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return [g] * ctx.count


@checked
def stack(
    values: list[Variable] | tuple[Variable, ...] | dict[Any, Variable],
) -> Variable:
    """One Variable of a list, tuple or dict of Variables; gradients flow back to each.

    Arguments:
        values: a list, tuple or dict of Variables.

    Raises:
        ArgumentTypeError: it is none of them, or something in it is no Variable.

    Example:
        >>> a = Variable(1.0, requires_grad=True)
        >>> pair = stack([a, Variable(2.0)])
        >>> pair.data
        [1.0, 2.0]
        >>> (pair[0] * 3).backward()
        >>> a.grad
        Variable(3.0)
    """
    if isinstance(values, dict):
        keys = tuple(values)
        return Stack.apply(values, lambda entries: dict(zip(keys, entries, strict=True)))
    return Stack.apply(list(values), type(values))


def assemble(space: Any, slots: Sequence[Any]) -> Variable:
    """A gradient of a structure, of the gradients of its slots."""
    values = [value if isinstance(value, Variable) else wrap(value) for value in slots]
    if mode.get().grad and any(value._requires_grad for value in values):
        return Stack.apply(values, space.build)
    return wrap(space.build([held(value) for value in values]))


def union(notes: Sequence[Variable]) -> Feedback:
    """The feedback of notes, each once."""
    if mode.get().grad and any(note._requires_grad for note in notes):
        return Join.apply(list(distinct(notes)))
    return gather(distinct(notes))


def _item(a: Variable, key: Any) -> Any:
    if not a.batched:
        space = space_of(a._data)
        operation = getattr(space, "operation", None)
        if operation is not None:
            return operation("item", a, key)
        if space.name == "number" or (space.textual and space.plain and a._requires_grad):
            raise ArgumentTypeError(
                f"A {space.name} on the tape has no entries.", given=f"{describe(a)}[{key!r}]",
                mend="Slice its data inside a Function that answers for it.",
            )  # fmt: skip
    return Item.apply(a, key)


OPERATIONS.update(
    item=_item,
    unstack=Unstack.apply,
)
