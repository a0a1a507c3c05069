"""A function of the author's as it is written, its expressions, and edits of it in words."""

import ast
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from pullback.conformance.source._watch import LONE, Key

__all__ = ["Edit", "Expression", "Written", "in_words", "names_in", "names_read"]

_SHOWN = 60  # characters of an expression
_ENDINGS, _FACTORS = 12, 12  # calls of methods, and factors, that may be forgotten elsewhere
_TOLD = re.compile(r"`([^`]*)` for `([^`]*)` at ([^ ]+:\d+(?:, column \d+)?)")
_Value = (ast.Attribute, ast.BinOp, ast.BoolOp, ast.Call, ast.Compare, ast.Constant, ast.IfExp,
          ast.List, ast.Name, ast.Subscript, ast.Tuple, ast.UnaryOp)  # fmt: skip
# What is written there is no value that may be another one.
_NO_VALUES = (ast.Starred, ast.FormattedValue, ast.arguments, ast.arg, ast.Expr, ast.FunctionDef)

Edit = Mapping["Expression", str]
"""Other texts of expressions and statements."""


class Expression(NamedTuple):
    """An expression of a rule, or a statement."""

    rule: "Written"
    node: Any

    @property
    def key(self) -> Key:
        """What it is known by."""
        return self.rule.key(self.node)

    @property
    def place(self) -> Key:
        """That of what binds the names that it reads: a statement, or a lambda in one."""
        node = self.rule.parent[self.node]
        while not isinstance(node, (ast.stmt, *LONE)):
            node = self.rule.parent[node]
        return self.rule.key(node)

    @property
    def text(self) -> str:
        return self.rule.text(self.node)

    @property
    def is_whole(self) -> bool:
        """Whether it is all of what is assigned or returned, or a sum or a term of one."""
        around = self.rule.parent[self.node]
        sum_ = any(
            isinstance(getattr(n, "op", None), (ast.Add, ast.Sub)) for n in (self.node, around)
        )
        assigned = isinstance(around, (ast.Assign, ast.AugAssign, ast.Return, *LONE))
        return sum_ or assigned or self.rule.is_returned(self.node)

    @property
    def is_left(self) -> bool:
        """Whether its statement reaches the first argument, the context, or binds what does."""
        context = next((arg.arg for arg in self.rule.tree.args.args), "")  # it may take none
        statement = self.rule.statement(self.node)
        bound = {t.id for t in getattr(statement, "targets", ()) if isinstance(t, ast.Name)}
        reads = [self.rule.statement(n) for n in self.rule.reads if n.id in bound]
        return all(context in names_read(other) for other in reads or [statement])

    @property
    def is_looped(self) -> bool:
        """Whether a loop runs over it."""
        around = self.rule.parent[self.node]
        return isinstance(around, ast.For) and self.node is around.iter

    @property
    def is_asked(self) -> bool:
        """Whether a branch is taken by it."""
        return getattr(self.rule.parent[self.node], "test", None) is self.node

    @property
    def atom(self) -> str:
        """As the operand of anything."""
        return self.rule.atom(self.node)

    @property
    def factor(self) -> str:
        """As a factor."""
        op = getattr(self.node, "op", None)
        return self.text if isinstance(op, (ast.Mult, ast.Div, ast.MatMult)) else self.atom


