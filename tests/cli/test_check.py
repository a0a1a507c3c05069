"""``pullback check`` and ``pullback record`` on Functions, packages, recordings and programs."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from tests.copies import run_python
from tests.scripts import prints_numbers

from pullback.cli import main

FUNCTIONS = '''
import torch

class Good(torch.autograd.Function):
    """Right."""
    @staticmethod
    def forward(ctx, x, power):
        ctx.save_for_backward(x)
        ctx.power = power
        return x**power
    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent * ctx.power * x ** (ctx.power - 1), None

class Wrong(torch.autograd.Function):
    """Too large by a factor."""
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 3 * x * cotangent

class Half(torch.autograd.Function):
    """Right for one call, a deliberate surrogate at another."""
    @staticmethod
    def forward(ctx, x, up, down):
        ctx.down = down
        return x * up
    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.down, None, None

class Signs(torch.autograd.Function):
    """A straight-through estimator."""
    @staticmethod
    def forward(ctx, x):
        return x.sign()
    @staticmethod
    def backward(ctx, cotangent):
        return cotangent.clone()

class Fatal(torch.autograd.Function):
    """Kills the process in backward, in the double precision of a check only."""
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2
    @staticmethod
    def backward(ctx, cotangent):
        if ctx.saved_tensors[0].dtype == torch.float64:
            import os
            os._exit(9)
        return cotangent * 2

class Endless(torch.autograd.Function):
    """Hangs in a backward whose cotangent is not all ones."""
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, cotangent):
        import time
        while cotangent.ne(1).any():
            time.sleep(0.1)
        return cotangent * 2
'''


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with a module of Functions, which one stands in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    name = f"functions_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "name.txt").write_text(name)
    return tmp_path


@pytest.fixture
def module(folder) -> str:
    return (folder / "name.txt").read_text()


# The intent is told: to infer it takes longer than all else.
QUICK = ["--clauses", "derivative,linear", "--no-isolate", "--gradient", "exact"]


def test_a_right_function(module, capsys) -> None:
    words = ["check", f"{module}:Good", "--input", "torch.randn(3, 4), 2", *QUICK]
    assert main(words) == 0
    assert "1 Function checked, ok" in capsys.readouterr().out


def test_a_wrong_function_with_its_mend_and_rerun_line(module, capsys) -> None:
    words = ["check", f"{module}:Wrong", "--input", "torch.randn(3)", "--seed", "5", *QUICK]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert "✗" in out
    first = out.strip().partition("input")[0].split()
    assert " ".join(first[:3]) == f"{module}:Wrong (gradient: exact):"
    assert "derivative broken. The gradient of args[0] is not" in " ".join(first)
    assert "mend" in out
    # Whatever changes what is found is repeated.
    again = f"pullback check {module}:Wrong --input 'torch.randn(3)' --clauses derivative,linear"
    assert f"{again} --gradient exact --seed 5 --no-isolate" in out
    assert max(len(line) for line in out.splitlines() if "rerun" not in line) <= 100


def test_the_intent_is_handed_on(module, capsys) -> None:
    words = ["check", f"{module}:Wrong", "--input", "torch.randn(3)", *QUICK]
    assert main([*words, "--gradient", "surrogate"]) == 0
    assert "inferred" not in capsys.readouterr().out


def test_of_a_surrogate_it_is_said_that_no_derivative_is_judged(module, capsys) -> None:
    words = ["check", f"{module}:Signs", "--input", "torch.randn(9)", "--clauses", "form"]
    assert main([*words, "--no-isolate"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "inferred for 1, of 1 as a surrogate, whose derivative is not judged" in said


@pytest.mark.usefixtures("no_edits")
def test_inputs_are_found_when_none_are_given(module, capsys) -> None:
    assert main(["check", f"{module}:Wrong", *QUICK]) == 3  # what is guessed accuses nobody
    out = capsys.readouterr().out
    assert "derivative broken" in out
    assert f"guessed inputs of {module}:Wrong: (float64 (3, 4))" in out
    assert "With guessed inputs alone" in out
    assert f"pullback check {module}:Wrong --clauses derivative,linear --gradient exact" in out


@pytest.mark.usefixtures("no_edits")
def test_a_package_is_checked_whole(module, capsys) -> None:
    # Isolated: the module also holds Functions that hang and that end the process.
    words = ["check", module, "--clauses", "linear,derivative", "--timeout", "1"]
    assert main([*words, "--gradient", "exact"]) == 3
    out = capsys.readouterr().out
    assert out.index(":Wrong") < out.index(":Good")


@pytest.mark.usefixtures("no_edits")
def test_several_targets(module, capsys) -> None:
    assert main(["check", f"{module}:Good", f"{module}:Wrong", *QUICK]) == 3
    assert "2 Functions checked, 1 doubtful, with guessed inputs" in capsys.readouterr().out


def test_a_crash_is_a_verdict(module, capsys) -> None:
    words = ["check", f"{module}:Fatal", "--input", "torch.ones(2)", "--clauses", "linear"]
    assert main([*words, "--gradient", "exact"]) == 1
    out = capsys.readouterr().out
    assert "crashes" in out
    assert "status 9" in out


@pytest.mark.slow
def test_a_hang_is_a_verdict(module, capsys) -> None:
    words = ["check", f"{module}:Endless", "--input", "torch.ones(2)", "--clauses", "linear"]
    assert main([*words, "--gradient", "exact", "--timeout", "2"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "crashes" in out
    assert "no answer within 2 s" in out


def test_what_pullback_ships_holds(folder, capsys) -> None:
    assert main(["check", "--clauses", "linear", "--only", "scale"]) == 0
    assert "ok" in capsys.readouterr().out
    assert main(["check", "--clauses", "linear", "--only", "no such case"]) == 2


# Outputs --------------------------------------------------------------------------------------


def test_json_on_stdout_is_alone_there(module, capsys) -> None:
    words = ["check", f"{module}:Wrong", "--input", "torch.randn(3)", "--json", "-", *QUICK]
    assert main(words) == 1
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    assert data["ok"] is False
    assert data["functions"][0]["findings"][0]["verdict"] == "broken"
    assert data["functions"][0]["rerun"].startswith("pullback check")
    assert "derivative broken" in captured.err


@pytest.mark.usefixtures("no_edits")
def test_html_and_junit(module, folder, capsys) -> None:
    words = ["check", f"{module}:Wrong", f"{module}:Good", *QUICK]
    assert main([*words, "--html", "report.html", "--junit", "junit.xml"]) == 3
    assert "1 of 2 Functions" in Path("report.html").read_text()
    root = ElementTree.parse("junit.xml").getroot()
    suites = {suite.get("name"): suite for suite in root}
    assert suites[f"{module}:Wrong"].get("failures") == "1"
    assert suites[f"{module}:Good"].get("failures") == "0"
    failure = suites[f"{module}:Wrong"].find("testcase/failure")
    assert "import torch" in failure.text


def test_the_repro_runs_and_shows_it(module, folder, capsys) -> None:
    words = ["check", f"{module}:Wrong", "--input", "torch.randn(3)", "--json", "out.json", *QUICK]
    assert main(words) == 1
    (finding,) = [
        item
        for item in json.loads(Path("out.json").read_text())["functions"][0]["findings"]
        if item["verdict"] == "broken"
    ]
    assert len(finding["repro"].splitlines()) <= 60
    Path("repro.py").write_text(finding["repro"])
    done = run_python("repro.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


# Programs -------------------------------------------------------------------------------------

PROGRAM = """
import torch
from {module} import Good, Half

