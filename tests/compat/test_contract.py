"""Every Function under another system's name keeps every clause, or refuses it by name."""

from importlib.metadata import entry_points

import pytest
import torch
from tests.fuzzing import clauses_of

from pullback import check
from pullback.compat import curobo, torchlogix, unit_scaling
from pullback.compat._cases import cases

CASES = list(cases())
FUNCTIONS = [
    torchlogix.GradFactor,
    unit_scaling.ScaleTracker,
    *(getattr(curobo, name) for name in curobo.__all__ if name.startswith(("Clique", "Accel"))),
]


def test_the_cases_are_offered_to_the_checker():
    offered = {entry.name: entry for entry in entry_points(group="pullback.cases")}
    assert offered["compat"].load() is cases
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_published_function_is_one(function):
    assert issubclass(function, torch.autograd.Function)
    published = {"CliqueTensorStepCoalesceKernel": "CliqueTensorStepKernel"}  # the same numbers
    wanted = published.get(function.__name__, function.__name__)
    assert any(case.name.endswith("." + wanted) for case in CASES)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_clause(case):
    inputs = case.inputs(torch.Generator().manual_seed(0))
    clauses = clauses_of(CASES.index(case))
    report = check(case.function, *inputs, gradient=case.gradient, seed=0, clauses=clauses)
    assert report.ok, str(report)
    lacking = {finding.clause for finding in report.findings if finding.verdict == "lacking"}
    assert lacking == set(case.refuses) & set(clauses), str(report)
