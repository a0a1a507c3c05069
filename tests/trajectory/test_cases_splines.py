"""The Functions of this half of the room keep every clause; the curves keep the main ones."""

import pytest
import torch
from tests.fuzzing import clauses_of, spread

import pullback
from pullback.tensor import Case
from pullback.trajectory._cases_splines import spline_cases

CASES = list(spline_cases())
MAIN = ["derivative", "linear", "double", "forward", "deterministic", "mutation"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_keeps_the_contract(case: Case) -> None:
    whole = case.name.endswith("_solve")
    inputs = case.inputs(torch.Generator().manual_seed(3))
    # Compiled by `make fuzz`: what stands upon them is compiled in tests of its own.
    number = 1 + CASES.index(case)
    clauses = clauses_of(number) if whole else spread(MAIN[number % 2 :] + MAIN[: number % 2], 2)
    report = pullback.check(case.function, *inputs, clauses=clauses)
    assert report.ok, report


def test_names_are_their_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES) == 9
