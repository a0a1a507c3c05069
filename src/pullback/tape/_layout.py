"""Where the Variables are among the arguments of forward, however deep they are nested."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pullback.tape._feedback import Feedback
from pullback.tape._variable import Variable

__all__ = ["Layout", "batch_in", "find", "match", "needs", "replace"]

# One entry an argument: the number of a Variable, None for a constant, or a container of such
# entries. None alone: every argument is a Variable.
Layout = tuple[Any, ...] | None


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
    kind = type(value)
    if kind is dict:
        entries = {key: _entry(below, inputs) for key, below in value.items()}
        return entries if any(below is not None for below in entries.values()) else None
    if kind is list or kind is tuple:
        entries = [_entry(below, inputs) for below in value]
        return kind(entries) if any(below is not None for below in entries) else None
    return None


def batch_in(values: Iterable[Any]) -> Any:
    """The first of the Variables that stands for a batch, or None."""
    return next((value for value in values if value.batched), None)


# A tuple for each node would be one more object that the collector walks; of few inputs there are
# few such tuples, so nodes share them.
def needs(layout: Layout, flags: Sequence[bool]) -> tuple[bool, ...]:
    """For each argument, whether a flag is set for a Variable in it."""
    found = tuple(flags if layout is None else [_any(entry, flags) for entry in layout])
    return _SHARED.setdefault(found, found) if len(found) <= 4 else found


_SHARED: dict[tuple[bool, ...], tuple[bool, ...]] = {}


def _any(entry: Any, flags: Sequence[bool]) -> bool:
    if entry is None or isinstance(entry, int):
        return entry is not None and flags[entry]
    below = entry.values() if isinstance(entry, dict) else entry
    return any(_any(each, flags) for each in below)


def match(
    layout: tuple[Any, ...], returned: Sequence[Any], complain: Callable[[int, str], Exception]
) -> list[Any]:
    """One returned value for each Variable, read out of values of the arguments' structure.

    Arguments:
        layout: where the Variables are.
        returned: one value an argument; None stands for None at every Variable in it.
        complain: makes the error for an argument whose value has another structure.
    """
    found: dict[int, Any] = {}
    for index, (entry, value) in enumerate(zip(layout, returned, strict=True)):
        _read(entry, value, found, lambda detail, index=index: complain(index, detail))
    return [found.get(number) for number in range(len(found))]


def _read(
    entry: Any, value: Any, found: dict[int, Any], complain: Callable[[str], Exception]
) -> None:
    if isinstance(entry, int):
        found[entry] = value
    elif isinstance(entry, dict):
        if value is not None and not (isinstance(value, dict) and value.keys() <= entry.keys()):
            raise complain(f"a dict with keys among {sorted(map(str, entry))} was expected")
        for key, below in entry.items():
            _read(below, None if value is None else value.get(key), found, complain)
    elif entry is not None:
        size = len(entry)
        right = isinstance(value, list | tuple) and not isinstance(value, Feedback)
        if value is not None and not (right and len(value) == size):
            raise complain(f"a {type(entry).__name__} of {size} was expected")
        for number, below in enumerate(entry):
            _read(below, None if value is None else value[number], found, complain)


def replace(layout: Layout, args: tuple[Any, ...] | None, values: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments with other values in place of the Variables; None for the rest without them."""
    if layout is None:
        return tuple(values)
    return _put(layout, args, values)


def _put(entry: Any, value: Any, values: Sequence[Any]) -> Any:
    if entry is None:
        return value
    if isinstance(entry, int):
        return values[entry]
    if isinstance(entry, dict):
        below = dict.fromkeys(entry) if value is None else value
        return {key: _put(each, below[key], values) for key, each in entry.items()}
    below = [None] * len(entry) if value is None else value
    return type(entry)(_put(*pair, values) for pair in zip(entry, below, strict=True))
