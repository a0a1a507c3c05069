"""The curves and plans that are offered as cases keep the main clauses."""

import pytest
import torch
from tests.fuzzing import spread

import pullback
from pullback.tensor import Case
from pullback.trajectory._cases import cases

CASES = list(cases())
MAIN = ["derivative", "linear", "double", "forward", "deterministic", "mutation"]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_keeps_the_contract(case: Case) -> None:
    inputs = case.inputs(torch.Generator().manual_seed(3))
    number = 1 + CASES.index(case)
    clauses = spread(MAIN[number % 2 :] + MAIN[: number % 2], 2)
    report = pullback.check(case.function, *inputs, clauses=clauses)
    assert report.ok, report


def test_names_are_their_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES) == 13
