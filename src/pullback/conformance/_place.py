"""An expression of a rule whose rewrites are listed."""

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from pullback.conformance._arguments import is_continuous
from pullback.conformance._names import Name
from pullback.conformance._watch import Watch
from pullback.conformance._written import Expression, Written

__all__ = ["Place", "Rewrite", "is_flag", "is_plain", "lowers", "turned"]


class Rewrite(NamedTuple):
    """Other expressions in the place of some."""

    rank: int  # those of a lower rank are likelier
    texts: Mapping[Expression, str]
    anew: bool = False  # whether it is compiled: what it replaces would have run before


def is_plain(value: Any) -> bool:
    """Whether it may be another one: a device is lost for the process by a wrong index."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    harmless = value.device.type == "cpu" or value.dtype == torch.bool or is_continuous(value)
    return harmless and value.numel() > 0


def is_flag(e: Expression) -> bool:
    """Whether it asks which inputs need a gradient."""
    near = (n for n in (e.node, e.rule.parent[e.node]) if isinstance(n, ast.expr))
    return any("needs_input_grad" in e.rule.text(n) for n in near)


def lowers(rewrite: Rewrite, noted: Watch) -> bool:
    """Whether an edit leaves out a cast to a lower precision."""
    ((e, text),) = rewrite.texts.items()
    value = noted.first[e.key]
    if not (
        isinstance(value, torch.Tensor) and value.is_floating_point() and hasattr(e.node, "func")
    ):
        return False
    owner = getattr(e.node.func, "value", None)
    of = None if owner is None else noted.first.get(e.rule.key(owner))
    if owner is None or text != e.rule.text(owner):
        return False
    whole = isinstance(of, torch.Tensor) and of.is_floating_point()
    return whole and torch.finfo(of.dtype).eps < torch.finfo(value.dtype).eps


def turned(atom: str, how: str = ".mT") -> str:
    """The text of a transpose; of one that is written as such, what it is of."""
    for ending in (".mT", ".t()", ".T"):
        if atom.endswith(ending):
            return atom.removesuffix(ending)
    return atom + how


@dataclass(frozen=True)
class Place:
    """An expression whose rewrites are listed."""

    e: Expression
    value: Any  # what it was
    noted: Watch
    names: Sequence[Name]
    numbers: Sequence[Name]  # those among them, and sizes
    rules: Collection[Written]  # the functions of the author's that run

    def known(self, node: ast.AST) -> Any:
        """What an operand was."""
        return self.noted.first.get(self.e.rule.key(node))

    def to(self, rank: int, text: str, name: str = "") -> Rewrite:
        """An edit, likelier where it reads a name that nobody reads, most of all a given one."""
        unread = (name in self.e.rule.unread) + (name in self.e.rule.idle)
        return Rewrite(rank - 3 * unread, {self.e: text})

    def written(self, texts: Mapping[Any, str]) -> str:
        """Its text with other operands."""
        return self.e.rule.spliced(texts, self.e.node)

    def tensors(self) -> Iterator[Name]:
        for name in self.names:
            if is_plain(name.value):
                yield name
