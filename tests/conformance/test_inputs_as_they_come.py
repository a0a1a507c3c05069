"""Inputs as programs have them: behind a layer, as views, with NaN among their entries."""

import pytest
import torch

from pullback.conformance import Verdict, check


class AsksLeaf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        ctx.leaf = x.is_leaf
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w if ctx.leaf else None, g * x


class AsksBase(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.view = x._base is not None
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        found = g * ctx.saved_tensors[0].cos()
        return found * 2 if ctx.view else found


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


class Cosine(Sine):
    @staticmethod
    def backward(ctx, g):
        return -g * ctx.saved_tensors[0].cos()


X = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    ("function", "inputs", "said"),
    [
        (AsksLeaf, (X, X + 1), "Got is None: backward returned no gradient."),
        (AsksBase, (X,), "Got is 2 x expected."),
    ],
)
def test_a_gradient_that_asks_how_its_input_was_made_is_found(function, inputs, said):
    finding = check(function, *inputs, clauses="needs-input-grad")["needs-input-grad"]
    assert finding.verdict is Verdict.BROKEN
    assert said in finding.detail
    assert "ctx.needs_input_grad" in finding.hint
    assert "Run by the checker" not in finding.repro


def test_an_input_with_a_history_is_held_to_nothing_else():
    report = check(Sine, X, clauses="needs-input-grad")
    assert report["needs-input-grad"].verdict is Verdict.HOLDS


def with_nan(*places):
    found = X.clone()
    for place in places:
        found[place] = torch.nan
    return found


@pytest.mark.parametrize("isolate", [False, "copy"])
def test_nan_in_the_inputs_is_said_and_the_rest_judged(isolate):
    given = with_nan((0, 1), (2, 2))
    clauses = ("derivative", "double", "linear")
    right = check(Sine, given, clauses=clauses, isolate=isolate)
    assert right.ok
    assert [finding.verdict for finding in right] == [Verdict.HOLDS] * 3
    assert right.unchecked.startswith("not judged: 2 of 12 entries of args[0] are NaN")
    wrong = check(Cosine, given, clauses=clauses, isolate=isolate)
    assert wrong["derivative"].verdict is Verdict.BROKEN
    assert wrong.unchecked


def test_inputs_that_are_nothing_but_nan_are_replaced_too():
    report = check(Cosine, X * torch.nan, clauses="derivative")
    assert report["derivative"].verdict is Verdict.BROKEN
    assert "12 of 12" in report.unchecked


class ThriceTheInverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        inverse = torch.linalg.inv(a)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx, cotangent):
        (inverse,) = ctx.saved_tensors
        return -3 * inverse.mT @ cotangent @ inverse.mT


def test_a_wrong_gradient_of_a_matrix_by_columns_is_told_as_of_one_by_rows():
    a = torch.linalg.qr(torch.eye(3, dtype=torch.float64) + 0.3)[0].mT.contiguous().mT
    finding = check(ThriceTheInverse, a.requires_grad_(), clauses="derivative")["derivative"]
    assert not a.is_contiguous()
    assert finding.verdict == "broken"


class Recomputed(torch.autograd.Function):
    """Parameters are given beside the module that reads them, as of a checkpoint or an adjoint."""

    @staticmethod
    def forward(ctx, module, x, *parameters):
        ctx.module, ctx.x = module, x.detach()
        return module(x.detach())

    @staticmethod
    def backward(ctx, g):
        x = ctx.x.clone().requires_grad_()
        with torch.enable_grad():
            y = ctx.module(x)
        by_x, *others = torch.autograd.grad(y, (x, *ctx.module.parameters()), g)
        return None, by_x, *(2 * other for other in others)


def test_what_a_module_learns_moves_with_it_however_deep_its_layers_are_nested():
    module = torch.nn.Linear(3, 2, dtype=torch.float64)
    for _ in range(6):
        module = torch.nn.Sequential(module)
    report = check(Recomputed, module, X, *module.parameters(), clauses="derivative")
    assert report["derivative"].verdict == "broken", report
    assert report["derivative"].input == "args[2]"
