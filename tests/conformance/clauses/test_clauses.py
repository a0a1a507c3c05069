"""Every right specimen passes, every wrong one is caught by the clause it breaks."""

from collections import Counter

import pytest
from tests.specimens.right import edges, manners, numbers, smooth
from tests.specimens.wrong import calculus, calls, hidden, machines, memory

from pullback.conformance import check
from pullback.conformance.clauses import CLAUSES

WRONG = [
    specimen for part in (calculus, memory, calls, machines, hidden) for specimen in part.SPECIMENS
]
RIGHT = [*smooth.SPECIMENS, *edges.SPECIMENS]
ELSEWHERE = [clause.id for clause in CLAUSES if clause.id != "compile"]


@pytest.mark.parametrize(
    "specimen", [*RIGHT, *numbers.SPECIMENS, *manners.SPECIMENS], ids=lambda specimen: specimen.id
)
def test_a_right_specimen_is_not_flagged(specimen):
    report = check(
        specimen.function, *specimen.inputs(), gradient=specimen.gradient, clauses=ELSEWHERE
    )
    assert report.ok, f"flagged, seed {report.seed}\n{report}"


@pytest.mark.parametrize("specimen", RIGHT, ids=lambda specimen: specimen.id)
def test_a_right_specimen_is_not_flagged_when_compiled(specimen):
    report = check(
        specimen.function, *specimen.inputs(), gradient=specimen.gradient, clauses="compile"
    )
    assert report.ok, f"flagged, seed {report.seed}\n{report}"


def test_there_are_thirty_right_specimens():
    assert len({specimen.function for specimen in RIGHT}) >= 30


@pytest.mark.parametrize("specimen", WRONG, ids=lambda specimen: specimen.id)
def test_a_wrong_specimen_is_caught_by_its_clause(specimen):
    report = check(
        specimen.function, *specimen.inputs(), gradient=specimen.gradient, clauses=specimen.clause
    )
    finding = report[specimen.clause]
    told = f"not caught, seed {report.seed}\n{report}"
    if specimen.verdict:
        assert finding.verdict == specimen.verdict, told
    assert finding.verdict.is_bad != bool(specimen.verdict), told
    assert report.ok == bool(specimen.verdict)
    assert finding.hint
    assert finding.source.split(":")[0].endswith(".py")


def test_every_clause_has_two_wrong_specimens():
    counts = Counter(specimen.clause for specimen in [*WRONG, *machines.ON_A_GPU])
    assert {clause.id: counts[clause.id] for clause in CLAUSES if counts[clause.id] < 2} == {}
