"""``--inside``: what no recording holds is checked in the program's own process, at its end."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from tests.copies import run_python
from tests.scripts import prints_numbers
from tests.specimens.ranks import ReducesCotangent

from pullback.cli import main
from pullback.cli._inside import _task
from pullback.cli._run import run_tasks
from pullback.recording import Record
from pullback.recording._recorder import Call
from pullback.recording.locator import Locator
from pullback.report import make_console

PROGRAM = """
import atexit
import gc
import os
import sys

atexit.register(lambda: print("frozen", gc.get_freeze_count()))

import torch

class Held:
    __slots__ = ("factor",)

    def __init__(self, factor):
        self.factor = factor

    def __del__(self):
        pass

class Base(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, held, *, power=1):
        ctx.factor = held.factor
        return x * held.factor

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.factor, None

class Lost(Base):
    pass

class Deadly(Base):
    @staticmethod
    def backward(ctx, cotangent):
        if cotangent.dtype == torch.float64:
            os._exit(9)
        return cotangent * ctx.factor, None

def train():
    class Local(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, cotangent):
            return 3 * ctx.saved_tensors[0] * cotangent

    x = torch.tensor([0.5, 2.0], requires_grad=True)
    held = Held(2.0)
    (Base.apply(x, held) + Deadly.apply(x, held) + Local.apply(x)).sum().backward()
    if os.fork() == 0:  # another process that ends as Python does
        Base.apply(x, held)
        sys.exit(0)
    os.wait()
    if os.fork() == 0:
        Lost.apply(x, held)
        os._exit(0)
    os.wait()
    print("trained", sys.argv[1])

train()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def test_a_program_checks_what_it_applied_with_its_objects(folder, capfd) -> None:
    words = ["check", "--inside", "--clauses", "linear,derivative", "--gradient", "exact"]
    words += ["--json", "out.json", "--calls", "2", "--max-mebibytes", "1.5", "--eager"]
    assert main([*words, "--", "python", "train.py", "--lr"]) == 1
    out = capfd.readouterr().out
    assert out.count("trained --lr") == 1
    assert set(re.findall("frozen .*", out)) == {"frozen 0"}  # the program ends as without us
    data = json.loads(Path("out.json").read_text())
    found = {item["function"].rpartition(":")[2]: item for item in data["functions"]}
    assert set(found) == {"Base", "Deadly", "train.<locals>.Local"}
    assert found["Base"]["ok"]
    crash = [item for item in found["Deadly"]["findings"] if item["verdict"] == "crashes"]
    assert "status 9" in crash[0]["detail"]
    local = found["train.<locals>.Local"]
    assert local["function"] == f"{folder / 'train.py'}:train.<locals>.Local"
    assert (local["ok"], local["gradient"]) == (False, "exact")
    record = "--calls 2 --max-mebibytes 1.5 --eager"
    again = f"pullback check --inside --only '{local['function']}' --clauses linear,derivative"
    assert local["rerun"] == f"{again} --gradient exact {record} -- python train.py --lr"
    (lost,) = data["not_checked"]
    assert lost["function"] == f"{folder / 'train.py'}:Lost"
    assert "os._exit" in lost["reason"]
    assert not Path(".pullback").exists()


def assert_comes_again(function, said) -> None:
    """The script of a finding runs the program again, and prints the numbers of the finding."""
    findings = [item for item in function["findings"] if item["verdict"] == "broken"]
    assert findings
    for finding in findings:
        assert "F, recorded = rerun_call(" in " ".join(finding["repro"].split())
        assert not finding["repro"].startswith("#")
        Path("repro.py").write_text(finding["repro"])
        done = run_python("repro.py")
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(said) == 1
        assert prints_numbers(done.stdout, finding)


