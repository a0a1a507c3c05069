"""The line that checks a Function again works as it is printed."""

import os
import shlex
import sys
from pathlib import Path

import pytest
from tests.copies import run_python

PACKAGE = """
import torch

class Call:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return self.factor * x

class Applied(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, call):
        ctx.call = call
        return call(x)

    @staticmethod
    def backward(ctx, cotangent):
        return ctx.call(ctx.call(cotangent)), None
"""

PROGRAM = """
import torch
from package_of_calls import Applied, Call

x = torch.randn(3, requires_grad=True)
Applied.apply(x, Call(3.0)).sum().backward()
"""


@pytest.mark.usefixtures("copied_programs", "copied_workers")
def test_of_a_function_of_a_package_that_is_handed_an_object_to_call(tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "package_of_calls.py").write_text(PACKAGE)
    (tmp_path / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    paths = [str(elsewhere), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.syspath_prepend(str(elsewhere))  # as a new Python has it
    first = run_python(
        "-m", "pullback", "check", "--clauses", "derivative", "--", sys.executable, "train.py"
    )
    told = [line for line in first.stdout.splitlines() if line.startswith("  rerun: ")]
    assert len(told) == 1, first.stdout + first.stderr
    again = run_python("-m", *shlex.split(told[0].removeprefix("  rerun: ")))
    assert Path(".pullback/calls.pt").exists()
    assert again.returncode == 1, again.stdout + again.stderr
    assert "1 Function checked, 1 broken" in again.stdout
    assert "A script that shows each finding, and its entries: --verbose." in again.stdout
    whole = run_python("-m", *shlex.split(told[0].removeprefix("  rerun: ")), "--verbose")
    assert "script\nimport torch" in whole.stdout
    assert "A script that shows each finding" not in whole.stdout
