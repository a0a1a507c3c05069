"""The pytest plugin, in runs of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.copies import run_python

TESTS = """
import torch

class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, cotangent):
        return {factor} * ctx.saved_tensors[0] * cotangent

def test_one():
    Wrong.apply(torch.tensor([0.5, 2.0, 3.0], requires_grad=True)).sum().backward()

def test_two():
    Wrong.apply(torch.full((2, 2), 0.7, requires_grad=True)).sum().backward()
"""
FIXTURE = """
import pytest
import torch
from pullback.errors import BrokenContractError
from test_functions import Wrong

def test_right(check_function):
    assert check_function(torch.sin, torch.randn(3), clauses="derivative").ok

def test_wrong(check_function):
    with pytest.raises(BrokenContractError, match="derivative"):
        check_function(Wrong, torch.randn(3), clauses="derivative")
"""


def run(folder: Path, *words: str, found: bool = False) -> subprocess.CompletedProcess:
    """Run the tests of a folder with this plugin, `found` as it is installed, in a new Python.

    Or named, and alone, in a Python that has imported torch.
    """
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    if not found:
        command += ["-p", "pullback.pytest_plugin", "-p", "xdist.plugin"]
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        return run_python(*command, folder=folder, environment=environment)
    command += ["-p", "no:langsmith_plugin"]  # takes seconds to import
    return subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "test_functions.py").write_text(TESTS.format(factor=3))
    return tmp_path


QUICK = ("--pullback", "--pullback-clauses", "derivative,linear")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", [(), ("-n1",)], ids=["one process", "xdist"])
def test_a_broken_function_fails_the_run(folder, workers) -> None:
    done = run(folder, *QUICK, *workers, "--pullback-html", "out.html")
    assert "2 passed" in done.stdout
    assert "test_functions:Wrong" in done.stdout
    assert "derivative broken" in done.stdout
    assert done.returncode == 1
    assert "1 of 1 Function" in (folder / "out.html").read_text()


@pytest.mark.slow
def test_a_worker_that_a_test_kills_is_named(folder) -> None:
    killing = "import os\n\ndef test_kills():\n    os._exit(3)\n"
    (folder / "test_functions.py").write_text(TESTS.format(factor=2) + killing)
    done = run(folder, *QUICK, "-n1")
    assert "not checked worker gw0: it died" in done.stdout
    assert "1 failed" in done.stdout


def test_a_right_function_leaves_the_run_alone(folder) -> None:
    (folder / "test_functions.py").write_text(TESTS.format(factor=2))
    done = run(folder, *QUICK, found=True)
    assert done.returncode == 0, done.stdout
    assert "Every clause holds" in done.stdout


HALF = """
import torch

class Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, up, down):
        ctx.down = down
        return x * up
    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.down, None, None

def test_it():
    Half.apply(torch.randn(3, requires_grad=True), 1.0, 0.5).sum().backward()
    Half.apply(torch.randn(2, requires_grad=True), 0.5, 1.0).sum().backward()
"""


def test_what_one_call_shows_of_the_intent_goes_for_all(folder) -> None:
    (folder / "test_functions.py").write_text(HALF)
    done = run(folder, "--pullback", "--pullback-clauses", "derivative,linear")
    assert done.returncode == 0, done.stdout


def test_without_the_option_nothing_is_checked(folder) -> None:
    (folder / "test_functions.py").write_text("def test_nothing():\n    pass\n")
    done = run(folder)
    assert done.returncode == 0
    assert "1 passed" in done.stdout
    assert "pullback" not in done.stdout


def test_a_run_without_functions_says_so(folder) -> None:
    (folder / "test_functions.py").write_text("def test_nothing():\n    pass\n")
    done = run(folder, *QUICK)
    assert "applied no custom Function" in done.stdout
    assert done.returncode == 0


def test_an_unknown_clause_is_a_usage_error(folder) -> None:
    done = run(folder, "--pullback", "--pullback-clauses", "nope")
    assert done.returncode == 4
    assert "no such clause" in done.stderr


OF_A_CHECK = """
import torch
import pullback
from test_functions import Wrong

class Other(Wrong):
    pass

def test_ours():
    report = pullback.check(Other, torch.randn(3, dtype=torch.float64), clauses="derivative")
    assert not report.ok
"""


def test_the_probes_of_a_check_are_no_calls_of_the_tests(folder) -> None:
    (folder / "test_ours.py").write_text(OF_A_CHECK)
    done = run(folder, *QUICK)
    assert "1 of 1 Functions broken (test_functions:Wrong)" in done.stdout, done.stdout


def test_the_fixture(folder) -> None:
    (folder / "test_fixture.py").write_text(FIXTURE)
    done = run(folder, "test_fixture.py")
    assert "2 passed" in done.stdout, done.stdout


def test_the_plugin_imports_nothing_heavy() -> None:
    code = "import sys, pullback.pytest_plugin; print(sorted({'torch', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
