"""`pullback track -- python train.py`, on a program that knows nothing of it."""

import json
import sys
from pathlib import Path

import pytest

from pullback.cli import main
from pullback.cli._track import _OUR_PAGE, _OUR_RECORDING
from pullback.tracking import read_run
from pullback.tracking.watch._program import main as track_in_this_process

PROGRAM = """
import sys, torch
from torch import nn
torch.manual_seed(0)
scale = float(sys.argv[1])
model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(inplace=True), nn.Linear(7, 3))
with torch.no_grad():
    model[0].weight.mul_(scale)
compiled = torch.compile(model, backend="eager") if "compile" in sys.argv else model
loss = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    optimizer.zero_grad()
    loss(compiled(torch.randn(4, 5)), torch.zeros(4, 3)).backward()
    optimizer.step()
    if "die" in sys.argv and step == 3:
        import os
        os._exit(7)
assert __name__ == "__main__" and sys.argv[0].endswith("train.py")
assert not list(model.parameters())[0].grad.isnan().any()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def test_a_program_is_tracked_and_two_runs_compared(
    program: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As it is written in a shell, and into the files that it is given nothing of.
    monkeypatch.chdir(program.parent)
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "path", [*sys.path])
    # It dies in the middle, and keeps its code and its steps.
    assert main(["track", "--every", "2", "--", sys.executable, "train.py", "1.0", "die"]) == 7
    assert "10 tensors" in capsys.readouterr().out
    one = program.parent / "scales.jsonl"
    series = {(s.key.name, s.key.direction): s for s in read_run(one).series}
    names = {"Sequential", "Sequential.0", "Sequential.1", "Sequential.2", "MSELoss"}
    assert set(series) == {(n, d) for n in names for d in ("forward", "backward")}
    assert series["Sequential.0", "backward"].points.steps.tolist() == [0, 2]
    assert "Sequential.0" in (program.parent / "scales.html").read_text()
    for name in ("scales.html", "scales.jsonl"):
        (program.parent / "other").write_text("of somebody else")
        assert main(["track", f"--{name[7:]}", "other", "--", "python", "train.py"]) == 2
        assert "is not overwritten" in capsys.readouterr().err
        assert (program.parent / "other").read_text() == "of somebody else"
    other = program.parent / "compiled.jsonl"
    options = {"every": 2, "names": [], "history": 100, "jsonl": str(other), "title": "train.py"}
    track_in_this_process([json.dumps(options), str(program), "32.0", "compile"])
    (last,) = [s for s in read_run(other).series if str(s.key) == "MSELoss" and not s.key.order]
    assert (len(read_run(other).series), last.points.steps.tolist()) == (10, [0, 2, 4])
    assert main(["track", "diff", str(one), str(one)]) == 0
    capsys.readouterr()
    assert main(["track", "diff", str(one), str(other)]) == 1
    assert "Sequential.0" in capsys.readouterr().out
    assert main(["track", "diff", str(one), str(other), "--threshold", "30"]) == 0


@pytest.mark.parametrize(
    "command", [["bash", "x.sh"], ["python-that-is-not-there", "x.py"], ["python"], []]
)
def test_what_is_no_python_program_is_refused(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["track", "--jsonl", str(tmp_path / "a.jsonl"), "--", *command]) == 2
    refusal = capsys.readouterr().err
    assert "program" in refusal
    assert "expected" in refusal
    assert not (tmp_path / "a.jsonl").exists()


def recorded_before(folder: Path) -> dict[str, str]:
    """What an earlier run has left."""
    (folder / "scales.html").write_text(_OUR_PAGE)
    (folder / "scales.jsonl").write_text(_OUR_RECORDING)
    return {name: (folder / name).read_text() for name in ("scales.html", "scales.jsonl")}


@pytest.mark.usefixtures("copied_programs")
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("program_words", "status", "said"),
    [
        (["missing.py"], 2, "no such program"),
        (["python_missing.py"], 2, "no such program"),
        ([sys.executable, "missing.py"], 2, "no such program"),
        ([sys.executable, "-W", "error", "missing.py"], 2, "no such program"),
        ([sys.executable, "-m", "no_module_of_this_name"], 1, "Nothing was recorded"),
        ([sys.executable, "-c", "raise SystemExit(5)"], 5, "Nothing was recorded"),
        ([sys.executable, "-c", "pass"], 2, "called no module of torch in its own process"),
    ],
)
@pytest.mark.parametrize("earlier", [False, True])
def test_what_records_nothing_leaves_what_was_there(
    program_words: list[str],
    status: int,
    said: str,
    earlier: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    kept = recorded_before(tmp_path) if earlier else {}
    assert main(["track", "--", *program_words]) == status
    printed = capsys.readouterr().err
    assert said in printed
    assert "earlier run" not in printed
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == kept


@pytest.mark.usefixtures("copied_programs")
def test_that_an_earlier_run_is_replaced_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recorded_before(tmp_path)
    code = "import torch; torch.nn.Linear(2, 2)(torch.ones(2))"
    assert main(["track", "--", sys.executable, "-c", code]) == 0
    said = capsys.readouterr().err
    assert "scales.html of an earlier run was written anew" in said
    assert "scales.jsonl of an earlier run was written anew" in said


@pytest.mark.usefixtures("copied_programs")
def test_names_that_match_nothing_are_refused(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(program.parent)
    kept = recorded_before(program.parent)
    words = ["--name", "zzz*", "--", sys.executable, "train.py"]
    assert main(["track", *words, "1.0"]) == 2
    refusal = capsys.readouterr().err
    assert "No module has such a name" in refusal
    assert "zzz*" in refusal
    assert main(["track", *words, "no number"]) == 1  # what the program says comes first
    assert {name: (program.parent / name).read_text() for name in kept} == kept
