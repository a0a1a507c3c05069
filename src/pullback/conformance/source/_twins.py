"""What may have been meant by an assignment whose twin is written otherwise.

Where `dx1 = dy1 + y1.grad` stands beside `dx2 = x2.grad`, one of two that were written alike has
lost a term: the slip of whoever copies a line.
"""

import ast
import itertools
import re
from collections.abc import Iterator
from typing import Any

from pullback.conformance.source._names import Rewrite
from pullback.conformance.source._watch import Watch
from pullback.conformance.source._written import Written

__all__ = ["twins"]

Marks = tuple[str, str]
_LIKELIEST = -4  # before all that may be meant in the place of an expression
_MOST = 64  # assignments of a rule that are compared


def twins(rule: Written, noted: Watch) -> Iterator[Rewrite]:
    """Assignments as others of the same rule are written, whose targets differ by a mark."""
    known = {e.node: e for e in rule.expressions if e.key in noted.first}
    simple: list[Any] = [
        s for s in rule.nodes(ast.Assign)
        if isinstance(s.targets[0], ast.Name) and s.value in known
    ][:_MOST]  # fmt: skip
    words = set(_words(rule.source))  # half of a word for another makes none that is there
    for one, other in itertools.permutations(simple, 2):
        marks = _marks(one.targets[0].id, other.targets[0].id)
        if not all(marks):
            continue
        for text in _with_its_arguments(rule, one.value, other.value, marks):
            yield Rewrite(_LIKELIEST, {known[other.value]: text})
        for text in _as_the_other(rule, one.value, other.value, *marks):
            if text != rule.text(other.value) and words.issuperset(_words(text)):
                yield Rewrite(1, {known[other.value]: text})


def _as_the_other(rule: Written, one: Any, other: Any, mark: str, instead: str) -> Iterator[str]:
    """A value as its twin is written, and with the operand that its twin has beside it."""

    def turned(node: Any) -> str:
        return re.sub(rf"\w*{mark}\w*", lambda m: m[0].replace(mark, instead), rule.text(node))

    if isinstance(one, ast.BinOp):
        for same, beside in ((one.left, one.right), (one.right, one.left)):
            if _form(same) == _form(other):
                yield rule.spliced({same: rule.text(other), beside: turned(beside)}, one)
    yield turned(one)


def _with_its_arguments(rule: Written, one: Any, other: Any, marks: Marks) -> Iterator[str]:
    """A call given one of the arguments of its twin: where no mark makes them differ."""
    if not (isinstance(one, ast.Call) and isinstance(other, ast.Call)):
        return
    places = [*zip([one.func, *one.args], [other.func, *other.args], strict=False)]
    odd = [(a, b) for a, b in places
           if _marks(rule.text(a), rule.text(b)) not in (("", ""), marks, marks[::-1])]  # fmt: skip
    if len(one.args) == len(other.args) > 1 == len(odd) and odd[0] != places[0]:
        yield rule.spliced({odd[0][1]: rule.text(odd[0][0])}, other)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def _marks(one: str, other: str) -> Marks:
    """How two names differ: the part that each has between what both begin and end with."""
    start = _alike(one, other)
    end = _alike(one[start:][::-1], other[start:][::-1])
    return one[start : len(one) - end], other[start : len(other) - end]


def _alike(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return len([*pairs])


def _form(node: ast.AST) -> str:
    """How a node is written, whatever its names are."""
    return re.sub(r"Name\(id='\w+'", "Name(", ast.dump(node))