@pytest.mark.usefixtures("copied_programs")
def test_what_no_recording_can_hold_is_checked_where_it_ran(capfd) -> None:
    words = ["check", "--clauses", "linear,derivative", "--gradient", "exact"]
    assert main([*words, "--json", "out.json", "--", "python", "train.py", "--lr"]) == 1
    out = capfd.readouterr().out
    assert out.count("trained --lr") == 1
    data = json.loads(Path("out.json").read_text())
    found = {item["function"].rpartition(":")[2]: item for item in data["functions"]}
    assert set(found) == {"Base", "Deadly", "train.<locals>.Local"}
    assert found["Base"]["ok"]
    assert not found["train.<locals>.Local"]["ok"]
    assert_comes_again(found["train.<locals>.Local"], "trained --lr")
    base = f"pullback check --inside --only {Path.cwd() / 'train.py'}:Base "
    assert found["Base"]["rerun"].startswith(base)
    (lost,) = data["not_checked"]
    assert "type __main__.Held has no plain form" in lost["reason"]


@pytest.mark.usefixtures("copied_programs")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("shape", ["x = 1", "def f():", "if __name__ == '__main__':"])
def test_what_no_name_leads_to_is_checked_where_it_ran(shape, tmp_path, capfd) -> None:
    body = PROGRAM.partition("class Base")[2].partition("class Lost")[0]
    body = f"class Base{body}".replace("held.factor", "held")
    code = f"import torch\n{body}\nBase.apply(torch.ones(2, requires_grad=True), 2.0)\n"
    if shape != "x = 1":
        lines = [f"    {line}" for line in code.splitlines()]
        code = "\n".join([shape, *lines, "f()" if shape == "def f():" else ""])
        (tmp_path / "program.py").write_text(code)
    program = ["python", "-c", code] if shape == "x = 1" else ["python", "program.py"]
    assert main(["check", "--clauses", "linear", "--", *program]) == 0
    assert "checked where it ran (1): " in capfd.readouterr().out


@pytest.mark.parametrize(
    "words",
    [["x"], ["--no-isolate", "--", "python", "p.py"], ["-o", "a.pt", "--", "python", "p.py"]],
    ids=" ".join,
)
def test_what_cannot_go_with_it_is_refused(words, capsys) -> None:
    assert main(["check", "--inside", *words]) == 2
    assert "--inside" in capsys.readouterr().err


QUANTISED = """
import torch

class Packed(torch.nn.Parameter):
    def __new__(cls, data, scale):
        made = torch.Tensor._make_subclass(cls, data, False)
        made.scale = scale
        return made

    def __deepcopy__(self, memo):
        return Packed(self.data.clone(), self.scale)

class Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, packed):
        ctx.weight = packed.data.to(x.dtype) * packed.scale
        return x @ ctx.weight

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent @ ctx.weight.T, None

packed = Packed(torch.randint(-8, 8, (3, 2), dtype=torch.int8), 0.25)
Multiply.apply(torch.randn(4, 3, requires_grad=True), packed).sum().backward()
"""


@pytest.mark.usefixtures("copied_programs")
def test_a_tensor_of_a_class_of_its_own_is_kept_inside(tmp_path) -> None:
    (tmp_path / "program.py").write_text(QUANTISED)
    words = ["check", "--inside", "--clauses", "derivative,linear,fake", "--gradient", "exact"]
    assert main([*words, "--json", "out.json", "--", sys.executable, "program.py"]) == 0
    [report] = json.loads((tmp_path / "out.json").read_text())["functions"]
    assert {f["clause"]: f["verdict"] for f in report["findings"]} == {
        "derivative": "holds",
        "linear": "holds",
        "fake": "lacking",  # of the numbers of another class; torch itself is whole at the end
    }


def test_a_call_on_ranks_is_checked_on_as_many() -> None:
    record = Record(ReducesCotangent, Locator.of(ReducesCotangent))
    record.calls = [Call((torch.arange(6.0).view(2, 3).requires_grad_(),), {}, [], 24, ranks=2)]
    task = _task(record, "")
    assert task.ranks is not None
    _, [ranks] = task.ranks()
    [first], [second] = ranks.inputs(0), ranks.inputs(1)
    assert second.requires_grad
    assert sorted(first.flatten().tolist()) == sorted(second.flatten().tolist())
    assert not torch.equal(first, second)
    [outcome] = run_tasks([task], make_console(), isolate="copy", clauses=None)
    assert outcome.report["distributed"].verdict == "broken"
    record.calls[0].ranks = 1
    assert _task(record, "").ranks is None
