"""The Functions of number formats keep every clause, or refuse it by name."""

import pytest
import torch

from pullback import check
from pullback.tracking.formats._cases import cases

CASES = list(cases())


# torch itself loads its decompositions through the deprecated torch.jit.
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_clause(case):
    inputs = case.inputs(torch.Generator().manual_seed(0))
    report = check(case.function, *inputs, gradient=case.gradient, seed=0)
    assert report.ok, str(report)
    for finding in report.findings:
        if finding.verdict == "lacking":
            assert finding.clause in case.refuses, finding
