"""Add, Sum and Split."""

from typing import Any

from pullback import tape, text
from pullback.compat.afnio._variable import Variable, adopt, check_same_length, plain
from pullback.errors import ArgumentTypeError

__all__ = ["Add", "Split", "Sum"]


class Add:
    """The sum of two Variables, or of two lists item by item; texts are put together."""

    @staticmethod
    def apply(x: Any, y: Any) -> Any:
        """Add.

        Raises:
            TypeError: one is no Variable, or the kinds cannot be added.
            ValueError: a list is added to a single value, or to a list of another length.
        """
        _check_variables(x, y)
        check_same_length(x._data, y._data)
        if not isinstance(x._data, list):
            return _named(x + y, (x, y))
        return _named(tape.stack([a + b for a, b in zip(x, y, strict=True)]), (x, y))


class Sum:
    """The sum of numbers; of texts, each in ``<ITEM>`` tags."""

    @staticmethod
    def apply(x: Any) -> Any:
        """Sum.

        Raises:
            TypeError: an entry is no Variable, or the kinds cannot be added.
        """
        if not isinstance(x, list | tuple):
            raise ArgumentTypeError("Sum takes a list of Variables.", given=repr(x)[:80])
        _check_variables(*x)
        if any(isinstance(value._data, list) for value in x):
            x = [item for value in x for item in value]
        return _named(text.sum(x), x)


class Split:
    """The parts of a text."""

    @staticmethod
    def apply(x: Any, sep: Any = None, maxsplit: Any = -1) -> Any:
        """Split; of a list of texts, every part is a list.

        Raises:
            TypeError: it is no text, the separator no text, or the limit no whole number.
        """
        sep, maxsplit = plain(sep), plain(maxsplit)
        limit = -1 if maxsplit is None else maxsplit
        _check_variables(x)
        if not isinstance(sep, str | None) or type(limit) is not int:
            raise ArgumentTypeError("Split takes a text and a whole number.",
                                    given=f"sep={sep!r}, maxsplit={maxsplit!r}")  # fmt: skip
        if not isinstance(x._data, list):
            return tuple(adopt(text.split(x, sep, limit)))
        rows = [text.split(item, sep, limit) for item in x]
        if len({len(row) for row in rows}) != 1:
            raise ArgumentTypeError("The texts have different numbers of parts.",
                                    given=repr([len(row) for row in rows]))  # fmt: skip
        columns = [tape.stack(list(column)) for column in zip(*rows, strict=True)]
        for number, column in enumerate(columns):
            column.role = f"split part {number} of {x.role}"
        return tuple(adopt(columns))


def _check_variables(*values: Any) -> None:
    for value in values:
        if not isinstance(value, tape.Variable):
            raise ArgumentTypeError("An operation takes Variables.", given=type(value).__name__)


def _named(result: Any, values: Any) -> Variable:
    result.role = " and ".join(dict.fromkeys(value.role for value in values if value.role))
    return adopt(result)
