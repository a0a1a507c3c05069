"""What the expressions of a rule answer while it runs, and what some are to answer instead.

In a copy of the rule each expression tells its value, and each statement its names; or each call
asks what to call.
"""

import ast
import math
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, NamedTuple

import torch

__all__ = [
    "CALLED", "HERE", "LONE", "OPERATED", "SEEN", "WITHIN", "Asking", "Instead", "Key", "Telling",
    "Watch",
]  # fmt: skip

Key = tuple[int, int]
"""What a node of a rule is known by."""
_MOST = 2**17  # entries of a tensor of which a copy is kept


class Instead(NamedTuple):
    """What is written in the place of an expression."""

    code: CodeType
    place: Key  # whose names it reads


@dataclass
class Watch:
    """A run of a rule, watched."""

    instead: Mapping[Key, Instead] = field(default_factory=dict)
    until: float = math.inf  # when the run is over, in seconds of the process
    noting: bool = False  # whether first values are kept
    first: dict[Key, Any] = field(default_factory=dict)
    # the names of each statement, and of each function as its latest statement has them: one that
    # is written within another reads the names of both
    scope: dict[Key, Mapping[str, Any]] = field(default_factory=dict)
    latest: dict[Key, Mapping[str, Any]] = field(default_factory=dict)
    scopes: dict[Key, dict[str, Any]] = field(default_factory=dict)  # as they were first
    steps: Counter[int] = field(default_factory=Counter)  # statements that ran, of each rule

    def seen(self, key: Key, value: Any, names: dict[str, Any]) -> Any:
        """An expression has been evaluated."""
        if self.noting and key not in self.first:
            self.first[key] = _copy(value)
        if key in self.instead:
            code, place = self.instead[key]
            return eval(code, names, dict(self.scope[place]))  # noqa: S307 (names of the author's)
        return value

    def here(
        self, key: Key, within: Key, own: Mapping[str, Any], function: Key | None = None
    ) -> None:
        """A statement, a lambda or a step of a comprehension runs.

        Arguments:
            key: what it is known by.
            within: the function around it whose names it reads, too.
            own: the names that are bound there.
            function: the function whose statement it is.
        """
        scope = self.scope[key] = {**self.latest.get(within, {}), **own}
        if function is not None:
            self.latest[function] = scope
        if time.process_time() > self.until:
            raise TimeoutError("a loop that does not end")
        self.steps[key[0]] += self.noting
        if self.noting and key not in self.scopes:
            self.scopes[key] = {name: _copy(value) for name, value in scope.items()}


def _copy(value: Any) -> Any:
    """What is computed next may write there; an array of numpy's as a tensor."""
    if hasattr(value, "__array_interface__") and hasattr(value, "dtype"):
        with suppress(TypeError):  # of no numbers
            return torch.tensor(value) if value.ndim else value.item()
    if isinstance(value, torch.Tensor) and value.numel() <= _MOST:
        return value.detach().clone()
    return value


# Copies of a rule in which each call asks what to call, or all tell what they do -----------------

# What is called there: with a value, with the names of a statement, with names bound for an
# expression alone, with what is about to be called, and with an operator and its operands, of which
# the first may have a method for it.
SEEN, HERE, WITHIN, CALLED = "__seen__", "__here__", "__within__", "__called__"
OPERATED = "__operated__"
_OPERATORS: Mapping[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.MatMult: "matmul",
}  # fmt: skip
# These bind names of their own.
LONE = (ast.DictComp, ast.GeneratorExp, ast.Lambda, ast.ListComp, ast.SetComp)


class Asking(ast.NodeTransformer):
    """Wraps what is called."""

    def generic_visit(self, node: ast.AST) -> Any:
        made: Any = super().generic_visit(node)
        if isinstance(made, ast.Call):
            made.func = _call(CALLED, made.func)
        if isinstance(made, ast.BinOp) and type(made.op) in _OPERATORS:
            name = ast.Constant(_OPERATORS[type(made.op)])
            made = _call(OPERATED, name, made.left, made.right)
        return made


class Telling(Asking):
    """Wraps expressions, and announces statements."""

    def __init__(self, numbers: Mapping[ast.AST, int], keep: Collection[int]) -> None:
        self._numbers, self._keep = numbers, keep
        self._functions = [-1]  # those that a node is in
        self._lone: list[int] = []  # lambdas and comprehensions of the latest one

    def visit(self, node: ast.AST) -> Any:
        number = self._numbers.get(node, -1)
        made: Any = self._within(node, number)
        return self._told(number, made) if number in self._keep else made

    def _within(self, node: ast.AST, number: int) -> Any:
        """A node whose parts are wrapped."""
        lone, self._lone = self._lone, self._lone
        if isinstance(node, ast.FunctionDef):
            self._functions.append(number)
            self._lone = []
        elif isinstance(node, LONE):
            self._lone = [*lone, number]
        made: Any = self.generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(made, name, None)
            if isinstance(block, list):
                setattr(made, name, [s for one in block for s in self._announced(one)])
        if isinstance(node, ast.FunctionDef):
            self._functions.pop()
        self._lone = lone
        return made

    def _announced(self, statement: ast.stmt) -> Iterator[ast.stmt]:
        number = self._numbers.get(statement)
        if number is not None:
            yield ast.Expr(_call(HERE, number, *self._functions[:-3:-1], _call("locals")))
        yield statement

    def _told(self, number: int, value: ast.expr) -> ast.Call:
        """An expression that tells its value, and the names that are bound for it alone."""
        made = _call(SEEN, number, value)
        if self._lone:
            made.func = _call(WITHIN, _call("locals"), self._lone[-1], self._functions[-1])
        return made


def _call(name: str, *args: int | ast.expr) -> ast.Call:
    values = [ast.Constant(a) if isinstance(a, int) else a for a in args]
    return ast.Call(ast.Name(name, ast.Load()), values, [])
