"""Whatever is shipped answers on a card as on the CPU, and keeps the contract there."""

import inspect

import pytest
import torch
from benchmarks.shipped import shipped_cases
from tests.gpu.helpers import first, on_gpu, same, second

import pullback

CASES = [pytest.param(case, id=case.name) for case in shipped_cases()]
each = pytest.mark.parametrize("case", CASES)


def call_and_inputs(case):
    call = case.function.apply if inspect.isclass(case.function) else case.function
    inputs = case.inputs(torch.Generator().manual_seed(0))
    return call, inputs


def seeded(call):
    def run(*inputs):
        torch.manual_seed(0)
        return call(*inputs)

    return run


@each
def test_values_and_derivatives(case):
    call, inputs = call_and_inputs(case)
    same(first(call, on_gpu(inputs)), first(call, inputs))
    same(second(call, on_gpu(inputs)), second(call, inputs))


@each
def test_it_keeps_the_contract(case):
    clauses = [clause.id for clause in pullback.conformance.CLAUSES if clause.id != "compile"]
    inputs = on_gpu(case.inputs(torch.Generator().manual_seed(0)))
    report = pullback.check(case.function, *inputs, gradient=case.gradient, clauses=clauses)
    assert report.ok, report.to_text()
