"""Keys that must not be written anywhere: a provider tells them, every writer scrubs them."""

import json
from collections.abc import Mapping
from typing import Any

from pullback.internal._arguments import checked
from pullback.internal._secrets import mask_secrets, names_secret

__all__ = ["is_secret", "keep_secret", "masked", "scrub", "writable"]

_MARK = "[key]"
_PUBLIC = {  # what the pages of local servers tell everybody to pass; words that answers may hold
    "ollama", "lm-studio", "lmstudio", "not-needed", "not_needed", "no-key", "no-key-required",
    "sk-no-key-required", "dummy-key", "placeholder", "api-key", "api_key", "your-api-key", "vllm",
    "localai", "llama.cpp",
}  # fmt: skip
_PLAIN = {"prompt_cache_key"}  # which sounds like a secret, and is none
_secrets: set[str] = set()


@checked
def keep_secret(secret: str) -> None:
    """Never write this text into a journal, an error or a page; as JSON would write it neither.

    Nor as JSON in a text of JSON would. What follows a scheme is kept too: of ``Bearer KEY`` also
    ``KEY`` alone.
    """
    for part in {secret, secret.rpartition(" ")[2]}:
        if len(part) >= 6 and part.lower() not in _PUBLIC:  # shorter ones would tear ordinary words
            forms = {part}
            for _ in range(3):  # a graph is JSON in that of a note, and may hold tools' arguments
                forms |= {json.dumps(f, ensure_ascii=e)[1:-1] for f in forms for e in (True, False)}
            _secrets.update(forms)


@checked
def scrub(text: str) -> str:
    """A text without any of the secrets."""
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, _MARK)
    return text


def writable(text: str) -> str:
    """A text without any of the secrets, that a file can hold: half a character as JSON has it."""
    return scrub(text).encode("utf-8", "backslashreplace").decode()


def is_secret(name: str) -> bool:
    """Whether what an option of this name holds must not be written."""
    return names_secret(name) and name not in _PLAIN


def masked(value: Any, within: bool = False) -> Any:
    """JSON with a mark for all that stands below a name which tells a secret, at any depth.

    What looks like a key there, as providers make them, is kept secret wherever it turns up. Other
    words are not: an answer may hold them.
    """
    if isinstance(value, Mapping):
        return {
            name: masked(below, within or is_secret(str(name))) for name, below in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked(each, within) for each in value]
    if not within or isinstance(value, bool | None):
        return value
    if isinstance(value, str) and mask_secrets([value]) != [value]:
        keep_secret(value)
    return _MARK
