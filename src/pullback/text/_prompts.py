"""Templates, the prompts that this room itself sends, and how answers to them are read."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from string import Formatter
from typing import Any, TypeVar

from pullback.errors import ArgumentError, ReplyError
from pullback.internal._arguments import checked, reading
from pullback.internal._setting import setting
from pullback.internal._text import shortened
from pullback.tape import Variable
from pullback.text.lm._json import digest_of, past_thoughts

__all__ = ["Template", "prompt", "use_prompts"]


T = TypeVar("T")
QUOTED = 20_000  # characters of an answer, at most, that is shown to who is to mend it
FENCE = "fence"  # the field of the prompts of this room that marks their tags


@checked
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
        fields_of(data)
        super().__init__(data, role, requires_grad)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of its fields."""
        return fields_of(self._data)


def fence_of(values: Mapping[str, str]) -> str:
    """A mark that none of these texts can hold, for the tags around them, the same in any process.

    It is made of all of them, so that a text which names it would have another.
    """
    return digest_of(dict(values))[:12]


def fields_of(template: str) -> tuple[str, ...]:
    """The names of the fields of a template, each once, in order; a brace alone is refused."""
    return tuple(dict.fromkeys(name for _, name in _pieces(template) if name is not None))


def fill(template: str, values: Mapping[str, str], *, more: bool = False) -> str:
    """A template with its fields filled in; braces in the values stay as they are.

    No attribute, index or format of a value can be reached through a field. Each field has a value,
    and each value a field, unless more of them may be given.
    """
    fields = fields_of(template)
    missing = [name for name in fields if name not in values]
    if missing:
        raise ArgumentError(
            f"A template has a field that was given no value: {missing[0]!r}.",
            given=", ".join(values) or "no values", expected=", ".join(fields),
            mend=f"Give {missing[0]}=..., or write {{{{ and }}}} for braces that are no field.",
        )  # fmt: skip
    unused = [name for name in values if name not in fields]
    if unused and not more:
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


Prompt = tuple[tuple[str, str], ...]
ROLES = ("system", "user", "assistant")
"""Those that a part of a prompt may have."""


def _read_all(folder: Path) -> dict[str, Prompt]:
    with reading("folder of prompts in UTF-8", str(folder)):
        texts = {path: path.read_text("utf-8-sig") for path in sorted(folder.glob("*.txt"))}
    return {path.stem: _read(text, path.name) for path, text in texts.items()}


@checked
def prompt(name: str) -> Prompt:
    """A prompt as it is sent here, replaced or as it is shipped: pairs of a role and a template.

    Raises:
        ArgumentError: there is no prompt of this name.

    Example:
        >>> [role for role, template in prompt("judge")]
        ['system', 'user']
    """
    known = _prompts.get()
    if name not in known:
        raise ArgumentError(
            "There is no prompt of this name.", given=repr(name), expected=", ".join(known)
        )
    return known[name]


