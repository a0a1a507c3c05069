"""What a kernel must not call: each name of it is known, and a name of nothing is refused."""

import math
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from pullback import verify
from pullback.errors import ArgumentError
from pullback.report import Verdict


def plain(x):
    return torch.softmax(x, -1)


@torch.library.custom_op("forbidden_ops::twice", mutates_args=())
def _twice(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@torch.library.register_fake("forbidden_ops::twice")
def _twice_of_shape(x):
    return torch.empty_like(x)


def _written_by_hand(x):
    return x + x


@pytest.mark.parametrize(
    ("kernel", "reference", "names"),
    [
        (lambda x: x.softmax(-1), plain,
         ["softmax", "_softmax", "torch.nn.functional.softmax", "aten::_softmax", torch.softmax,
          torch.Tensor.softmax, torch.ops.aten._softmax, torch.ops.aten._softmax.default]),
        (_twice, lambda x: x * 2, ["twice", "forbidden_ops::twice", "forbidden_ops.twice", _twice]),
        (lambda x: _written_by_hand(x) * 1, lambda x: x * 2, [_written_by_hand, "add", torch.add]),
    ],
    ids=["of torch", "operator", "of Python"],
)  # fmt: skip
def test_what_is_forbidden_is_known_by_each_of_its_names(kernel, reference, names) -> None:
    for name in names:
        report = verify(kernel, reference, (torch.randn(2, 4),), forbid=[name], isolate=False)
        assert report["forbidden"].verdict is Verdict.BROKEN, name


def test_a_function_of_the_same_name_as_what_is_forbidden_is_another() -> None:
    def exp(x):
        return x.exp()

    report = verify(lambda x: x.exp() - 1, torch.expm1, (torch.ones(2),), forbid=[exp],
                    isolate=False)  # fmt: skip
    assert report["forbidden"].verdict is Verdict.HOLDS


@pytest.mark.parametrize(
    "name", ["softmx", "torch.nn.functional.softmx", "aten::softmx", "nobodys::unmade", "", 3, abs,
             math.exp, torch.float32],
)  # fmt: skip
def test_what_nothing_could_call_cannot_be_forbidden(name) -> None:
    with pytest.raises(ArgumentError, match="forbidden"):
        verify(plain, plain, (torch.ones(2),), forbid=["softmax", name])


class InBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        e = (x - x.amax(-1, keepdim=True)).exp()
        return e / e.sum(-1, keepdim=True)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        y = plain(x)
        return y * (cotangent - (cotangent * y).sum(-1, keepdim=True))


def in_a_thread(x):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(plain, x).result()


def of_larger_sizes(x):
    return plain(x) if x.shape[-1] > 4 else InBackward.forward(SimpleNamespace(**SAVES), x)


SAVES = {"save_for_backward": lambda x: None}


@pytest.mark.parametrize("kernel", [InBackward, in_a_thread, of_larger_sizes])
@pytest.mark.parametrize("forbid", [[], ["softmax"]], ids=["the reference", "by name"])
def test_a_call_in_backward_in_a_thread_or_of_another_size_is_one(kernel, forbid) -> None:
    reference = plain if not forbid else lambda x: torch.softmax(x, -1)
    report = verify(kernel, reference, (torch.randn(2, 4),), forbid=forbid, isolate=False)
    assert report["forbidden"].verdict is Verdict.BROKEN


def test_what_calls_a_kernel_is_not_what_it_calls() -> None:
    names = ["clone", "detach", "requires_grad_", "grad", "randn", "to"]
    report = verify(lambda x: x * 2, lambda x: x + x, (torch.ones(2),), forbid=names, isolate=False)
    assert report["forbidden"].verdict is Verdict.HOLDS
