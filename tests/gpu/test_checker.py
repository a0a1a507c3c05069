"""The checker on a card: right Functions hold there, wrong ones are caught."""

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from tests.conformance.clauses.test_clauses import EVERY, WRONG
from tests.gpu.helpers import on_gpu, tensors
from tests.specimens.right.smooth import Cube
from tests.specimens.wrong import machines

from pullback.conformance import CLAUSES, check

CHECK = [sys.executable, "-m", "pullback", "check", "--without", "compile", "--"]
ALL = [clause.id for clause in CLAUSES if clause.id != "compile"]


def runs(function, inputs):
    """Whether a plain call runs there: some specimens make tensors on the CPU, or take numpy."""
    call = getattr(function, "apply", function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            outputs = [y for y in tensors(call(*inputs)) if y.requires_grad]
            leaves = [x for x in tensors(inputs) if x.requires_grad]
            torch.autograd.grad(outputs, leaves, outputs, allow_unused=True)
        except (RuntimeError, TypeError) as error:
            return not any(word in str(error) for word in ("device", "numpy", "cuda"))
    return True


@pytest.mark.parametrize("specimen", EVERY, ids=lambda specimen: specimen.id)
def test_a_right_specimen_is_not_flagged(specimen):
    inputs = on_gpu(specimen.inputs())
    if not runs(specimen.function, inputs):
        pytest.skip("it takes the CPU alone")
    report = check(specimen.function, *inputs, gradient=specimen.gradient, clauses=ALL)
    assert report.ok, f"flagged, seed {report.seed}\n{report}"
    torch.rand(1, device="cuda")  # a capture that was refused has left the generator of use


CAUGHT = [s for s in (*WRONG, *machines.ON_A_GPU) if s.clause != "compile"]


@pytest.mark.parametrize("specimen", CAUGHT, ids=lambda specimen: specimen.id)
def test_a_wrong_specimen_is_caught(specimen):
    report = check(
        specimen.function,
        *on_gpu(specimen.inputs()),
        gradient=specimen.gradient,
        clauses=specimen.clause,
        isolate=True,  # one that reads beyond its memory ends every use of the card
    )
    finding = report[specimen.clause]
    if specimen.clause == "index-width" and "GiB" in finding.detail:
        pytest.skip(finding.detail)  # other tests have the memory
    verdict = finding.verdict.value
    if verdict == "crashes" and not runs(specimen.function, on_gpu(specimen.inputs())):
        pytest.skip("it takes the CPU alone")
    if specimen.verdict:
        assert verdict == specimen.verdict, finding
    else:
        assert verdict in ("broken", "crashes", "lacking"), finding


def test_compiled_code():
    assert check(Cube, *on_gpu((EVERY[0].inputs()[0],)), clauses="compile").ok


PROGRAM = """
import torch

class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x, factor)
        return x * factor

    @staticmethod
    def backward(ctx, cotangent):
        x, factor = ctx.saved_tensors
        return cotangent * factor, (cotangent * x).MEAN(0)

model = torch.nn.Linear(4, 4).cuda()
factor = torch.ones(4, device="cuda", requires_grad=True)
for step in range(3):
    Scale.apply(model(torch.randn(8, 4, device="cuda")), factor).sum().backward()
"""


@pytest.mark.parametrize(("rule", "status"), [("sum", 0), ("mean", 1)])
def test_a_program_that_trains_on_a_card(tmp_path: Path, rule: str, status: int):
    (tmp_path / "train.py").write_text(PROGRAM.replace("MEAN", rule))
    done = subprocess.run(
        [*CHECK, sys.executable, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    if status:
        assert "mean" in done.stdout
