"""An operation as it stands in the author's source, and as it would stand there after an edit.

Nothing but words depends on it: where the source is not to be had, an edit is told without it.
"""

import ast
import functools
import inspect
import linecache
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from pullback.conformance._mends import Stand
from pullback.internal._syntax import parse

__all__ = ["Source", "atom", "source_here"]

# Where an operation is dispatched, not written.
_OTHERS = (Path(torch.__file__).parent, Path(__file__).parents[1])
_SIGNS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.BitAnd: "&", ast.BitOr: "|",
    ast.BitXor: "^", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==",
    ast.NotEq: "!=",
}  # fmt: skip
# Signs that bind alike.
_SAME = ({"+", "-"}, {"*", "/"}, *({sign} for sign in ("", *_SIGNS.values())))
_ALONE = (ast.Name, ast.Constant, ast.Call, ast.Attribute, ast.Subscript)
_DELIMITED = (ast.Call, ast.Subscript)


class Source(NamedTuple):
    """An expression of the author's."""

    name: str  # that of the operation
    where: str = ""  # its file and line
    text: str = ""  # as it stands; empty where that is not to be had
    column: int = 0  # where in the line, if it stands there more than once
    alone: bool = True  # whether no other operator of the line reads it
    order: Sequence[int] = ()  # the operands as they stand, as positions among the leaves
    scope: Mapping[str, Any] = MappingProxyType({})  # what it may name

    @property
    def said(self) -> str:
        column = f", column {self.column}" if self.column else ""
        return f"`{self.text or self.name}`" + f" ({self.where}{column})" * bool(self.where)

    @property
    def sign(self) -> str:
        """Its operator, if it has one."""
        return _parsed(self.text).sign if len(self.order) == 2 else ""

    def operand(self, leaf: int) -> str:
        """How one operand is written; empty where that is not known."""
        if leaf not in self.order:
            return ""
        node = self._nodes[self.order.index(leaf)]
        return self.text.encode()[node.col_offset : node.end_col_offset].decode()

    def with_operands(self, texts: Mapping[int, str]) -> str:
        """The expression with other operands; empty where one of them cannot be written."""
        if not all(text and leaf in self.order for leaf, text in texts.items()):
            return ""
        raw, head = self.text.encode(), _parsed(self.text).head
        for place in sorted(map(self.order.index, texts), reverse=True):
            node, other = self._nodes[place], texts[self.order[place]]
            within = isinstance(head, _DELIMITED) and node is not _owner(head)
            other = other if within else atom(other)
            raw = raw[: node.col_offset] + other.encode() + raw[node.end_col_offset :]
        return raw.decode()

    def with_sign(self, sign: str) -> str:
        """The expression with another operator; empty where it has none."""
        if not self.sign:
            return ""
        raw, (one, other) = self.text.encode(), self._nodes
        between = raw[one.end_col_offset : other.col_offset].decode()
        changed = between.replace(self.sign, sign) if between.count(self.sign) == 1 else ""
        found = raw[: one.end_col_offset] + changed.encode() + raw[other.col_offset :]
        return found.decode() if changed else ""

    def with_function(self, name: str) -> str:
        """The expression with another function of torch called; empty where it calls none."""
        once = self.text.count(f"{self.name}(") == 1 and bool(self.order)
        return self.text.replace(f"{self.name}(", f"{name}(") if once else ""

    def fitting(self, text: str) -> str:
        """Another expression as it may stand there; empty where it is none."""
        (head, _, sign), own = _parsed(text), _parsed(self.text)
        same = type(head) is type(own.head) and {sign, own.sign} in _SAME
        return "" if head is None else text if self.alone or same else atom(text)

    def called(self, value: Any) -> str:
        """What the author calls a tensor or a number there; empty if nothing."""
        return next((name for name, other in self.scope.items() if _is_it(other, value)), "")

    @property
    def _nodes(self) -> Sequence[ast.expr]:
        nodes = _parsed(self.text).operands
        return nodes[len(nodes) - len(self.order) :]


def atom(text: str) -> str:
    """An expression as an operand of any other.

    Example:
        >>> atom("x"), atom("x - 1")
        ('x', '(x - 1)')
    """
    return text if isinstance(_parsed(text).head, _ALONE) else f"({text})"


def _is_it(one: Any, value: Any) -> bool:
    """Whether a name stands for a tensor, or for a number: one of an entry too, but no counter."""
    if not isinstance(one, torch.Tensor):
        return type(one) is float and type(value) is float and one == value
    if isinstance(value, torch.Tensor):
        return one.shape == value.shape and bool((one == value).all())
    return one.numel() == 1 and one.is_floating_point() and one.item() == value


