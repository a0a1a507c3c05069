"""Nested arguments: what stands in lists, tuples and dicts, and where the Variables are."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from pullback.tape._variable import Variable

__all__ = ["Layout", "batch_in", "below", "find", "leaves", "mapped", "match", "needs", "replace"]

# The arguments of forward with the number of each Variable in its place, and None for a constant.
# None alone: every argument is a Variable.
Layout = tuple[Any, ...] | None


def below(value: Any) -> Collection[Any]:
    """The entries of a list, tuple or dict; none of anything else."""
    kind = type(value)
    return value.values() if kind is dict else value if kind is list or kind is tuple else ()


def leaves(value: Any) -> Iterator[Any]:
    """What a structure holds, however deep, that is no structure itself."""
    if type(value) not in (list, tuple, dict):
        yield value
    for entry in below(value):
        yield from leaves(entry)


def mapped(kind: type, change: Callable[[Any], Any], value: Any) -> Any:
    """A structure whose leaves of a kind are changed: the same object where there is none.

    Of the kind ``object`` it is another in any case, so that nobody else can change it.
    """
    if kind is not object and not any(isinstance(leaf, kind) for leaf in leaves(value)):
        return value
    if type(value) is dict:
        return {key: mapped(kind, change, entry) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)([mapped(kind, change, entry) for entry in value])
    return change(value)


def find(args: tuple[Any, ...]) -> tuple[list[Variable], Layout]:
    """The Variables among the arguments, in order, and where they are."""
    inputs: list[Variable] = []
    for arg in args:
        if not isinstance(arg, Variable):
            break
        inputs.append(arg)
    else:
        return inputs, None
    inputs = []
    return inputs, tuple([_entry(arg, inputs) for arg in args])


def _entry(value: Any, inputs: list[Variable]) -> Any:
    if isinstance(value, Variable):
        inputs.append(value)
        return len(inputs) - 1
    entries = [_entry(entry, inputs) for entry in below(value)]
    if all(entry is None for entry in entries):  # a graph keeps no form of constants
        return None
    kind = type(value)
    return dict(zip(value, entries, strict=True)) if kind is dict else kind(entries)


def batch_in(values: Iterable[Any]) -> Any:
    """The first of the Variables that stands for a batch, or None."""
    return next((value for value in values if value.batched), None)


# A tuple for each node would be one more object that the collector walks; of few inputs there are
# few such tuples, so nodes share them.
def needs(layout: Layout, flags: Sequence[bool]) -> tuple[bool, ...]:
    """For each argument, whether a flag is set for a Variable in it."""
    found = tuple(flags if layout is None else [
        any(flags[number] for number in leaves(entry) if number is not None) for entry in layout
    ])  # fmt: skip
    return _SHARED.setdefault(found, found) if len(found) <= 4 else found


_SHARED: dict[tuple[bool, ...], tuple[bool, ...]] = {}


def match(
    entry: Any, value: Any, complain: Callable[[str], Exception], found: dict[int, Any]
) -> None:
    """Find what was returned for each Variable of an argument, in the argument's own structure.

    Where None, or a dict without some of the keys, was returned for a structure, nothing was for
    the Variables in it. ``complain`` makes the error for another structure.
    """
    if isinstance(entry, int):
        found[entry] = value
    elif isinstance(entry, dict) and value is not None:
        if not (isinstance(value, dict) and value.keys() <= entry.keys()):
            raise complain(f"a dict with keys among {sorted(map(str, entry))} was expected")
        for key, each in value.items():
            match(entry[key], each, complain, found)
    elif entry is not None and value is not None:
        if not isinstance(value, list | tuple) or len(value) != len(entry):
            raise complain(f"a {type(entry).__name__} of {len(entry)} was expected")
        for pair in zip(entry, value, strict=True):
            match(*pair, complain, found)


def replace(args: tuple[Any, ...], values: Iterable[Any]) -> tuple[Any, ...]:
    """The arguments with other values in place of the Variables."""
    others = iter(values)
    return mapped(Variable, lambda _: next(others), args)
