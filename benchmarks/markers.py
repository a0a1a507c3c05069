"""Generated parts of a page, between two comments that say how they are made."""

from pathlib import Path

__all__ = ["check_or_write", "replace_between"]


def replace_between(text: str, name: str, content: str) -> str:
    """Put `content` between `<!-- name begin ... -->` and `<!-- name end -->`.

    Raises:
        ValueError: the page does not have exactly one such pair.
    """
    opening, closing = f"<!-- {name} begin", f"<!-- {name} end -->"
    if text.count(opening) != 1 or text.count(closing) != 1:
        raise ValueError(f"the page needs one {opening} ... --> and one {closing}")
    start = text.index("-->\n", text.index(opening)) + len("-->\n")
    end = text.index(closing)
    if end < start:
        raise ValueError(f"{closing} stands before {opening}")
    return f"{text[:start]}\n{content.strip()}\n\n{text[end:]}"


def check_or_write(page: Path, parts: dict[str, str], check: bool, command: str) -> None:
    """Write the generated parts of a page, or end with an error when they are out of date."""
    old = page.read_text(encoding="utf-8")
    new = old
    for name, content in parts.items():
        new = replace_between(new, name, content)
    if check and new != old:
        raise SystemExit(f"{page} is out of date: run `{command}`")
    if new != old:
        page.write_text(new, encoding="utf-8")
        print(f"wrote {page}")
