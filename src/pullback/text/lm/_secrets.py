"""Keys that must not be written anywhere: a provider tells them, every writer scrubs them."""

import json

from pullback.internal._arguments import checked

__all__ = ["keep_secret", "scrub"]

_MARK = "[key]"
_PUBLIC = {  # what the pages of local servers tell everybody to pass; words that answers may hold
    "ollama", "lm-studio", "lmstudio", "not-needed", "not_needed", "no-key", "no-key-required",
    "sk-no-key-required", "dummy-key", "placeholder", "api-key", "api_key", "your-api-key", "vllm",
    "localai", "llama.cpp",
}  # fmt: skip
_secrets: set[str] = set()


@checked
def keep_secret(secret: str) -> None:
    """Never write this text into a journal, an error or a page; as JSON would write it neither.

    What follows a scheme is kept too: of ``Bearer KEY`` also ``KEY`` alone.
    """
    for part in {secret, secret.rpartition(" ")[2]}:
        if len(part) >= 6 and part.lower() not in _PUBLIC:  # shorter ones would tear ordinary words
            _secrets.update(
                {part, *(json.dumps(part, ensure_ascii=e)[1:-1] for e in (True, False))}
            )


@checked
def scrub(text: str) -> str:
    """A text without any of the secrets."""
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, _MARK)
    return text