class Mine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, change):
        ctx.save_for_backward(x)
        return change(x)
    @staticmethod
    def backward(ctx, cotangent):
        return 5 * ctx.saved_tensors[0] * cotangent, None

def run():
    offset = torch.tensor(0.5)
    for step in range(4):
        x = torch.randn(3, requires_grad=True)
        Good.apply(x, 2).sum().backward()
        Half.apply(x, 1.0, 0.5).sum().backward()
        Half.apply(torch.randn(2, requires_grad=True), up=0.5, down=1.0).sum().backward()
        Mine.apply(x, lambda value: value * value + offset).sum().backward()
    print("trained")

if __name__ == "__main__":
    run()
"""


@pytest.mark.usefixtures("copied_programs")
def test_a_program_is_run_recorded_and_checked(module, folder, capfd) -> None:
    Path("train.py").write_text(PROGRAM.format(module=module))
    words = ["check", "--clauses", "derivative,linear", "--json", "out.json"]
    assert main([*words, "--", "python", "train.py"]) == 1
    out = capfd.readouterr().out
    assert "trained" in out
    assert "3 Functions checked, 1 broken" in out
    data = json.loads(Path("out.json").read_text())["functions"]
    by_name = {item["function"].rpartition(":")[2]: item for item in data}
    assert by_name["Good"]["ok"]
    # One call shows a surrogate, the other alone would look wrong: the intent is the Function's.
    assert (by_name["Half"]["gradient"], by_name["Half"]["inferred"]) == ("surrogate", True)
    assert by_name["Half"]["ok"]
    mine = by_name["Mine"]
    assert mine["function"] == f"{folder / 'train.py'}:Mine"
    assert Path(".pullback/.gitignore").read_text() == "*\n"
    # The repro loads the lambda from the recording, and with it the Function from the script.
    (finding,) = [item for item in mine["findings"] if item["verdict"] == "broken"]
    assert "F, recorded = load_call(" in finding["repro"]
    Path("repro.py").write_text(finding["repro"])
    done = run_python("repro.py")
    assert done.returncode == 0, done.stderr
    assert "trained" not in done.stdout
    assert prints_numbers(done.stdout, finding)
    # The rerun line checks it alone again, out of the kept recording and the script it names.
    rerun = mine["rerun"].split()[1:]
    assert rerun[-4:-2] == ["--script", str(folder / "train.py")]
    assert rerun[-2:] == ["--clauses", "derivative,linear"]
    assert main(rerun) == 1
    assert "1 Function checked, 1 broken" in capfd.readouterr().out


OF_TORCH_ALONE = """
import torch

