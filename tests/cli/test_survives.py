"""What a checked Function prints, says, forks, replaces or waits for never gets at the command."""

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from tests.processes import is_alive, wait_for

from pullback.cli import main
from pullback.conformance import Verdict, check

FUNCTIONS = r'''
import os
import sys
import time
import torch

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, cotangent):
        return 2 * ctx.saved_tensors[0] * cotangent

class Loud(Square):
    """Prints megabytes, leaves a process behind, and fails with what a terminal obeys."""
    @staticmethod
    def backward(ctx, cotangent):
        for stream in (sys.stdout, sys.stderr):
            stream.write("x" * 3_000_000 + "\n")
            stream.flush()
        if os.fork() == 0:
            with open("forked", "a") as file:
                file.write(f"{os.getpid()}\n")
            time.sleep(600)
            os._exit(0)
        raise OSError("\x1b[31mred \x1b]0;owned\x07 \udc80 " + "y" * 1_000_000)

class Silent(Square):
    """Its error cannot even be printed."""
    class Error(Exception):
        def __str__(self):
            raise RuntimeError("no words")
    @staticmethod
    def backward(ctx, cotangent):
        raise Silent.Error

class Endless(Square):
    @staticmethod
    def forward(ctx, x):
        time.sleep(600)
'''


@pytest.fixture
def copied_workers():
    """None: a copy of this process would print to where pytest reads."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    yield tmp_path
    sys.modules.pop("functions", None)


@dataclass
class Done:
    """What a command said."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def run(folder, capfd):
    def run(*words: str) -> Done:
        status = main(list(words))
        return Done(status, *capfd.readouterr())

    return run


def assert_all_ended() -> None:
    """What a Function has forked was killed; it may be slow to die."""
    forked = Path("forked").read_text().split()
    wait_for(lambda: not any(map(is_alive, forked)), 10)


def test_a_module_of_bad_manners_is_checked_whole(run) -> None:
    words = [
        "--clauses",
        "linear,form",
        "--timeout",
        "1",
        "--junit",
        "out.xml",
        "--json",
        "out.json",
    ]
    done = run("check", "functions", *words, "--html", "out.html", "--sarif", "out.sarif")
    # A hang while inputs are guessed, and Functions that never had a backward: not checked.
    assert "Endless: its trial calls gave no answer within 1 s" in done.stdout
    assert done.returncode == 3, done.stdout + done.stderr
    for text in (done.stdout, done.stderr, *(Path(f"out.{x}").read_text() for x in
                 ("xml", "json", "html", "sarif"))):  # fmt: skip
        assert not set("\x1b\x07\udc80") & set(text)
        assert len(text) < 300_000
    ElementTree.parse("out.xml")
    data = json.loads(Path("out.json").read_text())
    assert {item["function"] for item in data["not_checked"]} == {
        "functions:Endless", "functions:Loud", "functions:Silent"
    }  # fmt: skip
    assert_all_ended()


def test_what_a_function_says_is_printed_harmlessly(run) -> None:
    given = ["--input", "torch.randn(3)", "--clauses", "linear"]
    done = run("check", "functions:Loud", *given, "--json", "-")
    assert done.returncode == 1, done.stderr
    (finding,) = json.loads(done.stdout)["functions"][0]["findings"]
    assert finding["verdict"] == "crashes"
    assert r"\x1b[31mred" in finding["detail"]
    assert "\x1b" not in done.stdout + done.stderr
    assert_all_ended()
    done = run("check", "functions:Silent", *given)
    assert done.returncode == 1, done.stderr
    assert "linear crashes" in done.stdout


