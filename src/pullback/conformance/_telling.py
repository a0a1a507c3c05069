"""A copy of a rule in which each call asks what to call, or all tell what they do.

Then each expression tells its value, and each statement its names.
"""

import ast
from collections.abc import Collection, Iterator, Mapping
from typing import Any

__all__ = ["CALLED", "HERE", "LONE", "OPERATED", "SEEN", "WITHIN", "Asking", "Telling"]

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
