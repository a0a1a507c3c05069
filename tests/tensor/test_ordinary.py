"""A hundred ordinary Functions: what second order can ask of them is right, and hardly refused."""

import collections

import pytest
from tests.tensor.ordinary.answers import of
from tests.tensor.ordinary.table import ROWS

every = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


@pytest.mark.sampled(14)
@every
def test_right_or_refused_by_name(row):
    answers = of(row)
    failed = [answer for answer in answers if answer.verdict in ("wrong", "foreign")]
    assert not failed, "\n".join(f"{answer}: {answer.why}" for answer in failed)
    assert all(a.verdict == "right" for a in answers if a.question == "first_order")


@pytest.mark.slow
def test_a_hundred_functions_are_answered():
    assert len(ROWS) >= 100
    answers = [answer for row in ROWS for answer in of(row)]
    failed = [answer for answer in answers if answer.verdict in ("wrong", "foreign")]
    assert not failed, "\n".join(f"{answer}: {answer.why}" for answer in failed)
    counts = collections.Counter(answer.verdict for answer in answers)
    refused = "\n".join(f"{a}: {a.why}" for a in answers if a.verdict != "right")
    assert counts["right"] >= 0.98 * len(answers), f"{dict(counts)}\n{refused}"