@pytest.mark.usefixtures("copied_programs")
def test_json_is_alone_on_stdout_whatever_is_printed(run) -> None:
    Path("train.py").write_text(
        "import torch\nfrom functions import Square\nprint('from the program')\n"
        "Square.apply(torch.ones(2, requires_grad=True)).sum().backward()\n"
    )
    Path("functions.py").write_text(FUNCTIONS + "\nprint('from the module')\n")
    words = ["check", "--json", "-", "--clauses", "linear", "--no-isolate"]
    done = run(*words, "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] is True
    assert "from the program" in done.stderr
    assert "from the module" in done.stderr


# Files ----------------------------------------------------------------------------------------

PROGRAM = """
import torch
from functions import Square
open("ran", "w").close()
Square.apply(torch.ones(2, requires_grad=True)).sum().backward()
"""


@pytest.mark.parametrize(
    "place", [".pullback is a link", ".pullback is a file", "calls.pt is a link", "no recording",
              "a folder", "a page that is a folder"]
)  # fmt: skip
def test_a_place_that_is_not_ours_is_refused_before_the_run(run, place) -> None:
    Path("train.py").write_text(PROGRAM)
    Path("precious").mkdir()
    Path("precious/calls.pt").write_text("precious")
    words = ["check"]
    if place == ".pullback is a link":
        os.symlink("precious", ".pullback")
    elif place == ".pullback is a file":
        Path(".pullback").write_text("precious")
    elif place == "calls.pt is a link":
        Path(".pullback").mkdir()
        os.symlink("../precious/calls.pt", ".pullback/calls.pt")
    elif place == "no recording":
        words = ["record", "-o", "precious/calls.pt"]
    elif place == "a folder":
        words = ["record", "-o", "precious"]
    else:
        words = ["check", "--html", "precious"]
    done = run(*words, "--", "python", "train.py")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "pullback: " in done.stderr
    assert "fault" not in done.stderr
    assert not Path("ran").exists()
    assert Path("precious/calls.pt").read_text() == "precious"
    assert sorted(entry.name for entry in Path("precious").iterdir()) == ["calls.pt"]


@pytest.mark.usefixtures("copied_programs")
def test_what_the_program_writes_meanwhile_stays(run) -> None:
    writes = PROGRAM.replace('"ran", "w"', '"ran.pt", "w"')
    Path("train.py").write_text(writes.replace(".close()", ".write('its own')"))
    done = run("record", "-o", "ran.pt", "--", "python", "train.py")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "is not overwritten" in done.stderr
    assert Path("ran.pt").read_text() == "its own"


@pytest.mark.usefixtures("copied_programs")
def test_what_stands_in_our_folder_stays(run) -> None:
    Path("train.py").write_text(PROGRAM)
    Path(".pullback").mkdir()
    Path(".pullback/.gitignore").write_text("mine\n")
    done = run("check", "--clauses", "linear", "--", "python", "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert Path(".pullback/.gitignore").read_text() == "mine\n"
    assert Path(".pullback/calls.pt").exists()


# In this process ------------------------------------------------------------------------------


class Untidy(torch.autograd.Function):
    """Changes whatever a process shares."""

    @staticmethod
    def forward(ctx, x):
        import gc

        import numpy as np

        os.chdir("/")
        os.environ["PULLBACK_TEST"] = "changed"
        torch.use_deterministic_algorithms(True)
        torch.autograd.set_detect_anomaly(True)
        torch.set_float32_matmul_precision("medium")
        sys.setrecursionlimit(3000)
        torch.set_printoptions(precision=2, sci_mode=True)
        np.set_printoptions(precision=2)
        np.seterr(all="ignore")
        gc.disable()
        return x * 2

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * 2


class Patches(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        torch.cumsum = torch.cumprod
        torch.nn.functional.relu = lambda value: value
        return x * 2

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * 2


def settings() -> tuple:
    import gc

    import numpy as np

    return (
        os.getcwd(), os.environ.get("PULLBACK_TEST"), torch.are_deterministic_algorithms_enabled(),
        torch.is_anomaly_enabled(), torch.get_float32_matmul_precision(), sys.getrecursionlimit(),
        repr(torch.tensor([1 / 3])), repr(np.array([1 / 3])), np.geterr(), gc.isenabled(),
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_a_check_in_this_process_leaves_it_as_it_was() -> None:
    before = settings()
    check(Untidy, torch.ones(2, dtype=torch.float64), clauses=["linear", "form"])
    assert settings() == before


@pytest.mark.parametrize("isolate", [False, "copy"])
def test_a_patched_function_of_torch_is_reported_once(isolate) -> None:
    before = torch.cumsum, torch.nn.functional.relu
    point = torch.ones(2, dtype=torch.float64)
    report = check(Patches, point, clauses=["linear", "form", "state"], isolate=isolate)
    assert (torch.cumsum, torch.nn.functional.relu) == before
    assert [finding.clause for finding in report.problems] == ["state"]
    assert "torch.cumsum" in report["state"].detail
    assert "torch.nn.functional.relu" in report["state"].detail
    assert check(Patches, point, clauses="linear", isolate=isolate)["linear"].verdict == "broken"


class HangsInTwoClauses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        if not x.is_contiguous():  # in `layout`
            time.sleep(600)
        return x * 2

    @staticmethod
    def backward(ctx, cotangent):
        if torch.is_grad_enabled():  # in `double`
            time.sleep(600)
        return cotangent * 2


@pytest.mark.slow
def test_the_time_of_all_clauses_is_limited() -> None:
    started = time.monotonic()
    point = torch.ones(2, dtype=torch.float64)
    chosen = ["derivative", "double", "form", "layout", "dtype"]
    report = check(
        HangsInTwoClauses, point, isolate="copy", timeout=1.5, clauses=chosen, gradient="exact"
    )
    assert time.monotonic() - started < 30
    crashed = [finding for finding in report if finding.verdict is Verdict.CRASHES]
    assert len(crashed) == 1
    assert "1.5 s" in crashed[0].detail
    assert "not run:" in report.unfinished
    assert not report
