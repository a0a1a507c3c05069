"""Every right specimen passes, every wrong one is caught by the clause it breaks."""

from collections import Counter

import pytest
from tests.specimens.wrong import calculus, calls, machines, memory

from pullback.conformance import check
from pullback.conformance.clauses import CLAUSES

WRONG = [*calculus.SPECIMENS, *memory.SPECIMENS, *calls.SPECIMENS, *machines.SPECIMENS]


@pytest.mark.parametrize("specimen", WRONG, ids=lambda specimen: specimen.id)
def test_a_wrong_specimen_is_caught_by_its_clause(specimen):
    report = check(
        specimen.function, *specimen.inputs(), gradient=specimen.gradient, clauses=specimen.clause
    )
    finding = report[specimen.clause]
    assert finding.verdict.is_bad, f"not caught, seed {report.seed}\n{report}"
    assert not report.ok
    assert finding.hint
    assert finding.source.split(":")[0].endswith(".py")


def test_every_clause_has_two_wrong_specimens():
    counts = Counter(specimen.clause for specimen in [*WRONG, *machines.ON_A_GPU])
    assert {clause.id: counts[clause.id] for clause in CLAUSES if counts[clause.id] < 2} == {}
