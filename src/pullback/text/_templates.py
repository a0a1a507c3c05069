"""Templates: texts with fields in braces, filled strictly and never twice."""

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from string import Formatter

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal._text import shortened
from pullback.tape import Variable
from pullback.text.lm._json import canonical

__all__ = ["FENCE", "Template", "fence_of", "fields_of", "fill"]

FENCE = "fence"  # the field of the prompts of this room that marks their tags


class Template(Variable):
    """A text with fields in braces. No other text is one: braces in it are characters.

    Arguments:
        data: the text; ``{name}`` is a field, two braces stand for one.
        role: what it is for, in words.
        requires_grad: whether it collects feedback. One that an optimizer may change is a
            `TemplateParameter`.

    Raises:
        ArgumentError: a brace stands alone, or a field is no plain name.

    Example:
        >>> Template("Translate {word}.", role="user template").fields
        ('word',)
    """

    __slots__ = ()

    def __init__(self, data: str = "", role: str = "", requires_grad: bool = False) -> None:
        if not isinstance(data, str):
            raise ArgumentTypeError("A template is a text.", given=type(data).__name__)
        fields_of(data)
        super().__init__(data, role, requires_grad)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of its fields."""
        return fields_of(self._data)


def fence_of(values: Mapping[str, str]) -> str:
    """A mark that none of these texts can hold, for the tags around them.

    It is made of all of them, so it is another for each request, the same in any process, and a
    text that names it would have another: nothing in the data can speak as the prompt does.
    """
    return hashlib.sha256(canonical(dict(values)).encode()).hexdigest()[:12]


def fields_of(template: str) -> tuple[str, ...]:
    """The names of the fields of a template, each once, in order.

    Raises:
        ArgumentError: a brace stands alone, or a field is no plain name.

    Example:
        >>> fields_of("Dear {name}, {{literally}} {name} in {town}")
        ('name', 'town')
    """
    return tuple(dict.fromkeys(name for _, name in _pieces(template) if name is not None))


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
            given=repr(shortened(template)), expected=", ".join(fields) or "no values",
            mend=f"Write {{{unused[0]}}} where it belongs, or leave it out.",
        )  # fmt: skip
    return "".join(
        literal if name is None else literal + values[name] for literal, name in _pieces(template)
    )


@lru_cache(256)  # a pipeline fills the same few templates for every sample
def _pieces(template: str) -> tuple[tuple[str, str | None], ...]:
    """A template as literal texts, each with the name of the field after it, or None."""
    pieces = []
    try:
        for literal, name, form, conversion in Formatter().parse(template):
            if name is not None and (form or conversion or not name.isidentifier()):
                raise ValueError(f"{{{name}...}} is no plain name in braces")
            pieces.append((literal, name))
    except ValueError as error:
        raise ArgumentError(
            "A template has a brace that is no field.",
            given=f"{error}, in {shortened(template)!r}", expected="{name}, or two braces for one",
        ) from None  # fmt: skip
    return tuple(pieces)