class _Parsed(NamedTuple):
    head: ast.AST | None  # the expression; ``None`` if it is none by itself
    operands: Sequence[ast.expr] = ()  # as they stand
    sign: str = ""  # the operator between two of them


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> _Parsed:
    try:
        (head,) = parse(text).body
    except (SyntaxError, ValueError):
        return _Parsed(None)
    node: Any = head.value if isinstance(head, ast.Expr) else head
    if isinstance(node, ast.BinOp):
        return _Parsed(node, (node.left, node.right), _SIGNS.get(type(node.op), ""))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _Parsed(node, (node.left, *node.comparators), _SIGNS[type(node.ops[0])])
    if isinstance(node, ast.AugAssign):
        return _Parsed(node, (node.target, node.value))
    if isinstance(node, ast.UnaryOp):
        return _Parsed(node, (node.operand,))
    if isinstance(node, ast.Subscript):
        return _Parsed(node, (node.value, *_flat(node.slice)))
    if isinstance(node, ast.Call):
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        owner = _owner(node)
        operands = [n for one in given for n in _flat(one)]
        return _Parsed(node, (owner, *operands) if owner is not None else tuple(operands))
    return _Parsed(node)


def _owner(node: Any) -> ast.expr | None:
    """What a method is called of, or a part is taken of."""
    if isinstance(node, ast.Call):
        return node.func.value if isinstance(node.func, ast.Attribute) else None
    return getattr(node, "value", None)


def _flat(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, (ast.Tuple, ast.List)):
        for one in node.elts:
            yield from _flat(one)
    else:
        yield node


def source_here(name: str, leaves: Sequence[Any]) -> Source:
    """Where an operation that runs now is written.

    Arguments:
        name: that of the operation.
        leaves: those of its arguments.
    """
    frame = inspect.currentframe()
    while frame is not None and any(
        root in Path(frame.f_code.co_filename).parents for root in _OTHERS
    ):
        frame = frame.f_back
    if frame is None:
        return Source(name)
    info = inspect.getframeinfo(frame, context=0)
    place, line = info.positions, linecache.getline(info.filename, info.lineno).strip("\n")
    where = f"{Path(info.filename).name}:{info.lineno}"
    if place is None or place.col_offset is None or place.lineno != place.end_lineno or not line:
        return Source(name, where)
    text = line.encode()[place.col_offset : place.end_col_offset].decode()
    column = place.col_offset + 1 if line.count(text) > 1 else 0
    before, after = (line.encode()[part].decode().strip() for part in (
        slice(place.col_offset), slice(place.end_col_offset, None)
    ))  # fmt: skip
    alone = before.endswith((*"([,=:", "return")) or not before
    alone = alone and (after.startswith((*")],:#",)) or not after)
    scope = dict(_named(frame.f_locals))
    order = _order(_parsed(text), leaves, scope)
    return Source(name, where, text, column, alone, order, scope)


def _named(local: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Tensors and numbers by what they are called, those on a context too."""
    for name, value in local.items():
        if name.startswith("_"):  # what is not to be read
            continue
        own = vars(value) if isinstance(value, Stand) else {}
        held = {f"{name}.{k}": v for k, v in own.items() if not k.startswith("_")}
        for path, one in {name: value, **held}.items():
            if type(one) in (int, float) or isinstance(one, torch.Tensor):
                yield path, one


def _order(parsed: _Parsed, leaves: Sequence[Any], scope: Mapping[str, Any]) -> Sequence[int]:
    """The operands as they stand, as positions among the leaves; empty where that is not known."""
    nodes, own = parsed.operands, _owner(parsed.head)
    if len(nodes) == len(leaves) + 1 and own is not None:
        nodes = nodes[1:]  # a function of a module
    forth = range(len(leaves))
    for order in (forth, forth[::-1]) if isinstance(parsed.head, ast.BinOp) else (forth,):
        pairs = zip(nodes, order, strict=False)
        if len(nodes) == len(leaves) and all(_fits(n, leaves[k], scope) for n, k in pairs):
            return order
    return ()


def _fits(node: ast.expr, leaf: Any, scope: Mapping[str, Any]) -> bool:
    """Whether an operand may be what is written there."""
    with suppress(ValueError):
        written = ast.literal_eval(node)
        return type(written) is type(leaf) and written == leaf
    name = ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""
    if name not in scope or scope[name] is leaf:
        return True
    return type(leaf) in (int, float) and type(scope[name]) is type(leaf) and scope[name] == leaf
