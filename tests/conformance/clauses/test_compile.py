"""The clause `compile`: each way is judged by itself."""

import pytest
import torch
from tests.specimens._specimen import normal
from tests.specimens.wrong.compositions import BatchedReversal, SurrogateTangent

import pullback
from pullback.conformance import check
from pullback.conformance.clauses import CLAUSES
from pullback.conformance.clauses import compile as of_compile
from pullback.conformance.evidence._intent import infer_intent
from pullback.conformance.inputs._arguments import Arguments
from pullback.conformance.inputs._subject import Subject
from pullback.conformance.probing._prepare import prepare
from pullback.conformance.process._guard import guarded
from pullback.conformance.script._repro import verify


def probe_of(function, *args):
    return infer_intent(prepare(Subject.of(function), Arguments.of(args), 0))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("function", "name"),
    [
        (SurrogateTangent, "torch.compile(torch.func.jvp(f))"),
        (SurrogateTangent, "torch.compile(torch.func.vmap(torch.func.grad(f)))"),
        (BatchedReversal, "torch.compile(torch.func.vmap(torch.func.grad(f)))"),
    ],
)
def test_a_rule_that_is_dropped_is_seen_though_plain_compilation_is_refused(function, name):
    """Each way by itself; that the clause says so is asked of the specimens."""
    probe = probe_of(function, normal(3))
    if torch.__version__ >= "2.15" and "vmap" in name:  # where Dynamo refuses what it dropped
        ways = {way.name: way for way in of_compile._composed_ways(probe)}
        with guarded(), pytest.raises(Exception, match=r"custom `jvp`|vmap support"):
            ways[name].run()
        return
    with guarded():
        ways = {way.name: way for way in of_compile._composed_ways(probe)}
        got, expected = ways[name].run(), ways[name].eager()
    assert probe.differ(got, expected, 1e4) is not None
    finding = of_compile._wrong(probe, ways[name], expected, got)
    assert finding.fails == "transform"
    # Dynamo refuses what torch.func does to an input that needs a gradient.
    assert "\nx = xs[0].detach()\n" in finding.repro
    assert verify(finding, 0).repro.startswith("# The checker has not run this")


def test_a_completed_one_is_right_in_every_way_and_compiled_code_of_the_caller_stays():
    calls = []

    def backend(graph, inputs):
        calls.append(graph)
        return graph

    compiled = torch.compile(lambda x: x * 2, backend=backend)
    x = torch.ones(2)
    compiled(x)
    function = pullback.complete(BatchedReversal)
    finding = check(function, normal(3), clauses="compile", thorough=True)["compile"]
    compiled(x)
    assert len(calls) == 1
    assert finding.verdict == "holds"
    for word in ("vmap", "dynamic=True", "inductor"):
        assert word in finding.detail


def test_without_a_compiler_inductor_is_not_tried_and_that_is_said(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not of_compile._has_compiler()
    finding = check(torch.sin, normal(3), clauses="compile", thorough=True)["compile"]
    assert finding.verdict == "holds"
    assert "no C++ compiler" in finding.detail


@torch.library.custom_op("pullback_tests::remembers_size", mutates_args=())
def remembers_size(x: torch.Tensor) -> torch.Tensor:
    return x * x


@remembers_size.register_fake
def _(x):
    return torch.empty_like(x)


@torch._dynamo.assume_constant_result
def count(x):
    return x.shape[0]


def mean_of_squares(x):
    return remembers_size(x).sum(0) / count(x)


remembers_size.register_autograd(
    lambda ctx, g: 2 * ctx.saved_tensors[0] * g,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def test_a_size_that_is_baked_in_is_found_at_another_size():
    finding = check(mean_of_squares, normal(4, 3), clauses="compile", thorough=True)["compile"]
    assert finding.verdict in ("broken", "lacking")  # newer torch refuses the constant


class Combined(torch.autograd.Function):
    """Without setup_context, which eager torch.func refuses, and a backward of its own."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, cotangent):
        return -0.5 * cotangent


class CombinedExact(Combined):
    @staticmethod
    def backward(ctx, cotangent):
        return cotangent.clone()


def test_a_backward_that_torch_drops_where_eager_code_refuses_is_named():
    finding = check(Combined, normal(3), clauses="compile")["compile"]
    if torch.__version__ < "2.15":  # later ones refuse
        assert finding.verdict == "lacking"
        assert "torch.func.grad" in finding.detail
    assert check(CombinedExact, normal(3), clauses="compile")["compile"].verdict == "holds"


def test_the_clause_stands_in_the_table():
    assert "compile" in [clause.id for clause in CLAUSES]
