"""Every mend that a report prints mends: each clause has something broken, and the same mended."""

import ast
import importlib
import inspect
from collections.abc import Iterator

import pytest
from tests.specimens import clauses, mends

from pullback.conformance import check
from pullback.conformance.clauses import CLAUSES
from pullback.conformance.probing._probe import Probe

MENDS = [*mends.MENDS, *clauses.MENDS]
# What it says can be tried on a GPU only.
ON_A_GPU = {"cuda-graph"}
# Wrong and mended Functions stand beside each other in tests/conformance/test_distributed.py.
ON_RANKS = {"distributed"}
# torch says so of every operator that vmap finds no rule for.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


CLAUSES_IN = "pullback.conformance.clauses."


def hints(name: str) -> Iterator[str]:
    """Every text of a module that is given as a hint, and that of its clause where none is."""
    module = importlib.import_module(name)
    known = vars(module)
    for call in ast.walk(ast.parse(inspect.getsource(module))):
        if not isinstance(call, ast.Call):
            continue
        called = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
        function = getattr(Probe, called, known.get(called))
        names = list(inspect.signature(function).parameters) if inspect.isfunction(function) else []
        names = names[1:] if names[:1] == ["self"] else names
        given = {**dict(zip(names, call.args, strict=False)),
                 **{word.arg: word.value for word in call.keywords}}  # fmt: skip
        if "hint" in given:
            yield from texts(given["hint"], known)
        elif "hint" in names and name.startswith(CLAUSES_IN):
            yield known[known["__all__"][0]].mend


def texts(node: ast.expr, known: dict) -> list[str]:
    """What an expression says, where it is a text or the name of one."""
    if isinstance(node, ast.Name):
        return [known[node.id]] if isinstance(known.get(node.id), str) else []
    if isinstance(node, ast.JoinedStr):
        parts = [getattr(part, "value", part) for part in node.values]
        return ["".join(p if isinstance(p, str) else "".join(texts(p, known)) for p in parts)]
    return [node.value] if isinstance(node, ast.Constant) and node.value else []


MODULES = {
    **{f"pullback.conformance.clauses.{clause.id.replace('-', '_')}": clause.id
       for clause in CLAUSES if clause.id not in ON_A_GPU},
    "pullback.conformance.evidence._special": "values",
    "pullback.conformance.probing._unwritten": "deterministic",
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_every_text_that_is_printed_was_tried(name):
    tried = [mend.says for mend in MENDS if mend.clause == MODULES[name]]
    said = list(hints(name))
    assert [text for text in said if not any(says in text for says in tried)] == []


def test_texts_are_found():
    assert sum(len(list(hints(name))) for name in MODULES) > 60


def test_every_clause_has_a_mend_that_was_tried():
    assert {mend.clause for mend in MENDS} == {c.id for c in CLAUSES} - ON_A_GPU - ON_RANKS


@pytest.mark.sampled(8)
@pytest.mark.parametrize("number", range(len(MENDS)), ids=lambda k: f"{MENDS[k].clause}-{k}")
def test_what_is_said_mends(number):
    mend = MENDS[number]
    before = check(mend.broken, *mend.inputs(), clauses=mend.clause)[mend.clause]
    assert before.verdict not in ("holds", "skipped"), str(before)
    assert mend.says in before.hint, before.hint
    after = check(mend.mended, *(mend.given or mend.inputs)(), clauses=mend.clause)[mend.clause]
    # A refusal by name is a way to mend, and a clause may no longer apply.
    assert after.verdict in ("holds", "lacking", "skipped"), str(after)
    assert after.verdict != before.verdict, str(after)