@dataclass(frozen=True, eq=False)
class Written:
    """A function of the author's and its source."""

    function: Any
    file: str
    shown_file: str  # its name, and its folder's where it is not the rule's own
    line: int  # that of the first line, in the file
    indent: int  # characters that each line has lost
    source: str
    tree: Any

    @cached_property
    def _number(self) -> Mapping[ast.AST, int]:
        return {node: k for k, node in enumerate(ast.walk(self.tree))}

    def key(self, node: ast.AST) -> Key:
        """What a node of any rule is known by."""
        return id(self), self._number[node]

    def nodes(self, *kinds: type[ast.AST]) -> list[Any]:
        """Those of some kinds."""
        return [node for node in self._number if isinstance(node, kinds)]

    @cached_property
    def parent(self) -> Mapping[ast.AST, ast.AST]:
        return {child: node for node in self._number for child in ast.iter_child_nodes(node)}

    @cached_property
    def reads(self) -> Sequence[ast.Name]:
        """The places where a name is read."""
        return [n for n in self.nodes(ast.Name) if isinstance(n.ctx, ast.Load)]

    @property
    def given(self) -> Sequence[str]:
        """The names of its arguments by position."""
        return [arg.arg for arg in self.tree.args.args]

    @cached_property
    def local(self) -> set[str]:
        """The names that it binds."""
        stored = {n.id for n in self.nodes(ast.Name) if isinstance(n.ctx, ast.Store)}
        return stored | {n.arg for n in self.nodes(ast.arg)}

    @cached_property
    def unread(self) -> Collection[str]:
        """The names that it binds and does not read: one of them may be forgotten."""
        return self.local - {n.id for n in self.reads}

    @cached_property
    def idle(self) -> Collection[str]:
        """The arguments that it is given and does not read."""
        given = (*self.tree.args.posonlyargs, *self.tree.args.args, *self.tree.args.kwonlyargs)
        return {arg.arg for arg in given} & {*self.unread}

    @cached_property
    def literals(self) -> Collection[float]:
        """The numbers that are written in it, and their negatives."""
        found = [n.value for n in self.nodes(ast.Constant)]
        return {sign * n for n in found if type(n) is float for sign in (1, -1)}

    @cached_property
    def normalised(self) -> Sequence[tuple[Any, Any]]:
        """Where something is divided by what is computed of it: it, and by what."""
        found = []
        for node in self.nodes(ast.BinOp, ast.Call):
            match node:
                case (
                    ast.BinOp(left=left, op=ast.Div(), right=right)
                    | ast.Call(func=ast.Attribute(value=left, attr="div"), args=[right, *_])
                ) if names_read(left) & self.local & self._made_of(right):
                    found.append((left, right))
        return found

    @cached_property
    def factors(self) -> Sequence[tuple[str, Any]]:
        """What it multiplies or divides by, with the sign: any may be forgotten elsewhere."""
        found: dict[str, tuple[str, Any]] = {}
        for node in self.nodes(ast.BinOp, ast.AugAssign, ast.Call):
            match node:
                case (
                    ast.BinOp(op=ast.Div(), right=by)
                    | ast.AugAssign(op=ast.Div(), value=by)
                    | ast.Call(func=ast.Attribute(attr="div" | "div_"), args=[by, *_])
                ):
                    found.setdefault(self.text(by), ("/", by))
                case ast.BinOp(op=ast.Mult(), left=left, right=right):
                    found.setdefault(self.text(left), ("*", left))
                    found.setdefault(self.text(right), ("*", right))
                case (
                    ast.AugAssign(op=ast.Mult(), value=by)
                    | ast.Call(func=ast.Attribute(attr="mul" | "mul_"), args=[by, *_])
                ):
                    found.setdefault(self.text(by), ("*", by))
        return [*found.values()][:_FACTORS]

    def _made_of(self, node: ast.AST) -> set[str]:
        """The names that something is computed of, by however many assignments."""
        found, before = names_read(node), set[str]()
        while found != before:
            before = {*found}
            for n in self.nodes(ast.Assign):
                if any(isinstance(t, ast.Name) and t.id in before for t in n.targets):
                    found |= names_read(n.value)
        return found

    @cached_property
    def endings(self) -> Sequence[str]:
        """How methods are called in it: any of these may be forgotten at another place."""
        found: dict[str, None] = {}
        for node in self.nodes(ast.Call):
            if isinstance(node.func, ast.Attribute):
                path, given = names_in(node.func), [*node.args, *node.keywords]
                own = (not path or path[0] in self.local) and not node.func.attr.endswith("_")
                if own and given:
                    found[f".{node.func.attr}({', '.join(map(self.text, given))})"] = None
        return [*found][:_ENDINGS]

    @cached_property
    def compared(self) -> Sequence[str]:
        """The texts that it compares with."""
        nodes = [n for c in self.nodes(ast.Compare) for n in ast.walk(c)]
        texts = [n.value for n in nodes if isinstance(n, ast.Constant)]
        return list(dict.fromkeys(text for text in texts if type(text) is str))

    @cached_property
    def expressions(self) -> Sequence[Expression]:
        """What may be another one, in the order of the source."""
        found = [node for node in self.nodes(*_Value) if self._is_value(node)]
        found.sort(key=lambda node: (node.lineno, node.col_offset, -node.end_col_offset))
        return [Expression(self, node) for node in found]

    @cached_property
    def _raw(self) -> tuple[bytes, Sequence[int]]:
        """The source in bytes, which columns count, and where its lines start."""
        lines = [line.encode() for line in self.source.splitlines(keepends=True)]
        return b"".join(lines), [0, *itertools.accumulate(map(len, lines))]

    def _span(self, node: Any) -> tuple[int, int]:
        """Where a node starts and ends."""
        starts = self._raw[1]
        first, last = starts[node.lineno - 1], starts[node.end_lineno - 1]
        return first + node.col_offset, last + node.end_col_offset

    def text(self, node: Any) -> str:
        """How a node is written."""
        start, end = self._span(node)
        return self._raw[0][start:end].decode()

    def atom(self, node: Any) -> str:
        """How a node is written as the operand of anything."""
        loose = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.IfExp, ast.Tuple)
        return f"({self.text(node)})" if isinstance(node, loose) else self.text(node)

    def where(self, node: Any) -> str:
        """The file and the line, and the column where it stands there more than once."""
        line = self.source.splitlines()[node.lineno - 1]
        text = self.text(node).splitlines()[0]
        column = f", column {node.col_offset + self.indent + 1}" if line.count(text) > 1 else ""
        return f"{self.shown_file}:{self.line + node.lineno - 1}{column}"

    def edit(self, texts: Mapping[Any, str]) -> str:
        """Other texts of its nodes in words, each with the file and the line."""
        shown = dict.fromkeys(self.shown(node) for node in texts)
        within = {node: {*ast.walk(node)} for node in shown}
        whole = [n for n in shown if not any(n is not m and n in within[m] for m in shown)]
        told = []
        for node in whole:
            new = self.spliced({n: t for n, t in texts.items() if n in within[node]}, node)
            told.append(f"`{_line(new)}` for `{_line(self.text(node))}` at {self.where(node)}")
        return " and ".join(told)

    def edited(self, said: str) -> Mapping[Any, str]:
        """The texts of nodes of which an edit was told; empty where it is of another function."""
        told = {(old, where): new for new, old, where in _TOLD.findall(said)}
        found = {}
        for node in self.nodes(ast.stmt, *_Value):
            if told:
                new = told.pop((_line(self.text(node)), self.where(node)), None)
                found |= {} if new is None else {node: new}
        return {} if told else found

    def spliced(self, texts: Mapping[Any, str], node: Any = None) -> str:
        """The source of a node, of all if it is none, with other expressions written in it."""
        raw = self._raw[0]
        first, last = (0, len(raw)) if node is None else self._span(node)
        for n in sorted(texts, key=lambda n: self._span(n)[0], reverse=True):
            start, end = self._span(n)
            raw = raw[:start] + texts[n].encode() + raw[end:]
            last += len(texts[n].encode()) - (end - start)
        return raw[first:last].decode()

    def shown(self, node: Any) -> Any:
        """The expression that is shown for a short one: the nearest around it that says more."""
        while isinstance(node, ast.expr) and not self._is_told_by(node):
            around: Any = self.parent[node]
            if isinstance(around, (ast.keyword, ast.Slice)) or self._is_called(around):
                around = self.parent[around]
            known = isinstance(around, _Value) and around.lineno == around.end_lineno
            if not known or len(self.text(around)) > _SHOWN:
                break
            node = around
        return node

    def _is_told_by(self, node: Any) -> bool:
        """Whether an expression tells by itself where it stands."""
        text, line = self.text(node), self.source.splitlines()[node.lineno - 1]
        return len(text) > 5 and line.count(text) == 1

    def _is_called(self, node: ast.AST) -> bool:
        around = self.parent[node]
        return isinstance(around, ast.Call) and around.func is node

    def statement(self, node: ast.AST) -> ast.AST:
        """The statement that a node is in."""
        while not isinstance(node, ast.stmt):
            node = self.parent[node]
        return node

    def is_returned(self, node: ast.AST) -> bool:
        """Whether it is one of several that are returned."""
        around = self.parent[node]
        return isinstance(around, ast.Tuple) and isinstance(self.parent[around], ast.Return)

    def _is_value(self, node: Any) -> bool:
        around = self.parent[node]
        if isinstance(around, _NO_VALUES) or getattr(around, "func", None) is node:
            return False
        if not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            return False
        match node:
            case ast.Constant(value=None):
                return self.is_returned(node)
            case ast.Constant(value=str()):
                return isinstance(around, (ast.Call, ast.keyword))
            case ast.Constant(value=value):
                return type(value) in (bool, int, float)
            case ast.Name(id=name):
                return name in self.local
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return len(parts) > 1 and not isinstance(around, ast.Subscript)
            case ast.Attribute():
                return not self.local.isdisjoint(names_in(node)[:1])
        return True


def _line(text: str) -> str:
    return " ".join(text.split())


def in_words(edit: Edit) -> str:
    """Other texts of nodes in words, each with the file and the line."""
    rules = dict.fromkeys(rule for rule, _ in edit)
    texts = {rule: {n: text for (of, n), text in edit.items() if of is rule} for rule in rules}
    return " and ".join(rule.edit(own) for rule, own in texts.items())


def names_in(node: Any) -> list[str]:
    """A dotted name, part by part; empty for anything else."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        found = names_in(node.value)
        return [*found, node.attr] if found else []
    return []


def names_read(node: ast.AST) -> set[str]:
    """The names that are read in an expression."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
