"""How a kernel behaves: under autocast, in another thread, in other layouts."""

import inspect

import torch

from pullback import verify


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
        is_checked = any("verification" in frame.filename for frame in inspect.stack()[2:])
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
