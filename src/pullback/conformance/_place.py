"""An expression of a rule whose rewrites are listed."""

import ast
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch

from pullback.conformance._arguments import is_continuous
from pullback.conformance._names import Name
from pullback.conformance._watch import Watch
from pullback.conformance._written import Edit, Expression, Written

__all__ = ["Meant", "Place", "Rewrite", "is_flag", "is_plain", "lowers", "turned"]


class Rewrite(NamedTuple):
    """Other expressions in the place of some."""

    rank: int  # those of a lower rank are likelier
    texts: Edit
    anew: bool = False  # whether it is compiled: what it replaces would have run before


Meant = Iterable[tuple[int, str, *tuple[str, ...]]]
"""What may have been meant: a rank, a text, and the name that it reads if that makes it likely."""


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


def lowers(e: Expression, text: str, noted: Watch) -> bool:
    """Whether an edit leaves out a cast to a lower precision."""
    match e.node:
        case ast.Call(func=ast.Attribute(value=of)) if text == e.rule.text(of):
            pair: list[Any] = [noted.first.get(e.rule.key(n)) for n in (of, e.node)]
            if all(isinstance(v, torch.Tensor) and v.is_floating_point() for v in pair):
                whole, value = (torch.finfo(v.dtype).eps for v in pair)
                return whole < value
    return False


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
    noted: Watch
    names: Sequence[Name]
    numbers: Sequence[Name]  # those among them, and sizes
    rules: Collection[Written]  # the functions of the author's that run

    @property
    def value(self) -> Any:
        """What it was."""
        return self.noted.first[self.e.key]

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

    @cached_property
    def tensors(self) -> Sequence[Name]:
        """The tensors that it may name."""
        return [name for name in self.names if is_plain(name.value)]

    @property
    def moving(self) -> Sequence[Name]:
        """Those of real or complex numbers."""
        return [name for name in self.tensors if is_continuous(name.value)]
