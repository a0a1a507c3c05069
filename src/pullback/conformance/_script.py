"""Lay a script out as a person writes it: one statement a line, no line too long, room to read."""

import ast
import io
import itertools
import re
import textwrap
import tokenize
from dataclasses import dataclass

from pullback.internal.torch import pytree

__all__ = ["lay_out"]

_COLUMNS = 100
_INDENT = "    "
_PAIRS = {"(": ")", "[": "]", "{": "}"}
# What scripts use without an import.
_NAMES = dict.fromkeys(("tree_leaves", "tree_map"), pytree.__name__)
# How an expression gets at what a module holds.
_IMPORT = "__import__('importlib').import_module('{}')"
_IMPORTED = re.compile(re.escape(_IMPORT).replace(r"\{\}", r"([\w.]+)") + r"\.(\w+)")


def lay_out(source: str) -> str:
    r"""The same program, laid out.

    Arguments:
        source: Python without comments.

    Returns:
        Imports first, each on its own line; a blank line before and after what is indented.

    Example:
        >>> print(lay_out("import torch; x = 1\nif x: print(x)"), end="")
        import torch
        <BLANKLINE>
        x = 1
        <BLANKLINE>
        if x:
            print(x)
    """
    places = {n: place for n, place in _NAMES.items() if re.search(rf"(?<![\w.]){n}\(", source)}
    for module, short in dict.fromkeys(_IMPORTED.findall(source)):
        if not re.search(rf"(?<![\w.]){short}\b", source) and short not in places:
            source = source.replace(f"{_IMPORT.format(module)}.{short}", short)
            places[short] = module
    statements = ast.parse(source).body
    imports = [node for node in statements if isinstance(node, (ast.Import, ast.ImportFrom))]
    lines = []
    for node in imports:
        if isinstance(node, ast.ImportFrom) and node.module and not node.names[0].asname:
            places |= {name.name: node.module for name in node.names}
        else:
            lines.append(ast.unparse(node))
    for module in sorted(set(places.values())):
        names = sorted(short for short, place in places.items() if place == module)
        lines.append(f"from {module} import {', '.join(names)}")
    lines = list(dict.fromkeys(lines))
    before: ast.stmt | None = None
    for node in statements:
        if node in imports:
            continue
        if before is None or "body" in node._fields or "body" in before._fields:
            lines.append("")
        lines += _lines(node)
        before = node
    return "\n".join(lines) + "\n"


def _lines(node: ast.stmt) -> list[str]:
    plain = ast.unparse(node).splitlines()
    lines = [part for line in plain for part in _wrapped(line)]
    try:
        same = ast.dump(ast.parse("\n".join(lines))) == ast.dump(ast.parse("\n".join(plain)))
    except SyntaxError:
        same = False
    return lines if same else plain  # a comma may stand where none may be added


def _wrapped(line: str) -> list[str]:
    """A line, with the contents of its widest brackets on lines of their own if it is too long."""
    found = _widest(line) if len(line) > _COLUMNS else None
    if found is None:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    inner = f"{indent}{_INDENT}"
    head, content, rest = (
        line[: found.start + 1],
        line[found.start + 1 : found.stop],
        line[found.stop :],
    )
    lines = [f"{inner}{content}"]
    if len(lines[0]) > _COLUMNS:
        breaks = found.clauses or found.commas
        edges = [found.start + 1, *breaks, found.stop]
        parts = [line[a:b].strip(" ,") for a, b in itertools.pairwise(edges)]
        comma = "," if found.commas and not found.clauses else ""
        lines = (not found.clauses and _numbers(parts, inner)) or [
            piece for part in parts if part for piece in _wrapped(f"{inner}{part}{comma}")
        ]
    return [head, *lines, *_wrapped(f"{indent}{rest}")]


def _numbers(parts: list[str], indent: str) -> list[str]:
    """Numbers, as many to a line as there is room for; nothing where some are longer."""
    if any(set(part) & set("([{'\" ") for part in parts):
        return []
    text = ", ".join(part for part in parts if part)
    return textwrap.wrap(
        text, _COLUMNS, initial_indent=indent, subsequent_indent=indent, break_long_words=False
    )


@dataclass(frozen=True)
class _Brackets:
    """Where outermost brackets begin and end, and where the commas and ``for`` between are."""

    start: int
    stop: int
    commas: list[int]
    clauses: list[int]


def _widest(line: str) -> _Brackets | None:
    stack: list[int] = []
    commas: list[int] = []
    clauses: list[int] = []
    found: list[_Brackets] = []
    margin = len(line) - len(line.lstrip())
    try:
        for token in tokenize.generate_tokens(io.StringIO(line.strip()).readline):
            column = token.start[1] + margin
            if token.string in _PAIRS and token.type == tokenize.OP:
                stack.append(column)
                if len(stack) == 1:
                    commas, clauses = [], []
            elif token.string in _PAIRS.values() and token.type == tokenize.OP:
                start = stack.pop()
                if not stack:
                    found.append(_Brackets(start, column, commas, clauses))
            elif len(stack) == 1 and token.string in (",", "for"):
                (commas if token.string == "," else clauses).append(column)
    except (tokenize.TokenError, IndexError):
        pass  # what begins or ends in the middle of brackets
    wide = [item for item in found if item.stop - item.start > len(_INDENT)]
    return max(wide, key=lambda item: item.stop - item.start, default=None)
