"""`pullback track -- python train.py`, on a program that knows nothing of it."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pullback.cli._track import app
from pullback.errors import ArgumentError
from pullback.tracking import read_run

PROGRAM = """
import sys, torch
from torch import nn
torch.manual_seed(0)
scale = float(sys.argv[1])
model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(inplace=True), nn.Linear(7, 3))
with torch.no_grad():
    model[0].weight.mul_(scale)
compiled = torch.compile(model, backend="aot_eager") if "compile" in sys.argv else model
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


def run(program: Path, name: str, *arguments: str) -> tuple[int, Path, str]:
    folder = program.parent
    recording = folder / f"{name}.jsonl"
    command = ["--every", "2", "--jsonl", str(recording), "--html", str(folder / f"{name}.html")]
    result = CliRunner().invoke(app, [*command, "--", sys.executable, str(program), *arguments])
    return result.exit_code, recording, result.output


def test_a_program_is_tracked_and_two_runs_compared(program: Path) -> None:
    code, one, text = run(program, "one", "1.0")
    assert (code, "10 tensors" in text) == (0, True), text
    series = {(s.key.name, s.key.direction): s for s in read_run(one).series}
    names = {"Sequential", "Sequential.0", "Sequential.1", "Sequential.2", "MSELoss"}
    assert set(series) == {(n, d) for n in names for d in ("forward", "backward")}
    assert series["Sequential.0", "backward"].points.steps.tolist() == [0, 2, 4]
    assert "Sequential.0" in (program.parent / "one.html").read_text()
    _, two, _ = run(program, "two", "1.0")
    _, three, _ = run(program, "three", "32.0")
    runner = CliRunner()
    assert runner.invoke(app, ["diff", str(one), str(two)]).exit_code == 0
    moved = runner.invoke(app, ["diff", str(one), str(three)])
    assert moved.exit_code == 1
    assert "Sequential.0" in moved.output
    assert runner.invoke(app, ["diff", str(one), str(three), "--threshold", "30"]).exit_code == 0


def test_a_compiled_program(program: Path) -> None:
    code, recording, text = run(program, "compiled", "1.0", "compile")
    assert code == 0, text
    assert len(read_run(recording).series) == 10


def test_a_program_that_dies_keeps_its_code_and_its_steps(program: Path) -> None:
    code, recording, _ = run(program, "dead", "1.0", "die")
    assert code == 7
    (series,) = [
        s for s in read_run(recording).series if str(s.key) == "MSELoss" and not s.key.order
    ]
    assert series.points.steps.tolist() == [0, 2]


@pytest.mark.parametrize("command", [["bash", "x.sh"], ["python-that-is-not-there", "x.py"]])
def test_what_is_no_python_program_is_refused(command: list[str], tmp_path: Path) -> None:
    arguments = ["--jsonl", str(tmp_path / "a.jsonl"), "--", *command]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, ArgumentError)
