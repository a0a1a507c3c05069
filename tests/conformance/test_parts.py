"""The small parts: nested arguments, error messages, contexts, documentation."""

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from pullback.conformance import Verdict
from pullback.conformance.inputs._arguments import Arguments
from pullback.conformance.inputs._held import context_tensors
from pullback.conformance.inputs._subject import Subject
from pullback.conformance.inputs._tree import replace, tensors, walk
from pullback.conformance.process._failure import classify, describe, is_written
from pullback.errors import UnsupportedError


class CallsTorch(torch.autograd.Function):
    """What an author's code does when torch or they themselves refuse something."""

    @staticmethod
    def forward(ctx, x, kind):
        if kind == "own":
            raise RuntimeError("no idea")
        if kind == "value":
            raise ValueError("no idea")
        if kind == "assertion":
            assert x.ndim == 7, "seven dimensions"
        if kind == "attribute":
            return x.nothing
        return x @ torch.ones(9, dtype=x.dtype)

    vmap = forward


class CallsSplit(CallsTorch):
    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


def raised(function, *args):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is
        function(*args)
    return caught.value


@pytest.mark.parametrize(
    ("kind", "under", "elsewhere"),
    [
        ("own", "lacking", "crashes"),
        ("value", "lacking", "lacking"),
        ("assertion", "lacking", "lacking"),
        ("attribute", "crashes", "crashes"),
        ("operation", "lacking", "crashes"),
    ],
)
def test_an_error_is_judged_by_its_type_and_by_what_was_tried(kind, under, elsewhere):
    error = raised(CallsTorch.forward, None, torch.ones(3), kind)
    assert classify(error) == under
    assert classify(error, transform=False) == elsewhere


def test_an_error_of_a_rule_that_is_written_for_the_transform_is_no_refusal():
    assert classify(RuntimeError("shapes"), written=True) is Verdict.CRASHES
    assert classify(NotImplementedError("no vmap"), written=True) is Verdict.LACKING
    assert not is_written(CallsTorch, "vmap")  # torch refuses it beside such a forward
    assert is_written(CallsSplit, "vmap")
    assert not is_written(CallsSplit, "jvp")


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (NotImplementedError(), "lacking"),
        (UnsupportedError("no second derivative"), "lacking"),
        (RuntimeError("it does not require grad, is not supported, must be contiguous"), "lacking"),
        (TypeError("it is not supported"), "lacking"),
        (AttributeError("'NoneType' object has no attribute 'is not supported'"), "crashes"),
        (TimeoutError("no answer within 3 s"), "crashes"),
    ],
)
def test_the_words_of_an_error_decide_nothing(error, verdict):
    assert classify(error) == verdict


def test_a_long_message_is_cut():
    assert len(describe(RuntimeError("x" * 1000))) < 300
    assert describe(KeyError()) == "KeyError"


def test_paths_are_expressions():
    args = (torch.ones(1), {"w": [torch.ones(2), (torch.ones(3), 4)]}, None)
    for path, leaf in walk(args, "args"):
        assert eval(path, {"args": args}) is leaf
    assert [t.numel() for t in tensors(args)] == [1, 2, 3]
    fresh = replace(args, iter([torch.zeros(1), torch.zeros(2), torch.zeros(3)]))
    assert fresh[1]["w"][1][1] == 4
    assert type(fresh[1]["w"][1]) is tuple


def test_arguments_are_copies_and_generators_start_again():
    x, generator = torch.ones(2), torch.Generator().manual_seed(3)
    arguments = Arguments.of((x, generator), {"scale": torch.ones(1, requires_grad=True)})
    assert arguments.names() == ["kwargs['scale']"]
    draws = []
    for _ in range(2):
        (first, same), kwargs = arguments.build([torch.zeros(1)])
        draws.append(torch.rand(1, generator=same))
        first.add_(1)
        assert kwargs["scale"].item() == 0
    assert torch.equal(*draws)
    assert torch.equal(x, torch.ones(2))


def test_everything_a_context_can_hide_is_found():
    @dataclass
    class Box:
        inside: torch.Tensor

    x = torch.ones(3)
    node = SimpleNamespace(
        plain=x, listed=[1, (x,)], named={"a": {"b": x}}, rule=lambda g: g * x,
        bound=partial(torch.add, x), box=Box(x), text="nothing",
    )  # fmt: skip
    paths = [held.path for held in context_tensors(node)]
    assert paths == [
        "ctx.plain", "ctx.listed[1][0]", "ctx.named['a']['b']", "ctx.rule closure over x",
        "ctx.bound.args[0]", "ctx.box.inside",
    ]  # fmt: skip


def test_subjects_know_their_name_source_and_intent():
    subject = Subject.of(Subject.of)
    assert subject.name == "pullback.conformance.inputs._subject:Subject.of"
    assert Subject.of(torch.sin).name.endswith(":sin")
    assert Subject.of(partial(torch.sin)).name == Subject.of(torch.sin).name
    assert Subject.of(torch.sin, "surrogate").gradient == "surrogate"
