"""What is printed is the data, whatever a terminal library would make of it."""

from dataclasses import replace

import pytest

from pullback.report import (
    Finding,
    Report,
    Verdict,
    make_console,
    print_problems,
    print_table,
    render_page,
)

NAMES = ["train:Fire", "train:fire:smile", "p:[bold]x[b]", r"p:a\[b]", ":heart:"]


def broken(name):
    return Report(name, "exact", False, (Finding("form", Verdict.BROKEN, name),), 0)


@pytest.mark.parametrize("name", NAMES)
def test_no_emoji_and_no_markup(name, capsys):
    console = make_console()
    print_table([broken(name)], console)
    print_problems(broken(name), name, console)
    assert capsys.readouterr().out.count(name) == 4  # row, heading, detail, rerun
    assert str(broken(name)).count(name) == 2
    assert broken(name).to_text(verbose=True).count(name) == 3


def test_later_causes_are_told_by_their_mend_and_all_of_them_when_asked(capsys):
    findings = [
        Finding(c, Verdict.BROKEN, c, f"1 {c}", "2", hint=f"do {c}") for c in ("form", "state")
    ]
    report = Report("m:F", "exact", False, tuple(findings), 0)
    print_problems(report, "", make_console())
    out = capsys.readouterr().out
    assert "1 form" in out
    assert "1 state" not in out
    assert "do state" in out
    print_problems(report, "", make_console(), verbose=True)
    assert "1 state" in capsys.readouterr().out


def test_plain_training_is_told_of_before_other_uses():
    def told(name, *clauses):
        found = [Finding(c, v, "") for c, v in clauses]
        return Report(name, "exact", False, tuple(found), 0)

    broken, crashes = Verdict.BROKEN, Verdict.CRASHES
    trained = told("m:B", ("values", broken), ("double", broken), ("undefined", crashes))
    assert [f.clause for f in trained.causes] == ["undefined", "values", "double"]
    others = told("m:A", ("double", broken), ("autocast", broken), ("rank", crashes))
    right = told("m:0", ("form", Verdict.HOLDS))
    assert sorted((right, others, trained), key=lambda r: r.rank) == [trained, others, right]


@pytest.mark.parametrize(("fails", "first"), [("", "compile"), ("transform", "double")])
def test_compiled_training_is_told_of_before_other_uses_and_a_compiled_transform_is_one(
    fails, first
):
    found = [Finding(c, Verdict.BROKEN, "") for c in ("double", "compile", "compositions")]
    found[1] = replace(found[1], fails=fails)
    assert Report("m:F", "exact", False, tuple(found), 0).causes[0].clause == first


def test_a_wrong_first_gradient_is_told_before_what_others_have_to_do_harm_by():
    clauses = ("alias", "stale", "derivative", "mutation")
    found = [Finding(clause, Verdict.BROKEN, "") for clause in clauses]
    found += [Finding("leak", Verdict.BROKEN, "", cause="alias")]
    report = Report("m:F", "exact", False, tuple(found), 0)
    causes = ["derivative", "alias", "stale", "mutation"]
    assert [f.clause for f in report.causes] == causes
    assert [f.clause for f in report.problems] == [*causes, "leak"]  # as --verbose prints them


def test_what_holds_is_counted_and_named_when_asked(capsys):
    good = [Finding(f"clause-{k}", Verdict.HOLDS, "") for k in range(12)]
    wrong = Report("m:F", "exact", False, (Finding("form", Verdict.BROKEN, ""), *good), 0)
    trained = Report("training of /bin/python t.py", "", False, (good[0],), 0)
    print_table([wrong, trained], make_console())
    out = capsys.readouterr().out
    assert "The other 12 clauses hold or do not apply (--verbose has them)." in out
    assert "t.py" not in out  # it has none of the columns
    print_table([wrong, trained], make_console(), verbose=True)
    assert "clause-11" in capsys.readouterr().out


def test_colours_are_forced_into_a_log_and_no_cursor(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("COLUMNS", raising=False)
    console = make_console()
    assert console.is_terminal
    assert not console.is_interactive
    assert console.width == 100


BIDI = "\u202e\u2066\u200f"


def test_what_turns_text_round_is_written_out():
    finding = Finding("form", Verdict.BROKEN, BIDI, *[BIDI] * 3, 0, *[BIDI] * 4, accepted="")
    report = Report(f"{BIDI}:F", "exact", False, (finding,), 0, constants=(BIDI,), unfinished=BIDI)
    page = render_page(
        [report], not_checked=[(BIDI, BIDI)], not_imported=[BIDI], command=BIDI, partial=BIDI,
        reruns={report.function: BIDI},
    )  # fmt: skip
    assert not set(BIDI) & set(page)
    assert not set(BIDI) & set(str(report))


def test_beside_what_is_broken_refusals_are_counted(capsys):
    refused = [Finding(name, Verdict.LACKING, "") for name in ("forward", "vmap", "fake")]
    wrong = Report("m:F", "exact", False, (Finding("form", Verdict.BROKEN, ""), *refused), 0)
    print_table([wrong], make_console())
    out = " ".join(capsys.readouterr().out.split())
    assert (
        "The other 3 clauses hold or do not apply, or refuse clearly: forward, vmap, fake." in out
    )
    print_table([wrong], make_console(), verbose=True)
    assert "m:F       ✗ ○ ○ ○" in capsys.readouterr().out


def test_what_is_untidy_is_told_in_a_line(capsys):
    finding = Finding("form", Verdict.UNTIDY, "It is summed.", "(3,)", "(4, 3)", "argument 1")
    print_table([Report("m:F", "surrogate", True, (finding,), 0)], make_console())
    out = capsys.readouterr().out
    line = "form untidy in m:F: It is summed. (input argument 1, expected (3,), got (4, 3))"
    assert out.count(line) == 1


@pytest.mark.parametrize("columns", ["60", "100", "200"])
def test_a_script_is_printed_as_it_is_however_wide_the_terminal(monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", columns)
    script = f"# {'word ' * 19}end\nif True:\n    print('[b]x[/b]', {'1 + ' * 20}1)"
    finding = Finding("form", Verdict.BROKEN, "f", repro=script)
    print_problems(Report("m:F", "exact", False, (finding,), 0), "", make_console(), verbose=True)
    assert f"\n{script}\n" in capsys.readouterr().out
