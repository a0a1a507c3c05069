"""Kernels that are modules: what they learn, what they keep, what they start from."""

import pytest
import torch
from torch import nn

from pullback import verify
from pullback.report import Verdict
from pullback.verification._answers import Runner, Subject

GIVEN = (torch.randn(5, 8, generator=torch.Generator().manual_seed(0)),)


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 4)

    def forward(self, x):
        return self.inner(x)


class Product(Linear):
    def __init__(self, reference=None):
        super().__init__()
        if reference is not None:
            self.load_state_dict(reference.state_dict())

    def forward(self, x):
        return x @ self.inner.weight.mT + self.inner.bias


class WithoutGradient(Product):
    def forward(self, x):
        return x @ self.inner.weight.detach().mT + self.inner.bias


def judge(kernel, reference, given=GIVEN):
    return verify(kernel, reference, given, isolate=False)


def test_the_gradients_of_parameters_are_compared() -> None:
    reference = Linear()
    right = judge(Product(reference), reference)
    assert right.ok, right
    found = judge(WithoutGradient(reference), reference)["gradients"]
    assert found.detail.startswith("the gradient of its inner.weight is wrong")


def test_a_kernel_of_other_numbers_is_told_so() -> None:
    assert "load the same state" in judge(Product(), Linear())["outputs"].detail


def test_parameters_are_compared_where_no_argument_is_differentiated() -> None:
    table = nn.Embedding(6, 3)

    class Kernel(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = table.weight

        def forward(self, places):
            return self.weight.detach()[places] + 0 * self.weight[:1]

    report = judge(Kernel(), table, (torch.tensor([0, 3, 3]),))
    assert report["outputs"].verdict is Verdict.HOLDS
    assert report["gradients"].verdict is Verdict.BROKEN


class Normal(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.BatchNorm1d(8)

    def forward(self, x):
        return self.inner(x)


class Normalised(Normal):
    def moved(self, mean, x):
        inner = self.inner
        inner.running_mean.copy_(0.9 * inner.running_mean + 0.1 * mean)
        inner.running_var.copy_(0.9 * inner.running_var + 0.1 * x.var(0))
        inner.num_batches_tracked += 1

    def forward(self, x):
        mean = x.mean(0)
        with torch.no_grad():
            self.moved(mean, x)
        scale = (x.var(0, unbiased=False) + 1e-5).rsqrt()
        return (x - mean) * scale * self.inner.weight + self.inner.bias


class NotMoved(Normalised):
    def moved(self, mean, x):
        pass


def test_what_a_module_keeps_is_compared() -> None:
    right = judge(Normalised(), Normal())
    assert right.ok, right
    found = judge(NotMoved(), Normal())["outputs"]
    assert found.detail.startswith("its inner.running_mean as it is left is wrong")


class Remembers(nn.Module):
    def __init__(self, key):
        super().__init__()
        self.known, self.key = {}, key

    def forward(self, x):
        key = (self.key(x), x.dtype, x.shape)
        if key not in self.known:
            self.known[key] = x.softmax(-1).detach()
        return self.known[key].clone()


@pytest.mark.parametrize("key", [lambda x: 0, torch.Tensor.data_ptr], ids=["shape", "address"])
def test_a_cache_that_a_module_keeps_is_found(key) -> None:
    assert not judge(Remembers(key), lambda x: x.softmax(-1)).ok


def test_the_parameters_of_a_compiled_module_have_their_names() -> None:
    reference = Linear()
    kernel = torch.compile(WithoutGradient(reference), backend="eager")
    names = Runner(kernel=Subject(kernel), reference=Subject(reference), seed=0).unequal()
    assert not names
    with torch.no_grad():
        reference.inner.bias += 1
    names = Runner(kernel=Subject(kernel), reference=Subject(reference), seed=0).unequal()
    assert names == "its inner.bias"