@checked
def use_prompts(folder: str | os.PathLike[str]) -> AbstractContextManager[Any]:
    """Send the prompts of a folder inside, in place of those of the same name.

    The field ``{fence}`` is a mark that is new for each request, for the tags around the data, so
    that nothing in the data can end them; a prompt may leave it out.

    Each is a file ``<name>.txt`` of parts that start with ``[system]`` or ``[user]`` on a line of
    its own, as those in ``pullback/text/prompts``.

    Arguments:
        folder: where the files are; a prompt without one stays as it is.

    Raises:
        ArgumentError: the folder is not there, a file cannot be read or has another name, or a
            prompt lacks a field that the shipped one has, or has another. Nothing was sent then.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ArgumentError("There is no folder of prompts.", given=str(folder))
    found = dict(_prompts.get())
    for name, replaced in _read_all(root).items():
        wanted, given = fields_in(prompt(name)), fields_in(replaced)
        if wanted - {FENCE} != given - {FENCE}:
            raise ArgumentError(
                f"The prompt {name} has other fields than the one that it replaces.",
                given=", ".join(sorted(given)), expected=", ".join(sorted(wanted)),
            )  # fmt: skip
        found[name] = replaced
    return setting(_prompts, found)


def fields_in(prompt: Prompt) -> set[str]:
    """The names of the fields of all parts of a prompt."""
    return {name for _, template in prompt for name in fields_of(template)}


def _read(text: str, name: str) -> Prompt:
    parts: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        role = line[1:-1] if line[:1] == "[" and line[-1:] == "]" else None
        if role in ROLES:
            parts.append((role, []))
        elif parts:
            parts[-1][1].append(line)
        elif line.strip():
            raise ArgumentError(
                f"The prompt {name} starts with a text that has no role.", given=repr(line),
                expected="a line [system] or [user] first",
            )  # fmt: skip
    if not parts:
        raise ArgumentError(f"The prompt {name} is empty.")
    return tuple((role, "\n".join(lines).strip("\n")) for role, lines in parts)


# The shipped ones are read once, for each call of a critic needs one.
_SHIPPED = _read_all(Path(__file__).with_name("prompts"))
_prompts: ContextVar[dict[str, Prompt]] = ContextVar("pullback.text.prompts", default=_SHIPPED)


def fill_prompt(parts: Prompt, /, **values: str) -> list[dict[str, str]]:
    """The messages of the parts of a prompt, each with the values that it has fields for."""
    values = {**values, FENCE: fence_of(values)}
    return [
        {"role": role, "content": fill(template, values, more=True)} for role, template in parts
    ]


async def ask(
    lm: Any,
    messages: list[dict[str, str]],
    read: Callable[[str], T],
    retries: int,
    options: Mapping[str, Any],
) -> T:
    """Ask until the answer can be read, and say what was wrong each time; or raise the last."""
    asked = messages
    while True:
        answer = (await lm.acomplete(asked, **options)).text
        try:
            return past_thoughts(read, answer)
        except ReplyError as error:
            if not retries:
                raise
            retries -= 1
            quote = shorten(answer, QUOTED)  # a huge one no server would take again
            said = fill_prompt(prompt("retry"), complaint=str(error), answer=quote)
            asked = [*messages, *said]


def between(
    answer: str, opening: str, closing: str, data: Iterable[str]
) -> list[tuple[re.Match[str], str]]:
    """Each match of an opening pattern, with what stands between it and the closing after it.

    What stands in the data as well, with both, is a quote.
    """
    # One pattern for both would look through the rest anew from each opening that is never closed:
    # a minute for an answer that says one tag 16,000 times.
    pieces = answer.split(closing)[:-1]
    found = [(match, piece) for piece in pieces if (match := re.search(opening, piece))]
    return [
        (match, piece[match.end() :]) for match, piece in found
        if not any(piece[match.start() :] + closing in given for given in data)
    ]  # fmt: skip


def between_tags(answer: str, tag: str, data: Iterable[str] = ()) -> str:
    """The text between ``<TAG>`` and ``</TAG>``, which must be there once, quotes left out."""
    found = [text for _, text in between(answer, f"<{tag}>", f"</{tag}>", data)]
    if len(found) != 1:
        raise ReplyError(
            f"The answer of the model has no one text between <{tag}> and </{tag}>.",
            given=shorten(repr(answer), 200), expected=f"<{tag}>...</{tag}> once",
        )  # fmt: skip
    return found[0].strip("\n")


def pattern_of(pattern: str) -> re.Pattern[str]:
    """A regular expression; what is none is refused."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ArgumentError(
            "This is no regular expression.", given=f"{pattern!r}: {error}"
        ) from None


def shorten(text: str, size: int) -> str:
    """A text of at most so many characters, its middle left out and said to be."""
    if len(text) <= size:
        return text
    left = f" [{len(text) - size} characters left out] "
    keep = max(size - len(left), 2)
    return text[: keep - keep // 2] + left + text[len(text) - keep // 2 :]


def listed(texts: Iterable[str], limit: int) -> str:
    """Texts, each once, as a list of about so many characters; "none" where there are none."""
    lines = [f"- {text}" for text in dict.fromkeys(texts)]
    kept, size = [], 0
    for line in lines:
        size += len(line)
        if kept and size > limit:
            kept.append(f"- ({len(lines) - len(kept)} more left out)")
            break
        kept.append(shorten(line, limit))
    return "\n".join(kept) or "none"
