"""The spaces of numbers, texts, lists, tuples and dicts.

And the operations that their gradients are made of: structures taken apart and put together.
"""

import functools
import numbers
import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from pullback.errors import ArgumentTypeError
from pullback.internal._arguments import checked
from pullback.tape._feedback import Feedback, distinct, gather, held, notes_of
from pullback.tape._function import Function
from pullback.tape._mode import OFF, mode
from pullback.tape._registry import OPERATIONS, Space, register_space, space_of
from pullback.tape._variable import Variable, data_of, describe, roles_of, wrap

__all__ = ["NUMBER", "TEXT", "Alias", "Concatenate", "Unstack", "stack"]


class _Structure(Function):
    """A Function on structures, whose rules are known to be right; tests hold them to it."""

    _trusted = True
    _linear = "jointly"


class Concatenate(_Structure):
    """Two texts or lists, one after the other; what is said of a whole text is said to both."""

    @staticmethod
    def forward(ctx: Any, a: Any, b: Any) -> Any:
        left, right = data_of(a), data_of(b)
        ctx.size = None if isinstance(left, str) else len(left)
        return wrap(left + right, roles_of(v for v in (a, b) if isinstance(v, Variable)))

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return (g, g) if ctx.size is None else (g[: ctx.size], g[ctx.size :])


def _entry(value: Any, role: str) -> Variable:
    return value if isinstance(value, Feedback) else wrap(value, role)


class Item(_Structure):
    """One entry of a list, tuple or dict, or a slice."""

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
    """A list, tuple or dict of Variables, as ``build`` makes it of a list."""

    @staticmethod
    def forward(ctx: Any, values: Any, build: Any) -> Any:
        return wrap(build(list(map(held, values))))

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        # What made an entry that nothing was said of is not asked: there is no feedback to it.
        entries = Unstack.apply(g)
        return [None if isinstance(e, Feedback) and not e.notes else e for e in entries], None


class Unstack(_Structure):
    """The entries of a list, tuple or dict, all at once."""

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


class Alias(_Structure):
    """The same value again: where a derivative starts, or a gradient of somebody's own."""

    @staticmethod
    def forward(ctx: Any, a: Any) -> Any:
        return a

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g


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
        build = lambda entries: dict(zip(keys, entries, strict=True))  # noqa: E731
        return Stack.apply(list(values.values()), build)
    return Stack.apply(list(values), type(values))


def assemble(space: Any, slots: Sequence[Any]) -> Variable:
    """A gradient of a structure, of the gradients of its slots."""
    values = [value if isinstance(value, Variable) else wrap(value) for value in slots]
    if mode.get().grad and any(value._requires_grad for value in values):
        return Stack.apply(values, space.build)
    return wrap(space.build([held(value) for value in values]))


def _own(gradient: Variable) -> Variable:
    if gradient._requires_grad and mode.get().grad:
        return Alias.apply(gradient)
    return wrap(gradient._data, gradient.role)


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


class Number(Space):
    """Real numbers; a gradient is a number."""

    name = "number"
    settled = float
    plain = True

    def zero(self) -> Any:
        return wrap(0.0)

    def total(self, gradients: Sequence[Any]) -> Any:
        if mode.get() is OFF and len(gradients) > 2:  # nothing is recorded: add what they hold
            return wrap(functools.reduce(operator.add, [g._data for g in gradients]))
        return functools.reduce(operator.add, gradients)

    def conform(self, gradient: Any, complain: Callable[[str], Exception]) -> Any:
        if isinstance(gradient, Variable) and space_of(gradient._data) is NUMBER:
            return gradient
        raise complain(f"a number Variable was expected, {outline(gradient)} was given")

    def seed(self) -> Any:
        return wrap(1.0)

    def inner(self, gradient: Any, tangent: Any) -> Any:
        return gradient * tangent


class Constant(Space):
    """Values that no gradient flows to: truth values, None, bytes."""

    name = "constant"
    differentiable = False
    plain = True

    def zero(self) -> Any:
        return None


def outline(gradient: Any) -> str:
    """What was given in place of a gradient, in a few words."""
    if isinstance(gradient, Feedback):
        return "Feedback"
    if isinstance(gradient, Variable):
        data = gradient._data
        size = f" of {len(data)}" if isinstance(data, list | tuple | dict) else ""
        return f"a {type(data).__name__} Variable{size}"
    if isinstance(gradient, list | tuple | dict):
        return f"a {type(gradient).__name__} of {len(gradient)}"
    return f"the {type(gradient).__name__} {gradient!r:.60}"


class Text(Space):
    """Texts; a gradient is `Feedback`, an ordered set of notes, whose sum is their union."""

    name = "text"
    settled = str
    textual = True
    plain = True

    def zero(self) -> Any:
        return Feedback()

    def total(self, gradients: Sequence[Any]) -> Any:
        # What a rule of texts gives is one plain note mostly. Were it not told by its type, here
        # and as `settled`, a node of one's own Function would cost half as much again.
        only = gradients[0] if len(gradients) == 1 else None
        if type(only) is Variable and not only._requires_grad:
            return gather((only,))
        if isinstance(only, Feedback):
            loose = only._node is None and any(note._requires_grad for note in only.notes)
            if not (loose and mode.get().grad):  # else its notes have a history, and it has none
                return only
        return union(notes_of(list(gradients)) or ())

    def conform(self, gradient: Any, complain: Callable[[str], Exception]) -> Any:
        notes = notes_of(gradient)
        if notes is None:
            raise complain(
                f"a text Variable, Feedback or a list of text Variables was expected, "
                f"{outline(gradient)} was given"
            )
        return gradient if isinstance(gradient, Variable) else Feedback(notes)

    def own(self, gradient: Any) -> Any:
        return gradient  # what it holds is not changed, but replaced

    def accumulate(self, before: Any, gradient: Any) -> Any:
        return list(distinct([*(before or ()), *(notes_of(gradient) or ())]))

    def empty(self) -> Any:
        return []


