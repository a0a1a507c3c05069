"""The prompts that this room itself sends: readable files, which can be replaced."""

from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import cache
from importlib import resources
from pathlib import Path

from pullback.errors import ArgumentError
from pullback.internal._setting import setting
from pullback.text._templates import FENCE, fields_of

__all__ = ["Prompt", "default_prompt", "prompt", "prompt_names", "use_prompts"]

Prompt = tuple[tuple[str, str], ...]
_ROLES = ("system", "user", "assistant")
_replaced: ContextVar[dict[str, Prompt]] = ContextVar("pullback.text.prompts", default={})  # noqa: B039  # never changed in place


def prompt_names() -> tuple[str, ...]:
    """The names of the prompts that this room sends.

    Example:
        >>> prompt_names()
        ('feedback', 'improve', 'judge', 'retry')
    """
    return tuple(_shipped())


def default_prompt(name: str) -> Prompt:
    """A prompt as it is shipped: pairs of a role and a template.

    Raises:
        ArgumentError: there is no prompt of this name.

    Example:
        >>> [role for role, template in default_prompt("judge")]
        ['system', 'user']
    """
    shipped = _shipped()
    if name not in shipped:
        raise ArgumentError(
            "There is no prompt of this name.", given=repr(name), expected=", ".join(shipped)
        )
    return shipped[name]


@cache
def _shipped() -> dict[str, Prompt]:
    """The shipped prompts by their names: read once, for each call of a critic needs one."""
    folder = resources.files("pullback.text") / "prompts"
    files = sorted(
        (entry.name.removesuffix(".txt"), entry)
        for entry in folder.iterdir()
        if entry.name.endswith(".txt")
    )
    return {name: _read(entry.read_text(encoding="utf-8"), name) for name, entry in files}


def prompt(name: str) -> Prompt:
    """A prompt as it is sent here: the replaced one, or the one that is shipped."""
    return _replaced.get().get(name) or default_prompt(name)


def use_prompts(folder: str | Path) -> AbstractContextManager[dict[str, Prompt]]:
    """Send the prompts of a folder inside, in place of those of the same name.

    The field ``{fence}`` is a mark that is new for each request, for the tags around the data, so
    that nothing in the data can end them; a prompt may leave it out.

    Each is a file ``<name>.txt`` of parts that start with ``[system]`` or ``[user]`` on a line of
    its own; see `prompt_names` for the names and the files in ``pullback/text/prompts``.

    Arguments:
        folder: where the files are; a prompt without one stays as it is.

    Raises:
        ArgumentError: the folder is not there, a file has another name, or a prompt lacks a field
            that the shipped one has, or has another. Nothing has been sent then.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ArgumentError("There is no folder of prompts.", given=str(folder))
    found = dict(_replaced.get())
    for path in sorted(root.glob("*.txt")):
        replaced = _read(path.read_text(encoding="utf-8"), path.name)
        wanted, given = _fields(default_prompt(path.stem)), _fields(replaced)
        if wanted - {FENCE} != given - {FENCE}:
            raise ArgumentError(
                f"The prompt {path.name} has other fields than the one that it replaces.",
                given=", ".join(sorted(given)), expected=", ".join(sorted(wanted)),
            )  # fmt: skip
        found[path.stem] = replaced
    return setting(_replaced, found)


def _fields(prompt: Prompt) -> set[str]:
    return {name for _, template in prompt for name in fields_of(template)}


def _read(text: str, name: str) -> Prompt:
    parts: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        role = line[1:-1] if line[:1] == "[" and line[-1:] == "]" else None
        if role in _ROLES:
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
