"""One clause a file, each in the table, each with its promise, why and mend."""

import importlib
from pathlib import Path

import pytest

from pullback.conformance import CLAUSES, Clause, clauses

FILES = [p for p in Path(clauses.__file__).parent.glob("*.py") if not p.name.startswith("_")]


def test_the_table_has_a_row_for_each_file() -> None:
    assert sorted(clause.id.replace("-", "_") for clause in CLAUSES) == sorted(
        file.stem for file in FILES
    )


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_is_one_clause_named_as_it_is(file) -> None:
    module = importlib.import_module(f"pullback.conformance.clauses.{file.stem}")
    [name] = module.__all__
    clause = getattr(module, name)
    assert isinstance(clause, Clause)
    assert clause.id.replace("-", "_") == file.stem


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.id)
def test_a_clause_speaks_in_sentences(clause) -> None:
    for text in (clause.promise, clause.why, clause.breach, clause.mend):
        assert text.endswith((".", ")."))
        assert "  " not in text
    assert clause.promise[0].isupper() or clause.promise.startswith("`")
    assert clause.breach[0].islower()
