"""Large arguments are judged by a part of them, in seconds, and the report says so."""

import torch

from pullback.conformance import check
from pullback.conformance.inputs._arguments import Arguments
from pullback.conformance.probing._resize import cut_down
from pullback.report import Report


class Tangens(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        y = (x @ w).tanh()
        ctx.save_for_backward(x, w, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, w, y = ctx.saved_tensors
        d = g * (1 + y * y)
        return d @ w.t(), x.flatten(0, -2).t() @ d.flatten(0, -2)


def test_a_large_call_is_judged_by_a_part_of_it():
    x, w = torch.randn(20, 250, 60, requires_grad=True), torch.randn(60, 20, requires_grad=True)
    report = check(Tangens, 0.1 * x, w, clauses="derivative", gradient="exact")
    assert "`1 - y * y` for `1 + y * y`" in report["derivative"].hint
    assert "args[0] (20, 250, 60) as (" in report.cut_down[0]
    assert "judged args[0] (20, 250, 60) as (" in report.to_text()
    assert "Judged at smaller sizes than those given" in report.to_html()
    assert Report.from_json(report.to_json()) == report
    compile(report["derivative"].repro, "script", "exec")
    assert "drawn at random" not in report["derivative"].repro  # all numbers are in it


def test_small_calls_are_judged_as_they_are():
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)
    assert check(Tangens, x, w, clauses="derivative").cut_down == ()


def test_sizes_are_cut_down_as_far_as_they_are_taken():
    x, w = torch.randn(20, 300, 60), torch.randn(60, 20)
    given = Arguments.of((x.requires_grad_(), w.requires_grad_()), {})

    def takes(inputs):
        return inputs.values[0].shape[1] == 300

    found = cut_down(given, 2**12, takes).values
    assert found[0].shape[1] == 300
    assert found[0].numel() < x.numel() / 8
    assert found[0].shape[2] == found[1].shape[0]
    assert torch.equal(found[0], x[: found[0].shape[0], :, : found[0].shape[2]])
    assert cut_down(given, 2**12, lambda _: False) is given
