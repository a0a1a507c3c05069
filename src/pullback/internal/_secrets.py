"""`mask_secrets`: a command line that others may read; `names_secret`: what none may."""

import re
from collections.abc import Sequence

__all__ = ["mask_secrets", "names_secret"]

_MASK = "***"
_NAME = (
    r"[\w.-]*(?:key|token|secret|passw(?:or)?d|passwd|pwd|passphrase|bearer|credentials?"
    r"|auth(?:orization)?"
    # Too short to be a part of a word: --pat is a personal access token, --path is none.
    r"|(?<![^\W_])(?:pat|pw|otp|jwt|psk|creds?|(?<![\w.-]{3})pass))"
)
_NAMED = re.compile(rf"{_NAME}|[\w.-]*(?:headers?|cookies?)", re.IGNORECASE)
_OPTION = re.compile(rf"--?(?:{_NAMED.pattern})", re.IGNORECASE)  # whose value follows
# A name with its value in one word: --token=x, HF_TOKEN=x, a header, JSON. With a colon and no
# space it is a place: package.auth:Function.
_ASSIGNED = re.compile(
    rf"""((?:--?)?{_NAME}(?:=|:\s+|["']\s*:\s*)|\bBearer\s+).+""", re.IGNORECASE | re.DOTALL
)
_IN_ADDRESS = re.compile(
    r"(\w+://[^\s:/@]*:)[^\s/@]+(?=@)"
    r"|(\w+://)[^\s:/@]{16,}(?=@)"  # nobody's name
    r"|([?&][\w.-]*sig(?:nature)?=)[^\s&]+",
    re.IGNORECASE,
)
# As providers make them; and what nobody types: long, of digits and of letters of both cases.
_TOKEN = re.compile(
    r"(?<![\w-])(?:(?:sk|pk|rk)[-_]|gh[pousr]_|github_pat_|glpat-|hf_|xox[abprs]-|AKIA|AIza|eyJ)"
    r"[\w.-]{8,}"
    r"|(?<![\w/.-])(?=[\w-]*\d)(?=[\w-]*[a-z])(?=[\w-]*[A-Z])[\w-]{32,}(?![\w/.-])"
)


def names_secret(name: str) -> bool:
    """Whether what is given by this name must not be written anywhere.

    Example:
        >>> [name for name in ("api_key", "Authorization", "headers", "seed") if names_secret(name)]
        ['api_key', 'Authorization', 'headers']
    """
    return _NAMED.fullmatch(name) is not None


def mask_secrets(words: Sequence[str]) -> list[str]:
    """The words of a command line, with what looks like a secret masked.

    Example:
        >>> mask_secrets(["python", "train.py", "--api-key", "sk-abc", "--lr", "0.1"])
        ['python', 'train.py', '--api-key', '***', '--lr', '0.1']
        >>> mask_secrets(["HF_TOKEN=abc", "https://me:abc@host/path", "X-Api-Key: abc"])
        ['HF_TOKEN=***', 'https://me:***@host/path', 'X-Api-Key: ***']
    """
    masked: list[str] = []
    follows = False
    for word in words:
        masked.append(_MASK if follows and not word.startswith("-") else _masked(word))
        follows = _OPTION.fullmatch(word) is not None
    return masked


def _masked(word: str) -> str:
    word = _ASSIGNED.sub(rf"\1{_MASK}", word)
    word = _IN_ADDRESS.sub(lambda found: f"{found[found.lastindex or 0]}{_MASK}", word)
    return _TOKEN.sub(_MASK, word)
