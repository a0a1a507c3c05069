"""The questions of the survey tell right from wrong: each has a Function that it must catch."""

import json
import os
import sys
import types
from collections.abc import Iterable

import pytest
import torch
from benchmarks.wild._case import Published, randn
from benchmarks.wild._intent import intent_of
from benchmarks.wild._probe import PROBES, Subject, prepare, verdict_of
from benchmarks.wild._worker import run_child

import pullback
from pullback.conformance import check

# Dynamo instantiates the Function that it traces, which torch itself deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


class Cube(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * cotangent

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * tangent


class WrongTangent(Cube):
    @staticmethod
    def jvp(ctx, tangent):
        return tangent.clone()


class WrongBatch(Cube):
    generate_vmap_rule = False

    @staticmethod
    def vmap(info, in_dims, x):
        return WrongBatch.apply(x.flip(0)), 0


class LostResidual(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.square = x * x
        return x * ctx.square

    @staticmethod
    def backward(ctx, cotangent):
        return 3 * ctx.square * cotangent


class OldStyle(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * cotangent


class Nonlinear(OldStyle):
    @staticmethod
    def backward(ctx, cotangent):
        return cotangent.clamp(-0.1, 0.1)


class Affine(OldStyle):
    """A term that does not depend on the cotangent: not linear."""

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * cotangent + x


class SavesOutput(torch.autograd.Function):
    """A surrogate that reads its output again, which moves as its rule says, to torch."""

    @staticmethod
    def forward(ctx, x):
        y = x.tanh()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        (y,) = ctx.saved_tensors
        return cotangent * (1 + y * y)


class Drifts(OldStyle):
    """Another bit than the published Function."""

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 3 * (x**2 * cotangent)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    module = types.ModuleType("survey_specimens")
    for value in list(globals().values()):
        if isinstance(value, type) and issubclass(value, torch.autograd.Function):
            setattr(module, value.__name__, value)
    monkeypatch.setitem(sys.modules, "survey_specimens", module)


def case(function: type) -> Published:
    name = f"survey_specimens:{function.__name__}"
    return Published(name, lambda generator: (randn(generator, 2, 3),))


def ask(probe: str, subject: Subject, truth: Subject) -> str:
    try:
        PROBES[probe](subject, truth)
    except Exception as error:
        return verdict_of(error)[0]
    return verdict_of(None)[0]


def answers(
    function: type, other: type | None = None, probes: Iterable[str] = PROBES
) -> dict[str, str]:
    truth = prepare(case(function))
    found = {}
    for probe in probes:
        subject = prepare(case(function))
        subject.function = other or function
        found[probe] = ask(probe, subject, truth)
    return found


def test_a_function_with_every_rule_works_but_for_what_torch_lacks() -> None:
    found = answers(Cube)
    assert found.pop("compile") == "refuses"  # torch cannot trace a Function with a jvp
    assert set(found.values()) == {"works"}


def test_an_old_style_function_refuses_by_name() -> None:
    found = answers(OldStyle)
    refused = {probe for probe, answer in found.items() if answer == "refuses"}
    assert refused == {"grad", "forward", "vmap", "hessian"}
    assert {answer for probe, answer in found.items() if probe not in refused} == {"works"}


def test_a_completed_function_works_everywhere() -> None:
    assert set(answers(OldStyle, pullback.complete(OldStyle)).values()) == {"works"}
    assert set(answers(LostResidual, pullback.complete(LostResidual)).values()) == {"works"}


@pytest.mark.parametrize(
    ("function", "other", "probe"),
    [
        (Cube, WrongTangent, "forward"),
        (Cube, WrongTangent, "hessian"),
        (Cube, WrongBatch, "vmap"),
        (LostResidual, None, "double"),
        (OldStyle, Nonlinear, "first_order"),
        (OldStyle, Drifts, "first_order"),
        (OldStyle, Nonlinear, "compile"),
        (Cube, SavesOutput, "first_order"),
    ],
)
def test_a_wrong_number_is_called_wrong(function: type, other: type | None, probe: str) -> None:
    assert answers(function, other, [probe]) == {probe: "wrong"}


def test_an_error_that_says_nothing_is_a_crash() -> None:
    assert verdict_of(IndexError("tuple index out of range"))[0] == "crashes"
    assert verdict_of(pullback.errors.UnsupportedError("No vmap rule."))[0] == "refuses"


def test_a_saved_output_moves_as_the_rule_says() -> None:
    """As torch and the engine have it, and the checker."""
    for function in (SavesOutput, OldStyle):
        assert answers(function, probes=["double"]) == {"double": "works"}
    found = check(SavesOutput, *case(SavesOutput).inputs(torch.Generator()), clauses="double")
    assert found["double"].verdict == "holds"


def test_intent_is_measured() -> None:
    assert intent_of(prepare(case(OldStyle))) == "exact"
    assert intent_of(prepare(case(SavesOutput))) == "surrogate"
    assert intent_of(prepare(case(Nonlinear))) == "nonlinear"
    assert intent_of(prepare(case(Affine))) == "nonlinear"


@pytest.mark.parametrize("function", [Affine, OldStyle], ids=lambda function: function.__name__)
def test_the_question_is_linear_where_backward_is_not(function):
    reader, writer = os.pipe()
    run_child(case(function), "completed", ["double"], writer)
    os.close(writer)
    with os.fdopen(reader) as stream:
        said = {line["probe"]: line for line in map(json.loads, stream)}
    assert said["intent"]["verdict"] == ("nonlinear" if function is Affine else "exact")
    assert said["double"]["verdict"] == "works", said
