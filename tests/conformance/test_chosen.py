"""Which clauses are run, and that a report says what was left out."""

import pytest
from tests.specimens._specimen import normal
from tests.specimens.right.smooth import Cube

from pullback.conformance import CLAUSES, Report, check, select_clauses
from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.report import merge_reports, render_json, render_page

FEW = "derivative, linear,form"


def test_a_text_with_commas_is_taken_as_on_the_command_line():
    assert [finding.clause for finding in check(Cube, normal(2), clauses=FEW)] == [
        "derivative",
        "linear",
        "form",
    ]
    assert [clause.id for clause in select_clauses(FEW, "form")] == ["derivative", "linear"]
    assert len(select_clauses(without="compile")) == len(CLAUSES) - 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"clauses": "derivative,linera"}, ArgumentError),
        ({"without": "complie"}, ArgumentError),
        ({"clauses": "linear", "without": ["linear"]}, ArgumentError),
        ({"clauses": ""}, ArgumentError),
        ({"without": 3}, ArgumentTypeError),
    ],
)
def test_what_is_no_choice_is_refused(options, error):
    with pytest.raises(error):
        check(Cube, normal(2), **options)


@pytest.mark.parametrize("isolate", [False, "copy"])
def test_the_report_says_what_was_left_out(isolate):
    report = check(Cube, normal(2), clauses=FEW, without="linear", isolate=isolate)
    assert report.without == ("linear",)
    assert "linear" not in report
    assert "without linear" in str(report).splitlines()[0]
    assert Report.from_json(report.to_json()) == report
    assert merge_reports([report, report]).without == ("linear",)
    assert "Left out as asked: linear." in render_page([report])
    assert '"without": [\n' in render_json([report])
    assert check(Cube, normal(2), clauses=FEW).without == ()


@pytest.mark.parametrize("isolate", [False, "copy"])
def test_each_clause_is_told_before_it_runs(isolate):
    told = []
    check(
        Cube, normal(2), clauses="derivative,linear", isolate=isolate, on_start=told.append,
        on_finding=lambda finding: told.append(f"{finding.clause} {finding.verdict}"),
    )  # fmt: skip
    rest = [word for word in told if word not in ("starts", "prepare", "infer")]
    assert told[0] == ("starts" if isolate else "prepare")
    assert rest == ["derivative", "derivative holds", "linear", "linear holds"]
