"""Every case of the room keeps every clause of the contract, or refuses it by name."""

import pytest
import torch
from tests.fuzzing import clauses_of

from pullback import check
from pullback.gradients._cases import cases

CASES = list(cases())


def test_the_cases_are_offered_to_the_checker():
    from importlib.metadata import entry_points

    offered = {entry.name: entry for entry in entry_points(group="pullback.cases")}
    assert offered["gradients"].load() is cases
    assert len({case.name for case in CASES}) == len(CASES)


# torch itself loads its decompositions through the deprecated torch.jit.
@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_clause(case):
    inputs = case.inputs(torch.Generator().manual_seed(0))
    clauses = clauses_of(CASES.index(case))
    report = check(case.function, *inputs, gradient=case.gradient, seed=0, clauses=clauses)
    assert report.ok, str(report)
    lacking = [finding for finding in report.findings if finding.verdict == "lacking"]
    exporting = [it for it in lacking if it.clause == "compile" and torch.__version__ < "2.9"]
    for finding in lacking:
        if finding not in exporting:
            assert case.gradient == "nonlinear", str(report)
            assert finding.clause in {"forward", "forward-over-forward", "transforms"}
            assert finding.clause in case.refuses, finding
    if exporting:
        pytest.xfail("refused before torch 2.9: compiling, which looks like exporting")
