"""Keys that must not be written anywhere: a provider tells them, every writer scrubs them."""

import json

__all__ = ["keep_secret", "scrub"]

_MARK = "[key]"
_secrets: set[str] = set()


def keep_secret(secret: str) -> None:
    """Never write this text into a journal, an error or a page; as JSON would write it neither."""
    if len(secret) >= 6:  # a shorter one hides nothing and would tear ordinary words
        _secrets.update({secret, json.dumps(secret)[1:-1]})


def scrub(text: str) -> str:
    """A text without any of the secrets."""
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, _MARK)
    return text
