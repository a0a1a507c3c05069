"""The house style that a linter does not know: length, asserts, names of files."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "pullback"
FILES = sorted(SOURCE.rglob("*.py"))
FILE_LINES = 400
FUNCTION_LINES = 40
# A longer file or function argues for itself in a comment that begins so.
ARGUMENT = "# Long:"

FACES = [path for path in FILES if path.name == "__init__.py" and path.parent != SOURCE]


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    """Not where the file is imported, which each process does that runs tests."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


def place(path: Path, node: ast.AST | None = None) -> str:
    line = "" if node is None else f":{getattr(node, 'lineno', 0)}"
    return f"{path.relative_to(SOURCE)}{line}"


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def lines_of_code(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of the body, from the first statement after the docstring."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return (node.end_lineno or 0) - body[0].lineno + 1 if body else 0


def narrows_a_type(test: ast.expr) -> bool:
    """`assert x is not None` and `assert isinstance(x, T)` speak to the type gate alone."""
    if isinstance(test, ast.Call):
        return isinstance(test.func, ast.Name) and test.func.id == "isinstance"
    return isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot)


def test_a_file_is_short_or_argues() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in FILES}
    long = [p for p, text in texts.items() if len(text.splitlines()) > FILE_LINES]
    assert [place(path) for path in long if ARGUMENT not in texts[path]] == []


def test_a_function_is_short_or_argues(trees: dict[Path, ast.Module]) -> None:
    long = [
        f"{place(path, node)} {node.name} has {lines_of_code(node)} lines"
        for path, tree in trees.items()
        for node in functions(tree)
        if lines_of_code(node) > FUNCTION_LINES
        and ARGUMENT not in (ast.get_source_segment(path.read_text(encoding="utf-8"), node) or "")
    ]
    assert long == []


def test_an_assert_only_narrows_a_type(trees: dict[Path, ast.Module]) -> None:
    asserts = [
        place(path, node)
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert) and not narrows_a_type(node.test)
    ]
    assert asserts == []


def test_an_init_only_re_exports(trees: dict[Path, ast.Module]) -> None:
    code = [
        f"{place(path, node)} {ast.unparse(node).splitlines()[0]}"
        for path in FACES
        for node in trees[path].body
        if not isinstance(node, ast.Import | ast.ImportFrom | ast.Assign | ast.Expr)
    ]
    assert code == []


def test_the_counter_counts() -> None:
    long = "def f():\n    '''one\n    two'''\n" + "    x = 1\n" * 41
    [node] = functions(ast.parse(long))
    assert lines_of_code(node) == 41
    assert not narrows_a_type(ast.parse("x > 0", mode="eval").body)
    assert narrows_a_type(ast.parse("x is not None", mode="eval").body)
