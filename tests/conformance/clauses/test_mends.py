"""Every mend that a report prints mends: each clause has something broken, and the same mended."""

import pytest
from tests.specimens import clauses, mends

from pullback.conformance import check
from pullback.conformance.clauses import CLAUSES

MENDS = [*mends.MENDS, *clauses.MENDS]
# What it says can be tried on a GPU only.
ON_A_GPU = {"cuda-graph"}
# torch says so of every operator that vmap finds no rule for.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


def test_every_clause_has_a_mend_that_was_tried():
    assert {mend.clause for mend in MENDS} == {clause.id for clause in CLAUSES} - ON_A_GPU


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
