"""The clause that needs a GPU."""

import pytest
import torch
from tests.specimens._specimen import normal
from tests.specimens.right.smooth import Cube, Linear, Softmax
from tests.specimens.wrong import machines

from pullback.conformance import Verdict, check


def _on_gpu(value):
    return value.detach().cuda().requires_grad_() if isinstance(value, torch.Tensor) else value


NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@NEEDS_GPU
@pytest.mark.parametrize("specimen", machines.ON_A_GPU, ids=lambda specimen: specimen.id)
def test_a_wrong_specimen_is_caught_on_a_gpu(specimen):
    inputs = map(_on_gpu, specimen.inputs())
    finding = check(specimen.function, *inputs, clauses="cuda-graph")["cuda-graph"]
    assert finding.verdict.is_bad or finding.verdict is Verdict.LACKING, finding


@NEEDS_GPU
@pytest.mark.parametrize("function", [Cube, Linear, Softmax])
def test_a_right_specimen_holds_on_a_gpu(function):
    inputs = (normal(4, 3),)
    if function is Linear:
        inputs = normal(4, 3), normal(2, 3, seed=2), normal(2, seed=3)
    report = check(function, *map(_on_gpu, inputs), clauses="cuda-graph")
    assert report["cuda-graph"].verdict is Verdict.HOLDS, report


def test_inputs_elsewhere_are_not_moved_to_a_gpu():
    finding = check(Cube, normal(3), clauses="cuda-graph")["cuda-graph"]
    assert finding.verdict is Verdict.SKIPPED
    assert "CUDA" in finding.detail
