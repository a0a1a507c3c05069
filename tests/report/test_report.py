"""Reports: verdicts, tables, JSON."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from pullback.errors import ArgumentError, BrokenContractError
from pullback.report import Finding, Report, Verdict, merge_reports
from pullback.report._junit import render_junit


def report(*verdicts):
    findings = tuple(
        Finding(f"clause-{k}", verdict, f"[bold]detail {k}[/bold]", input="args[0]['w']")
        for k, verdict in enumerate(verdicts)
    )
    return Report("package.module:Name", "exact", True, findings, 3, 0.5, {"torch": "2"})


@pytest.mark.parametrize("verdict", list(Verdict))
def test_ok_is_neither_broken_nor_crashes(verdict):
    assert report(Verdict.HOLDS, verdict).ok == (verdict not in (Verdict.BROKEN, Verdict.CRASHES))


def test_json_round_trip():
    one = report(*Verdict)
    assert Report.from_json(one.to_json()) == one


@pytest.mark.parametrize("text", ["", "[]", "3", "{}", '{"findings": [{"verdict": "maybe"}]}', "{"])
def test_other_json_is_refused(text):
    with pytest.raises(ArgumentError, match="no JSON of a report"):
        Report.from_json(text)


def test_the_weakest_intent_that_a_call_shows_goes_for_all():
    exact, weaker = report(Verdict.BROKEN), replace(report(Verdict.HOLDS), gradient="surrogate")
    for both in ([exact, weaker], [weaker, exact]):
        assert merge_reports(both).ok
    assert not merge_reports([replace(exact, inferred=False), weaker]).ok  # as it is declared


def test_a_script_is_never_cut():
    script = "print(1)  # \x1b\n" * 3000
    one = Report("a:F", "exact", False, (Finding("form", Verdict.BROKEN, "", repro=script),), 0)
    whole = script.replace("\x1b", "\\x1b")
    assert one["form"].repro == whole
    assert Report.from_json(one.to_json())["form"].repro == whole
    junit = ElementTree.fromstring(render_junit([one])).find(".//failure").text
    assert junit.endswith(whole)


def test_findings_are_found_by_clause():
    one = report(Verdict.HOLDS, Verdict.BROKEN)
    assert one["clause-1"].verdict is Verdict.BROKEN
    assert "clause-1" in one
    assert "other" not in one
    assert len(one) == 2
    with pytest.raises(KeyError):
        one["other"]


def test_the_table_keeps_brackets_and_colons_as_they_are():
    text = report(Verdict.HOLDS, Verdict.BROKEN).to_text(verbose=True)
    assert "package.module:Name: 1 problem(s), gradient exact (inferred), seed 3" in text
    assert "[bold]detail 0[/bold]" in text
    assert "args[0]['w']" in text


def test_raising():
    report(Verdict.HOLDS, Verdict.LACKING, Verdict.SKIPPED).raise_if_broken()
    with pytest.raises(BrokenContractError, match="clause-1, clause-2"):
        report(Verdict.HOLDS, Verdict.BROKEN, Verdict.CRASHES).raise_if_broken()


def test_the_page_names_the_function_and_its_faults():
    page = report(Verdict.HOLDS, Verdict.BROKEN).to_html()
    assert "package.module:Name" in page
    assert "clause-1" in page


def test_a_notebook_shows_a_piece_of_html_in_its_own_colours():
    page = report(Verdict.BROKEN, Verdict.HOLDS)._repr_html_()
    assert "package.module:Name" in page
    assert "1 holds, 1 broken" in page or "1 broken, 1 holds" in page
    assert "args[0][&#39;w&#39;]" in page
    for what in ("<script", "<style", "<html", "color: #", "http"):
        assert what not in page


def test_nothing_from_a_report_is_markup_in_a_notebook():
    evil = "<script>alert(1)</script>"
    finding = Finding(evil, Verdict.BROKEN, evil, evil, evil, evil, 0, evil, evil, evil)
    page = Report(evil, "exact", True, (finding,), 0)._repr_html_()
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 11
