"""Every right specimen passes, every wrong one is caught by the clause it breaks."""

from collections import Counter

import pytest
import torch
from tests.fuzzing import examples, spread
from tests.specimens import clauses as of_clauses
from tests.specimens import ranks
from tests.specimens.right import (
    domains,
    edges,
    manners,
    numbers,
    operators,
    sizes,
    smooth,
    stopped,
    values,
)
from tests.specimens.wrong import (
    bases,
    calculus,
    calls,
    compositions,
    families,
    hidden,
    machines,
    memory,
)
from tests.specimens.wrong import domains as wrong_domains
from tests.specimens.wrong import operators as wrong_operators
from tests.specimens.wrong import sizes as wrong_sizes
from tests.specimens.wrong import stopped as wrong_stopped
from tests.specimens.wrong import values as wrong_values

from pullback.conformance import check
from pullback.conformance.clauses import CLAUSES

_WRONG = (bases, calculus, memory, calls, machines, hidden, compositions)
_LATER = (wrong_operators, wrong_sizes, wrong_values, wrong_domains, families, wrong_stopped)
WRONG = [specimen for part in (*_WRONG, *_LATER) for specimen in part.SPECIMENS]
WRONG += of_clauses.WRONG
RIGHT = [*smooth.SPECIMENS, *edges.SPECIMENS]
MORE = [
    specimen
    for part in (domains, numbers, manners, sizes, stopped, values, operators)
    for specimen in part.SPECIMENS
] + of_clauses.RIGHT
# torch says so of every operator that vmap finds no rule for.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")
ELSEWHERE = [clause.id for clause in CLAUSES if clause.id != "compile"]


EVERY = [*RIGHT, *MORE]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("number", range(len(EVERY)), ids=lambda number: EVERY[number].id)
def test_a_right_specimen_is_not_flagged(number):
    """By all clauses in `make fuzz`; in `make test` by a tenth of them, another one for each."""
    specimen = EVERY[number]
    clauses = spread(ELSEWHERE[number % 10 :] + ELSEWHERE[: number % 10], 10)
    report = check(
        specimen.function, *specimen.inputs(), gradient=specimen.gradient, clauses=clauses
    )
    assert report.ok, f"flagged, seed {report.seed}\n{report}"


# Compiling costs seconds each, and looks at how a Function is made, not at what it computes: one of
# each kind is enough in every run, and `make fuzz` compiles all.
KINDS_OF_CODE = {
    "Cube", "SplitSine", "composed", "MaximumWithIndex", "IdentityView", "DoubleInPlace",
    "ReverseGradient", "ComplexSquare",
}  # fmt: skip
ONE_OF_EACH = {s.function.__name__: s for s in RIGHT if s.function.__name__ in KINDS_OF_CODE}
COMPILED = RIGHT if examples(1) > 1 else list(ONE_OF_EACH.values())


def test_each_kind_of_code_is_among_the_compiled():
    assert {specimen.function.__name__ for specimen in COMPILED} >= KINDS_OF_CODE


@pytest.mark.sampled(8)
@pytest.mark.parametrize("specimen", COMPILED, ids=lambda specimen: specimen.id)
def test_a_right_specimen_is_not_flagged_when_compiled(specimen):
    report = check(
        specimen.function, *specimen.inputs(), gradient=specimen.gradient, clauses="compile"
    )
    assert report.ok, f"flagged, seed {report.seed}\n{report}"


def test_there_are_thirty_right_specimens():
    assert len({specimen.function for specimen in RIGHT}) >= 30


# Each takes longer than five others together, and others break the same clause: `make fuzz`.
DEAR = {
    "compile": "BatchedReversal ReversedTangent RoundThrough SurrogateTangent",
    "derivative": "InsistsAndHalves OneEntryOfMany OtherCommitment Scaled",
    "once": "OnceSplit",
}
IDS_OF_DEAR = {f"{clause}-{name}" for clause, names in DEAR.items() for name in names.split()}


def test_what_is_dear_is_there():
    assert {specimen.id for specimen in WRONG} >= IDS_OF_DEAR
    quick = Counter(one.clause for one in WRONG if one.id not in IDS_OF_DEAR)
    assert all(quick[clause] for clause in DEAR)


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("no_edits")
@pytest.mark.parametrize(
    "specimen",
    [pytest.param(one, marks=[pytest.mark.slow] * (one.id in IDS_OF_DEAR)) for one in WRONG],
    ids=lambda specimen: specimen.id,
)
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
    counts = Counter(specimen.clause for specimen in [*WRONG, *machines.ON_A_GPU, *ranks.WRONG])
    assert {clause.id: counts[clause.id] for clause in CLAUSES if counts[clause.id] < 2} == {}
