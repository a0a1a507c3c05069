"""Every right specimen passes, every wrong one is caught by the clause it breaks."""

from collections import Counter

import pytest
import torch
from tests.specimens.right import edges, manners, numbers, operators, sizes, smooth, values
from tests.specimens.wrong import calculus, calls, compositions, hidden, machines, memory
from tests.specimens.wrong import operators as wrong_operators
from tests.specimens.wrong import sizes as wrong_sizes
from tests.specimens.wrong import values as wrong_values

from pullback.conformance import check
from pullback.conformance.clauses import CLAUSES

_WRONG = (calculus, memory, calls, machines, hidden, compositions)
_LATER = (wrong_operators, wrong_sizes, wrong_values)
WRONG = [specimen for part in (*_WRONG, *_LATER) for specimen in part.SPECIMENS]
RIGHT = [*smooth.SPECIMENS, *edges.SPECIMENS]
MORE = [
    specimen for part in (numbers, manners, sizes, values, operators) for specimen in part.SPECIMENS
]
# torch says so of every operator that vmap finds no rule for.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")
ELSEWHERE = [clause.id for clause in CLAUSES if clause.id != "compile"]


@pytest.mark.parametrize("specimen", [*RIGHT, *MORE], ids=lambda specimen: specimen.id)
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
    if specimen.mended and torch.__version__ >= specimen.mended:
        assert report.ok, f"flagged, though torch answers rightly now\n{report}"
        return
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