@dataclass(unsafe_hash=True, repr=False)
class Structured(Space):
    """A list, tuple or dict: every slot has its space, and gradients are structured alike."""

    kind: type
    keys: tuple[Any, ...]
    slots: tuple[Space, ...]

    def __post_init__(self) -> None:
        self.name = "mapping" if self.kind is dict else "sequence"
        self.textual = any(slot.textual for slot in self.slots)
        self.differentiable = any(slot.differentiable for slot in self.slots) or not self.slots

    def build(self, values: Sequence[Any]) -> Any:
        """The container of these values."""
        return self.kind(zip(self.keys, values, strict=True) if self.kind is dict else values)

    def entries(self, data: Any) -> list[Any]:
        """The values in the order of the slots."""
        return [data[key] for key in self.keys]

    def parts(self, gradient: Variable) -> list[Any]:
        """The gradients of the slots, with their history; None where there is none."""
        if gradient._requires_grad:  # a leaf too: it may be a gradient that somebody gave
            return list(Unstack.apply(gradient))
        values = self.entries(gradient._data)
        return [v if v is None or isinstance(v, Variable) else Variable(v) for v in values]

    def fits(self, data: Any) -> bool:
        """Whether a container has these slots."""
        if self.kind is dict:
            return isinstance(data, dict) and data.keys() == set(self.keys)
        return isinstance(data, list | tuple) and len(data) == len(self.slots)

    def zero(self) -> Any:
        return wrap(self.build([held(slot.zero()) for slot in self.slots]))

    def total(self, gradients: Sequence[Any]) -> Any:
        if len(gradients) == 1:
            return gradients[0]
        rows = zip(self.slots, *map(self.parts, gradients), strict=True)
        sums = [slot.total(parts) if slot.differentiable else None for slot, *parts in rows]
        return assemble(self, sums)

    def conform(self, gradient: Any, complain: Callable[[str], Exception]) -> Any:
        whole = isinstance(gradient, Variable)
        data = data_of(gradient)
        if not whole and self.kind is dict and isinstance(data, dict) and {*data} < {*self.keys}:
            data = {key: data.get(key) for key in self.keys}  # what a rule leaves out has none
        if isinstance(data, str) and self.textual:  # one note on the whole: to every text
            data, whole = self.build([gradient if s.textual else None for s in self.slots]), False
        if not isinstance(data, list | tuple | dict) or not self.fits(data):
            raise complain(
                f"a {self.kind.__name__} of {len(self.slots)} was expected, "
                f"{outline(gradient)} was given"
            )
        if whole and all(map(_is_settled, self.slots, self.entries(data))):
            return gradient
        values = self.parts(gradient) if whole else self.entries(data)

        def conformed(key: Any, slot: Space, value: Any) -> Any:
            if value is None or not slot.differentiable:
                return slot.zero()
            within = lambda detail: complain(f"at [{key!r}], {detail}")  # noqa: E731
            return slot.total((slot.conform(value, within),))  # of a text always Feedback

        return assemble(self, list(map(conformed, self.keys, self.slots, values)))

    def copied(self, data: Any) -> Any:
        pairs = zip(self.slots, self.entries(data), strict=True)
        return self.build([slot.copied(value) for slot, value in pairs])

    def inner(self, gradient: Any, tangent: Any) -> Any:
        pairs = zip(self.slots, self.parts(gradient), self.parts(tangent), strict=True)
        parts = [slot.inner(*pair) for slot, *pair in pairs if slot.differentiable]
        return NUMBER.total(parts) if parts else NUMBER.zero()

    def stamp(self, data: Any) -> Any:
        values = self.entries(data) if self.fits(data) else [data]
        return tuple(
            (value, slot.stamp(value)) if slot.plain else (id(value), slot.stamp(value))
            for slot, value in zip(self.slots, values, strict=False)
        ), len(data)


def _is_settled(slot: Space, value: Any) -> bool:
    """Whether a slot of a gradient's data is already as the space has it."""
    if slot is NUMBER:
        return type(value) in (float, int)
    if slot is TEXT:
        return isinstance(value, Feedback)
    if isinstance(slot, Structured):
        return slot.fits(value) and all(map(_is_settled, slot.slots, slot.entries(value)))
    return value is None if not slot.differentiable else False


NUMBER, CONSTANT, TEXT = Number(), Constant(), Text()


def _structured(data: Any) -> Space:
    if isinstance(data, dict):
        return Structured(dict, tuple(data), _slots(data.values()))
    return Structured(tuple if type(data) is tuple else list, tuple(range(len(data))), _slots(data))


def _slots(values: Collection[Any]) -> tuple[Space, ...]:
    kinds = set(map(type, values))
    if kinds <= {float, int}:  # long lists of one kind are looked at often
        return (NUMBER,) * len(values)
    return (TEXT,) * len(values) if kinds == {str} else tuple(map(space_of, values))


for _space, _kinds in (
    (NUMBER, (float, int, numbers.Real)),
    (CONSTANT, (bool, type(None), bytes)),
    (TEXT, (str, Feedback)),
    (_structured, (list, tuple, dict)),
):
    for _kind in _kinds:
        register_space(_kind, _space)
OPERATIONS.update(item=_item, own=_own, unstack=Unstack.apply)
