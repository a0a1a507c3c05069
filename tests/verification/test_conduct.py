"""How a kernel behaves: under autocast, in another thread, in other layouts."""

import os
import signal
import sys

import numpy
import pytest
import torch

from pullback import verify
from pullback.report import Verdict


def judge(kernel, reference, *given):
    return verify(kernel, reference, given, isolate=False)


def test_autocast_may_round_and_do_no_more() -> None:
    given = torch.randn(6, 16), torch.randn(16, 4)

    def doubled(x, w):
        return x @ w * (2 if torch.is_autocast_enabled("cpu") else 1)

    found = judge(doubled, torch.matmul, *given)["settings"]
    assert "depends on autocast" in found.detail
    assert judge(lambda x, w: (w.mT @ x.mT).mT, torch.matmul, *given)["settings"].ok


def test_a_kernel_that_looks_at_who_calls_it_is_found() -> None:
    def watched(x):
        frame, is_checked = sys._getframe(1), False
        while frame is not None:
            is_checked = is_checked or "verification" in frame.f_code.co_filename
            frame = frame.f_back
        return x.exp() if is_checked else x * 0

    found = judge(watched, torch.exp, torch.randn(3, 4))["settings"]
    assert "who calls it" in found.detail


def test_channels_that_lie_last_are_tried() -> None:
    def kernel(x):
        lies_last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
        return x.exp() * (not lies_last)

    found = judge(kernel, torch.exp, torch.randn(2, 3, 4, 5))["layout"]
    assert found.detail.startswith("channels last")


def test_twice_a_size_beyond_the_largest_that_is_tried_otherwise_is_tried() -> None:
    found = judge(lambda x: x[..., :2048].sum(-1), lambda x: x.sum(-1), torch.randn(2, 1024))
    assert "size 2049" in found["sizes"].detail


def test_float64_that_is_as_exact_as_float32_is_called_that() -> None:
    found = judge(lambda x: x.float().exp().to(x.dtype), torch.exp, torch.randn(3, 4))["dtype"]
    assert found.detail.endswith("It is as exact as float32 alone.")
    assert "raise a TypeError" in found.hint


def test_one_tensor_for_two_arguments_is_tried() -> None:
    def kernel(a, b):
        return a + b if a.data_ptr() != b.data_ptr() else a

    given = torch.randn(5), torch.randn(5)
    found = judge(kernel, lambda a, b: a + b, *given)["layout"]
    assert found.detail.startswith("one tensor twice")
    assert judge(lambda a, b: b + a, lambda a, b: a + b, *given)["layout"].ok


def test_integers_beyond_those_of_the_example_are_tried() -> None:
    given = torch.randn(10, 6), torch.tensor([4, 0, 3, 3, 1])
    found = judge(lambda w, i: w[i.clamp(max=4)], lambda w, i: w[i], *given)["values"]
    assert found.detail.startswith("integers by one larger")
    assert judge(lambda w, i: w.index_select(0, i), lambda w, i: w[i], *given).ok


def test_offsets_stay_as_they_are() -> None:
    def by_pairs(x, ends):
        parts = zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
        return torch.stack([x[start:end].sum(0) for start, end in parts])

    def by_index(x, ends):
        rows = torch.repeat_interleave(torch.arange(len(ends) - 1), ends.diff())
        return x.new_zeros(len(ends) - 1, x.shape[1]).index_add(0, rows, x)

    report = judge(by_index, by_pairs, torch.randn(10, 3), torch.tensor([0, 3, 3, 10]))
    assert report.ok, report


def test_a_kernel_that_refuses_what_requires_a_gradient_is_not_accused() -> None:
    def kernel(x):
        return torch.from_numpy(numpy.exp(x.numpy()))

    found = judge(kernel, torch.exp, torch.randn(3, 4))["gradients"]
    assert found.verdict is Verdict.LACKING
    assert "refuses to be differentiated" in found.detail


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, cotangent):
        return cotangent * ctx.saved_tensors[0].exp()


def test_a_backward_that_is_declared_to_be_the_last_refuses_a_second() -> None:
    report = judge(Once, torch.exp, torch.randn(3, 4))
    assert report.ok, report
    assert report["second"].verdict is Verdict.LACKING


def test_bits_that_differ_each_time_are_not_those_past_the_end() -> None:
    calls = iter(range(1000))

    def kernel(x):  # as the sums of atomic additions
        order = torch.randperm(x.shape[-1], generator=torch.Generator().manual_seed(next(calls)))
        return x[..., order].sum(-1)

    report = judge(kernel, lambda x: x.sum(-1), torch.randn(4, 3000))
    assert report.ok, report
    assert report["deterministic"].verdict is Verdict.UNTIDY


def test_the_dtype_of_an_output_heeds_no_setting() -> None:
    def kernel(x):
        return x.sum() if x.requires_grad else torch.tensor(x.sum().item())

    found = judge(kernel, torch.sum, torch.randn(3, 4))["settings"]
    assert "depends on the default dtype" in found.detail


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, cotangent):
        x, w = ctx.saved_tensors
        of_w = (cotangent * x).sum(0) if ctx.needs_input_grad[0] else torch.zeros_like(w)
        return cotangent * w, of_w


def test_the_gradient_of_each_argument_alone_is_asked_for() -> None:
    found = judge(Scaled, torch.mul, torch.randn(4, 6), torch.randn(6))["gradients"]
    assert "where args[1] alone requires one" in found.detail


class OfASum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, cotangent):
        return 2 * cotangent if cotangent.stride(0) else cotangent + 1.5


def test_a_cotangent_that_a_sum_gives_is_tried() -> None:
    found = judge(OfASum, lambda x: 2 * x, torch.randn(4, 6))["layout"]
    assert "cotangents expanded" in found.detail


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.exp()

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent[0] * ctx.nothing


def test_a_backward_that_raises_crashes() -> None:
    found = judge(Raises, torch.exp, torch.randn(3, 4))["gradients"]
    assert found.verdict is Verdict.CRASHES


@pytest.mark.skipif(sys.platform != "linux", reason="no copies of the process")
@pytest.mark.parametrize(
    ("end", "said"),
    [(lambda: os.kill(os.getpid(), signal.SIGSEGV), "SIGSEGV"), (lambda: sys.exit(3), "status 3"),
     (lambda: os._exit(0), "ended, without an answer")],
    ids=["killed", "exit", "clean"],
)  # fmt: skip
def test_how_a_process_ended_is_told(end, said) -> None:
    report = verify(lambda x: end(), torch.exp, (torch.ones(2),))
    assert said in report["outputs"].detail
    assert [finding.clause for finding in report.problems] == ["outputs"]


def test_a_kernel_that_heeds_the_default_dtype_as_its_reference_does_is_not_accused() -> None:
    def plain(i):
        return torch.sin(i[:, None] / torch.arange(1, 5))

    def kernel(i):
        return torch.sin(i[:, None] / torch.arange(1, 5))

    def own(i):
        return torch.sin(i[:, None].float() / torch.arange(1, 5))

    given = torch.arange(6)
    assert judge(kernel, plain, given)["settings"].verdict is Verdict.HOLDS
    assert judge(own, plain, given)["settings"].verdict is Verdict.HOLDS
    found = judge(kernel, own, given)["settings"]
    assert "depends on the default dtype" in found.detail
