"""Ask a model with one of the prompts of this room, and read its answer strictly."""

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from pullback.errors import ArgumentError, ReplyError
from pullback.text._prompts import Prompt, prompt
from pullback.text._templates import FENCE, fence_of, fields_of, fill

__all__ = [
    "ask",
    "between_tags",
    "check_retries",
    "fill_prompt",
    "listed",
    "retry_messages",
    "shorten",
]

T = TypeVar("T")


def fill_prompt(parts: Prompt, /, **values: str) -> list[dict[str, str]]:
    """The messages of the parts of a prompt; each takes the values that it has fields for.

    Its field ``{fence}`` marks the tags around them: see `fence_of`.

    Raises:
        ArgumentError: a part has a field without a value.
    """
    values = {**values, FENCE: fence_of(values)}
    return [
        {
            "role": role,
            "content": fill(template, {n: values[n] for n in fields_of(template) if n in values}),
        }
        for role, template in parts
    ]


def retry_messages(complaint: str, answer: str) -> list[dict[str, str]]:
    """What is said to a model after an answer that cannot be used."""
    return fill_prompt(prompt("retry"), complaint=complaint, answer=answer)


async def ask(
    lm: Any,
    messages: list[dict[str, str]],
    read: Callable[[str], T],
    retries: int = 2,
    **options: Any,
) -> T:
    """Ask a model until its answer can be read, and say what was wrong each time.

    Arguments:
        lm: a `pullback.text.lm.LM`.
        messages: what to send.
        read: reads the answer; raises ReplyError if it cannot be used.
        retries: how many more times to ask.
        options: the model's own.

    Raises:
        ReplyError: no answer could be used.
    """
    check_retries(retries)
    send: Callable[..., Awaitable[Any]] = lm.acomplete
    asked = messages
    for left in range(retries, -1, -1):
        answer = (await send(asked, **options)).text
        try:
            return read(answer)
        except ReplyError as error:
            if not left:
                raise
            asked = [*messages, *retry_messages(str(error), answer)]
    raise ReplyError("No answer of the model could be used.")


def check_retries(retries: int) -> None:
    """Refuse a number of retries that is none."""
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise ArgumentError("The retries are no whole number from 0.", given=f"retries={retries!r}")


def between_tags(answer: str, tag: str) -> str:
    """The text between ``<TAG>`` and ``</TAG>``, which must be there once.

    Raises:
        ReplyError: it is not there, or more than once.

    Example:
        >>> between_tags("Sure! <IMPROVED>Be brief.</IMPROVED>", "IMPROVED")
        'Be brief.'
    """
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", answer, re.DOTALL)
    if len(found) != 1:
        raise ReplyError(
            f"The answer of the model has no one text between <{tag}> and </{tag}>.",
            given=shorten(repr(answer), 200), expected=f"<{tag}>...</{tag}> once",
        )  # fmt: skip
    return found[0].strip("\n")


def shorten(text: str, size: int) -> str:
    """A text of at most so many characters, its middle left out and said to be."""
    if len(text) <= size:
        return text
    left = f" [{len(text) - size} characters left out] "
    keep = max(size - len(left), 2)
    return text[: keep - keep // 2] + left + text[len(text) - keep // 2 :]


def listed(texts: Iterable[str], limit: int) -> str:
    """Texts, each once, as a list of about so many characters; "none" where there are none.

    Example:
        >>> print(listed(["Be brief.", "Be kind.", "Be brief."], 12))
        - Be brief.
        - (1 more left out)
    """
    lines = [f"- {text}" for text in dict.fromkeys(texts)]
    kept, size = [], 0
    for line in lines:
        size += len(line)
        if kept and size > limit:
            kept.append(f"- ({len(lines) - len(kept)} more left out)")
            break
        kept.append(shorten(line, limit))
    return "\n".join(kept) or "none"
