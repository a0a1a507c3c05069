"""Templates: texts with fields in braces, filled strictly and never twice."""

import re
from collections.abc import Callable, Mapping

from pullback.errors import ArgumentError, ArgumentTypeError

__all__ = ["fields_of", "fill"]

_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def fields_of(template: str) -> tuple[str, ...]:
    """The names of the fields of a template, each once, in order.

    Raises:
        ArgumentError: a brace stands alone, or a field is no plain name.

    Example:
        >>> fields_of("Dear {name}, {{literally}} {name} in {town}")
        ('name', 'town')
    """
    found: dict[str, None] = {}
    _each(template, lambda name: found.setdefault(name) or "")
    return tuple(found)


def fill(template: str, values: Mapping[str, str]) -> str:
    """A template with its fields filled in; braces in the values stay as they are.

    A field is a plain name in braces: no attribute, index or format can be reached through it.
    Two braces stand for one.

    Raises:
        ArgumentError: a field has no value, a value has no field, or the template is malformed.

    Example:
        >>> fill("{{{a}}}: {b}", {"a": "x", "b": "{a}"})
        '{x}: {a}'
    """
    if not isinstance(template, str):
        raise ArgumentTypeError("A template is a text.", given=type(template).__name__)
    fields = fields_of(template)
    missing = [name for name in fields if name not in values]
    if missing:
        raise ArgumentError(
            f"A template has a field that was given no value: {missing[0]!r}.",
            given=", ".join(values) or "no values", expected=", ".join(fields),
            mend=f"Give {missing[0]}=..., or write {{{{ and }}}} for braces that are no field.",
        )  # fmt: skip
    unused = [name for name in values if name not in fields]
    if unused:
        raise ArgumentError(
            f"A value was given that the template has no field for: {unused[0]!r}.",
            given=repr(_short(template)), expected=", ".join(fields) or "no values",
            mend=f"Write {{{unused[0]}}} where it belongs, or leave it out.",
        )  # fmt: skip
    return _each(template, lambda name: values[name])


def _each(template: str, value: Callable[[str], str]) -> str:
    def replace(match: re.Match[str]) -> str:
        piece, name = match.group(0), match.group(1)
        if piece in ("{{", "}}"):
            return piece[0]
        if name is None or not name.isidentifier():
            raise ArgumentError(
                "A template has a brace that is no field.",
                given=f"{piece!r} at {match.start()} of {_short(template)!r}",
                expected="{name}, or two braces for one",
            )
        return value(name)

    return _PIECE.sub(replace, template)


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
