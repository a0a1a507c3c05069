"""What a pipeline trusts: exit status, baseline, SARIF, annotations, reports that say it all."""

import json
import tomllib
from pathlib import Path

import pytest
import torch

from pullback.cli import main
from pullback.conformance import check
from pullback.errors import ArgumentError
from pullback.report import Baseline

pytestmark = pytest.mark.usefixtures("no_edits")

FUNCTIONS = """
import torch

class Good(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, cotangent):
        return 2 * ctx.saved_tensors[0] * cotangent

class Wrong(Good):
    @staticmethod
    def backward(ctx, cotangent):
        return 3 * ctx.saved_tensors[0] * cotangent

class Picky(Good):
    @staticmethod
    def forward(ctx, x):
        raise ValueError("nothing will do")
"""
QUICK = ["--clauses", "derivative,linear", "--no-isolate", "--gradient", "exact"]
GIVEN = ["--input", "torch.tensor([0.5, 2.0])", *QUICK]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    (tmp_path / "train.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def test_the_status_tells_apart_broken_unchecked_and_ok(capsys) -> None:
    assert main(["check", "train.py:Good", *GIVEN]) == 0
    assert main(["check", "train.py:Wrong", *GIVEN]) == 1
    # Where forward refuses inputs that were typed, that is the verdict; guessed ones tell nothing.
    assert main(["check", "train.py:Picky", *GIVEN]) == 1
    assert main(["check", "train.py:Picky", *QUICK]) == 3
    assert "1 not checked" in capsys.readouterr().out
    assert main(["check", "train.py:Picky", *QUICK, "--allow-unchecked"]) == 0
    assert main(["check", "train.py:Picky", "train.py:Wrong", *QUICK]) == 3  # guesses accuse nobody
    empty = ["--input", "torch.ones(0, 3)", *QUICK]
    assert main(["check", "train.py:Wrong", *empty]) == 3
    out = capsys.readouterr().out
    assert "every input is empty" in out
    assert "No clause applies" in out
    assert "0 Functions checked, nothing is known, 1 not checked" in out


def test_a_baseline_accepts_what_is_known_and_nothing_else(capsys) -> None:
    words = ["check", "train.py:Wrong", *GIVEN, "--baseline", "known.toml"]
    assert main(words) == 2  # it is not there
    assert main([*words, "--update-baseline"]) == 0
    (entry,) = tomllib.loads(Path("known.toml").read_text())["accepted"]
    assert (entry["function"], entry["clause"]) == ("train.py:Wrong", "derivative")
    capsys.readouterr()
    assert main(words) == 1  # nobody has looked into it yet
    assert "no reason in known.toml: train.py:Wrong derivative broken" in capsys.readouterr().out
    text = Path("known.toml").read_text().replace(entry["reason"], 'upstream "issue" 7 é')
    Path("known.toml").write_text(text.replace('"upstream "issue" 7', r'"upstream \"issue\" 7'))
    capsys.readouterr()
    outputs = ["--json", "out.json", "--html", "out.html", "--sarif", "out.sarif"]
    assert main([*words, *outputs, "--junit", "out.xml"]) == 0
    out = capsys.readouterr().out
    assert 'derivative broken, upstream "issue" 7 é' in out
    assert "1 accepted" in out
    (result,) = json.loads(Path("out.sarif").read_text())["runs"][0]["results"]
    assert result["suppressions"][0]["justification"] == 'upstream "issue" 7 é'
    assert json.loads(Path("out.json").read_text())["ok"] is True
    assert "known and accepted" in Path("out.html").read_text()
    assert "<skipped" in Path("out.xml").read_text()
    # Another finding of the same Function is new.
    Path("train.py").write_text(FUNCTIONS.replace("3 * ctx.saved_tensors[0]", "1 + 3"))
    assert main(words) == 1
    # What is mended is stale, and taken out; a Function that was not looked at keeps its entry.
    Path("train.py").write_text(FUNCTIONS.replace("3 * ctx", "2 * ctx"))
    capsys.readouterr()
    assert main(words) == 0
    assert "train.py:Wrong derivative broken was not found any more" in capsys.readouterr().out
    assert main(["check", "train.py:Good", *GIVEN, "--baseline", "known.toml"]) == 0
    assert "stale" not in capsys.readouterr().out
    assert main([*words, "--update-baseline"]) == 0
    assert tomllib.loads(Path("known.toml").read_text()) == {"accepted": []}


def test_what_cannot_be_checked_is_accepted_by_name(capsys) -> None:
    words = ["check", "train.py:Picky", *QUICK, "--baseline", "known.toml"]
    assert main([*words, "--update-baseline"]) == 0
    assert main(words) == 3
    path = Path("known.toml")
    path.write_text(path.read_text().replace("not looked into yet", "no public inputs"))
    capsys.readouterr()
    assert main(words) == 0
    assert "accepted" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    ["accepted = 3", "[[accepted]]\nfunction = 'a:F'", "not toml",
     "[[accepted]]\nfunction='a:F'\nclause='leak'\nverdict='broken'\nreason=' '",
     "[[accepted]]\nfunction='a:F'\nclause='leak'\nverdict='brokn'\nreason='x'",
     "[[accepted]]\nfunction='a:F'\nclause='leak'\nverdict='holds'\nreason='x'",
     "[[accepted]]\nfunction='a:F'\nclause='leak'\nverdict='unchecked'\nreason='x'",
     "[[accepted]]\nfunction='a:F'\nverdict='broken'\nreason='x'"],
)  # fmt: skip
def test_what_is_no_baseline_is_refused(text) -> None:
    Path("known.toml").write_text(text)
    with pytest.raises(ArgumentError, match="is not a baseline"):
        Baseline.read(Path("known.toml"))


