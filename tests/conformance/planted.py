"""`python -m tests.conformance.planted`: plant faults in right Functions, and follow what is said.

Each fault is one slip in a backward: a sign, an operator, a factor or a term that is lost, another
name, number or function, gradients at each other's place. What `pullback.check` prints as the
mend is made in the source, as a person would, and the Function is checked again. A mend that does
not mend, while it says that backward is right with it, is false.
"""

import argparse
import ast
import copy
import inspect
import random
import re
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tests.specimens._specimen import Specimen
from tests.specimens.right import domains, edges, manners, smooth, values

from pullback.conformance import check

__all__ = ["SPECIMENS", "faults_of", "followed", "planted"]

EDIT = re.compile(r"`([^`]*)` for `([^`]*)` at ([^:`]+):(\d+)(?:, column (\d+))?")
CLAUSES = ("linear", "derivative")
_OPERATORS: dict[type[ast.AST], ast.operator] = {
    ast.Add: ast.Sub(), ast.Sub: ast.Add(), ast.Mult: ast.Div(), ast.Div: ast.Mult(),
}  # fmt: skip
_FUNCTIONS = {"sin": "cos", "cos": "sin", "exp": "log", "log": "exp", "sum": "mean",
              "mean": "sum", "sigmoid": "tanh", "tanh": "sigmoid", "sqrt": "square"}  # fmt: skip


def _source(function: Any) -> str:
    """The source of a backward that can be written anew; empty if it cannot."""
    backward = inspect.getattr_static(function, "backward", None)
    backward = backward.__func__ if isinstance(backward, staticmethod) else backward
    if not inspect.isfunction(backward) or backward.__closure__:
        return ""
    tree: Any = ast.parse(textwrap.dedent(inspect.getsource(backward))).body[0]
    tree.decorator_list = []
    return ast.unparse(tree)


def _is_usable(specimen: Specimen) -> bool:
    exact = specimen.gradient in (None, "exact") and inspect.isclass(specimen.function)
    own = exact and issubclass(specimen.function, torch.autograd.Function)
    return own and "backward" in vars(specimen.function) and bool(_source(specimen.function))


SPECIMENS = [
    specimen
    for part in (smooth, edges, manners, domains, values)
    for specimen in part.SPECIMENS
    if _is_usable(specimen)
]


def faults_of(specimen: Specimen) -> Iterator[tuple[str, str]]:
    """What kind of slip, and the source of backward with it."""
    source = _source(specimen.function)
    tree: Any = ast.parse(source).body[0]
    nodes = list(ast.walk(tree))
    names = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for number, node in enumerate(nodes):
        for kind, other in _slips(node, sorted(names)):
            mutant = copy.deepcopy(tree)
            place = list(ast.walk(mutant))[number]
            written = ast.unparse(_Replaced(place, other).visit(mutant))
            if written != source and _binds_first(ast.parse(written).body[0]):
                yield kind, written


def _binds_first(tree: Any) -> bool:
    """Whether each statement reads names of its own that are bound before it alone."""
    own = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    bound = {arg.arg for arg in ast.walk(tree) if isinstance(arg, ast.arg)}
    for statement in tree.body:
        names = [n for n in ast.walk(statement) if isinstance(n, ast.Name)]
        stored = {n.id for n in names if isinstance(n.ctx, ast.Store)}
        simple = isinstance(statement, (ast.Assign, ast.Return))
        if simple and ({n.id for n in names} - stored) & own - bound:
            return False
        bound |= stored
    return True


def _slips(node: Any, names: list[str]) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.BinOp):
        if type(node.op) in _OPERATORS:
            yield "operator", ast.BinOp(node.left, _OPERATORS[type(node.op)], node.right)
            lost = "term" if isinstance(node.op, (ast.Add, ast.Sub)) else "factor"
            yield f"{lost} lost", node.left
        if isinstance(node.op, ast.Pow) and isinstance(node.right, ast.Constant):
            yield "power", ast.BinOp(node.left, ast.Pow(), ast.Constant(node.right.value + 1))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield "sign", node.operand
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value:
        yield "number", ast.Constant(2 * node.value)
    elif isinstance(node, ast.Attribute) and node.attr in _FUNCTIONS:
        yield "function", ast.Attribute(node.value, _FUNCTIONS[node.attr], ast.Load())
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
        yield from (("name", ast.Name(n, ast.Load())) for n in names if n != node.id)
    elif isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load) and len(node.elts) > 1:
        yield "exchanged", ast.Tuple([node.elts[1], node.elts[0], *node.elts[2:]], ast.Load())


class _Replaced(ast.NodeTransformer):
    def __init__(self, place: ast.AST, other: ast.expr) -> None:
        self._place, self._other = place, other

    def visit(self, node: ast.AST) -> Any:
        return self._other if node is self._place else super().visit(node)


def planted(function: Any, source: str, folder: Path, name: str) -> Any:
    """A Function with another backward, in a file of its own."""
    path = folder / f"{name}.py"
    path.write_text(source + "\n")
    scope = dict(inspect.unwrap(function.backward).__globals__)
    exec(compile(source, str(path), "exec"), scope)
    backward = scope["backward"]
    backward.__module__ = f"planted.{name}"
    return type(function)(function.__name__, (function,), {"backward": staticmethod(backward)})


def followed(specimen: Specimen, source: str, folder: Path, name: str) -> tuple[str, str]:
    """How it ends, and what was said: mended, false, not named, or nothing is wrong."""
    wrong = planted(specimen.function, source, folder, name)
    report = check(wrong, *specimen.inputs(), clauses=CLAUSES, gradient="exact", timeout=10)
    bad = [f for f in report if f.verdict in ("broken", "crashes")]
    if not bad:
        return "nothing is wrong", ""
    edits, lines = EDIT.findall(bad[0].hint), source.splitlines()
    if not edits:
        return "not named", bad[0].detail
    for new, old, _, number, column in reversed(edits):
        line = lines[int(number) - 1]
        at = int(column) - 1 if column else line.index(old)
        lines[int(number) - 1] = line[:at] + new + line[at + len(old) :]
    mended = planted(specimen.function, "\n".join(lines), folder, f"{name}_mended")
    again = check(mended, *specimen.inputs(), clauses=CLAUSES, gradient="exact", timeout=10)
    right = not any(f.verdict in ("broken", "crashes") for f in again)
    alone = "alone is right" in bad[0].detail
    return "mended" if right or alone else "false", bad[0].hint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--verbose", action="store_true", help="show what is not named, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    started, ends = time.perf_counter(), Counter[str]()
    every = [(s, *fault) for s in SPECIMENS for fault in faults_of(s)]
    random.Random(options.seed).shuffle(every)
    with tempfile.TemporaryDirectory() as folder:
        for number, (specimen, kind, source) in enumerate(every[: options.faults]):
            end, said = followed(specimen, source, Path(folder), f"fault_{number}")
            ends[end] += 1
            if end == "false" or (options.verbose and end != "mended"):
                print(f"{end.upper()}: {specimen.id}, {kind}\n{source}\n{said}\n", flush=True)
    told = ", ".join(f"{count} {end}" for end, count in ends.most_common())
    seconds = time.perf_counter() - started
    print(f"{sum(ends.values())} of {len(every)} faults in {len(SPECIMENS)} Functions: {told}; "
          f"seed {options.seed}, {seconds:.0f} s")  # fmt: skip
    sys.exit(ends["false"] > 0)


if __name__ == "__main__":
    main()
