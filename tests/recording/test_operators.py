"""Operators of torch.library: recorded, discovered, and checked again from what was kept."""

import importlib
import sys

import pytest
import torch

from pullback.cli import main
from pullback.conformance import check
from pullback.recording import Limits, Recorder, copy_call, discover

MODULE = """
import torch

@torch.library.custom_op("{name}::halved", mutates_args=())
def halved(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return x * x * scale

@halved.register_fake
def _(x, scale=1.0):
    return torch.empty_like(x)

def setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.scale = inputs[1]

# The factor 2 is forgotten.
halved.register_autograd(
    lambda ctx, g: (ctx.saved_tensors[0] * g * ctx.scale, None), setup_context=setup
)

@torch.library.custom_op("{name}::kernel", mutates_args=())
def kernel(x: torch.Tensor) -> torch.Tensor:
    return x + 1
"""
PROGRAM = """
import torch
from {name} import halved, kernel
halved(torch.ones(3, requires_grad=True), 3.0).sum().backward()
kernel(torch.ones(3))
"""


@pytest.fixture
def package(tmp_path, monkeypatch, request):
    """A module with two operators; operators have names of their own in each test."""
    name = f"operators_{request.node.name[5:20].strip('_')}"
    (tmp_path / f"{name}.py").write_text(MODULE.format(name=name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.mark.usefixtures("copied_workers")
def test_discovery_finds_operators_and_inputs_for_them(package):
    recording = discover(package).recording
    found = {item.name: item for item in recording}
    assert sorted(found) == [f"{package}:halved", f"{package}:kernel"]
    assert "no gradient is registered" in " ".join(found[f"{package}:kernel"].reasons)
    operator = found[f"{package}:halved"].load()
    report = check(operator, *found[f"{package}:halved"].arguments(0)[0], clauses="derivative")
    assert report["derivative"].verdict == "broken"
    assert report.function == f"{package}:halved"


def test_known_calls_of_an_operator_are_as_quick_as_those_of_a_function(package):
    operator = importlib.import_module(package).halved
    recorder, looked_at = Recorder(copy_call), []
    recorder.guarded = lambda action: lambda *given: looked_at.append(action) or action(*given)
    recorder.install(torch.autograd.Function)
    try:
        for _ in range(6):
            operator(torch.ones(3, requires_grad=True), 3.0)
    finally:
        recorder.uninstall()
    assert [action.__name__ for action in looked_at] == ["_see", "_commit", "_hear"]


def test_later_numbers_of_an_operator_take_the_place_of_the_first_however_many_are_kept(package):
    operator = importlib.import_module(package).halved
    recorder = Recorder(copy_call, limits=Limits(calls=1))
    recorder.install(torch.autograd.Function)
    try:
        for number in range(10):
            operator(torch.full((3,), float(number), requires_grad=True), 3.0)
    finally:
        recorder.uninstall()
    [record] = recorder.records.values()
    assert [call.arguments[0][0].item() for call in record.calls] == [7.0]


@pytest.mark.usefixtures("copied_programs")
def test_a_program_that_applies_operators_is_recorded_and_checked(package, tmp_path, capfd):
    (tmp_path / "program.py").write_text(PROGRAM.format(name=package))
    words = ["check", "--clauses", "derivative,registration", "--no-isolate", "--"]
    assert main([*words, sys.executable, "program.py"]) == 1
    out = capfd.readouterr().out
    assert f"{package}:halved: applied once, 1 kept" in out
    assert "derivative broken" in out