def test_a_clause_that_is_none_is_refused_in_a_baseline(capsys) -> None:
    entry = "[[accepted]]\nfunction='a:F'\nclause='{}'\nverdict='broken'\nreason='x'\n"
    words = ["check", "train.py:Good", *GIVEN, "--baseline", "known.toml"]
    Path("known.toml").write_text(entry.format("derivatve"))
    assert main(words) == 2
    assert "derivatve" in capsys.readouterr().err
    # Of the contract, of a program's training.
    Path("known.toml").write_text(entry.format("derivative") + entry.format("not-held"))
    assert main(words) == 0


def test_a_folder_is_no_baseline(capsys) -> None:
    assert main(["check", "train.py:Good", "--baseline", "."]) == 2
    said = capsys.readouterr().err
    assert "is not a baseline" in said
    assert "There is no" not in said


def test_findings_stand_at_their_line(capsys) -> None:
    words = ["check", "train.py:Wrong", *GIVEN, "--sarif", "out.sarif", "--annotations"]
    assert main(words) == 1
    line = FUNCTIONS[: FUNCTIONS.index("class Wrong")].count("\n") + 1
    shown = f"::error file=train.py,line={line},title=Wrong%3A derivative broken::"
    assert shown in capsys.readouterr().out
    log = json.loads(Path("out.sarif").read_text())
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    (result,) = run["results"]
    assert result["ruleId"] == run["tool"]["driver"]["rules"][0]["id"] == "derivative"
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "train.py", "uriBaseId": "ROOT"}
    assert place["region"] == {"startLine": line}


# Reports --------------------------------------------------------------------------------------


class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shift):
        ctx.save_for_backward(x)
        return x * x + shift.detach().sum() * 0

    @staticmethod
    def backward(ctx, cotangent):
        return 3 * ctx.saved_tensors[0] * cotangent, None


class AsksTheWrongOne(torch.autograd.Function):
    """Asks for the second argument where the third is meant."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x * weight + bias

    @staticmethod
    def backward(ctx, cotangent):
        x, weight = ctx.saved_tensors
        bias = cotangent if ctx.needs_input_grad[1] else None
        return cotangent * weight, cotangent * x, bias


def test_a_report_says_it_all() -> None:
    x = torch.tensor([0.5, 2.0])
    report = check(Wrong, x, torch.ones(2), clauses="derivative", gradient="exact")
    assert not report
    assert report.constants == ("args[1]",)
    assert "constants args[1]" in str(report)
    assert report["derivative"].repro
    text = report.to_text(verbose=True)
    assert all(line in text for line in report["derivative"].repro.splitlines())
    right = check(torch.sin, x, clauses="derivative")
    assert right
    assert right.ok


def test_an_empty_tensor_shows_nothing() -> None:
    report = check(Wrong, torch.ones(0), torch.ones(0))
    assert not [finding for finding in report if finding.verdict == "holds"]
    assert "nothing was shown" in " ".join(str(report).split())


def test_a_dropped_gradient_is_found_though_nobody_marked_an_input() -> None:
    points = [torch.randn(3, generator=torch.Generator().manual_seed(k)) for k in range(3)]
    report = check(AsksTheWrongOne, *points, clauses="needs-input-grad")
    assert report["needs-input-grad"].verdict == "broken"
    assert report["needs-input-grad"].input == "args[2]"