SIZE = 70

class Mine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, cotangent):
        x, weight = ctx.saved_tensors
        return cotangent * weight, 2 * cotangent * x

if __name__ == "__main__":
    print("trained")
    given = (torch.randn(SIZE, SIZE, requires_grad=True) for _ in range(2))
    Mine.apply(*given).sum().backward()
"""


@pytest.mark.usefixtures("no_edits", "copied_programs")
def test_the_script_of_a_finding_needs_torch_and_the_recording_alone(folder, capfd) -> None:
    """And has the numbers of the finding, though they are too many to be written down."""
    Path("train.py").write_text(OF_TORCH_ALONE)
    words = ["check", "--clauses", "derivative,retain", "--json", "out.json"]
    assert main([*words, "--", "python", "train.py"]) == 1
    (found,) = json.loads(Path("out.json").read_text())["functions"]
    (finding,) = [item for item in found["findings"] if item["verdict"] == "broken"]
    script = finding["repro"]
    assert "import pullback" not in script
    assert "from pullback" not in script
    assert "calls.pt', weights_only=True)" in " ".join(script.split()).replace("', ", "', ")
    assert not script.startswith("#")
    Path("repro.py").write_text(script)
    done = run_python("repro.py")
    assert done.returncode == 0, done.stderr
    assert "trained" not in done.stdout
    number = finding["expected"].lstrip("[., ").partition(",")[0]
    assert f"{float(number):.4g}" in " ".join(
        f"{float(word.strip('[],')):.4g}" for word in done.stdout.split()
        if word.strip("[],-").replace(".", "").replace("e-", "").isdigit()
    )  # fmt: skip


IN_DOUBLE = """
import torch
import {module}

class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x @ torch.ones(x.shape[-1])
    @staticmethod
    def backward(ctx, cotangent):
        return torch.outer(cotangent, torch.ones(4))

if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    Sum.apply(torch.randn(3, 4, requires_grad=True)).sum().backward()
"""


@pytest.mark.usefixtures("copied_programs")
@pytest.mark.parametrize("apart", [[], ["--no-isolate"]], ids=["apart", "here"])
def test_new_tensors_are_made_as_the_program_makes_them(apart, module, folder, capfd) -> None:
    Path("train.py").write_text(IN_DOUBLE.format(module=module))
    words = ["check", "--clauses", "derivative,dtype", "--gradient", "exact", *apart]
    try:
        status = main([*words, "--", "python", "train.py"])
    finally:
        torch.set_default_dtype(torch.float32)
    assert status == 0, capfd.readouterr().out


@pytest.mark.usefixtures("copied_programs")
def test_record_and_check_in_two_steps(module, folder, capfd) -> None:
    Path("train.py").write_text(PROGRAM.format(module=module))
    assert main(["record", "-o", "calls.pt", "--calls", "1", "--", "python", "train.py"]) == 0
    assert "applied 8 times, 1 kept" in capfd.readouterr().err
    assert main(["check", "calls.pt", "--only", "Good", *QUICK]) == 0
    assert main(["check", "calls.pt", "--only", "Mine", *QUICK]) == 3
    assert f"--script {folder / 'train.py'}" in capfd.readouterr().out
    named = ["--script", "train.py", "--only", "Mine", *QUICK]
    assert main(["check", "calls.pt", *named]) == 1
    assert "derivative broken" in capfd.readouterr().out


@pytest.mark.usefixtures("no_edits")
def test_a_function_of_a_script_is_checked_without_running_it(module, folder, capfd) -> None:
    Path("train.py").write_text(PROGRAM.format(module=module).replace("change(x)", "x * x"))
    words = ["check", "train.py:Mine", *QUICK]
    for more, status in ((["--input", "torch.randn(3), None"], 1), ([], 3)):
        assert main([*words, *more]) == status
        out = capfd.readouterr().out
        assert "derivative broken" in out
        assert "trained" not in out


@pytest.mark.usefixtures("copied_programs")
def test_a_call_that_cannot_be_replayed_is_reported(module, folder, capfd) -> None:
    Path("train.py").write_text(
        f"import torch\nfrom {module} import Good, Wrong\n"
        "Wrong.apply(torch.tensor([0.5, 2.0], requires_grad=True))\n"
        "import os\nclass Two(float):\n    __slots__ = ()\n    def __del__(self): pass\n"
        "Good.apply(torch.ones(2, requires_grad=True), Two(2))\n"
        "os._exit(0)\n"  # nothing is checked at an end like that
    )
    words = ["check", "--clauses", "derivative", "--gradient", "exact"]
    assert main([*words, "--", "python", "train.py"]) == 1
    out = capfd.readouterr().out
    assert f"not checked {module}:Good" in out
    assert "has no plain form" in out
    assert "1 not checked" in out
