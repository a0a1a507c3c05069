"""Transforms in any order give the effect of each, or refuse by name."""

import copy
import itertools
import types

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pullback.compat import unit_scaling as us
from pullback.errors import UnsupportedError

VALUES = us.FPFormat(4, 3, "nearest")
GRADIENTS = us.FPFormat(5, 2, "nearest")
COARSE = us.FPFormat(2, 1, "nearest")


def simulate(module, values=VALUES):
    return us.transforms.simulate_format(module, values, GRADIENTS)


def compile_eagerly(module):
    return torch.compile(module, backend="eager")


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 4)
        self.fc2 = nn.Linear(4, 4)

    def forward(self, x):
        return x + self.fc2(torch.tanh(self.fc1(x)))


class Method(Residual):
    """A method of another class is set on each instance."""

    def __init__(self):
        super().__init__()
        self.forward = types.MethodType(lambda self, x: 3 * self.fc1(x), self)


class Decorated(Residual):
    """The frame of its forward is torch's own."""

    @torch.no_grad()
    def twice(self, x):
        return 2 * x

    @torch.enable_grad()
    def forward(self, x):
        return self.fc1(x) * 2


MODULES = [
    Residual,
    Method,
    Decorated,
    lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)),
    lambda: nn.Linear(4, 4),
]
TRANSFORMS = {"simulate": simulate, "track": us.track_scales, "copy": copy.deepcopy}


def expected(module, x, coarse=False):
    """The result with rounded products, computed by hand."""

    class Round(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is nn.functional.linear:
                round_ = [*([COARSE] * coarse), VALUES]
                for number_format in round_:
                    args = (*map(number_format.quantise_fwd, args[:2]), *args[2:])
                y = func(*args, **(kwargs or {}))
                return GRADIENTS.quantise_bwd(y)
            return func(*args, **(kwargs or {}))

    leaf = x.clone().requires_grad_()
    with Round():
        y = module(leaf)
    y.square().sum().backward()
    return y.detach(), leaf.grad


@pytest.mark.parametrize("order", list(itertools.permutations(TRANSFORMS)), ids="-".join)
@pytest.mark.parametrize("make", MODULES, ids=lambda make: getattr(make, "__name__", "lambda"))
def test_every_order_gives_every_effect(make, order):
    torch.manual_seed(0)
    module, x = make(), torch.randn(3, 4)
    transformed = module
    for name in order:
        transformed = TRANSFORMS[name](transformed)
    leaf = x.clone().requires_grad_()
    y = transformed(leaf)
    y.square().sum().backward()
    assert all(p.grad is None for p in module.parameters())
    assert any(p.grad is not None for p in transformed.parameters())
    value, gradient = expected(module, x)
    torch.testing.assert_close(y.detach(), value)
    torch.testing.assert_close(leaf.grad, gradient)
    nodes = list(transformed.scales_graph().nodes)
    assert any(getattr(n.target, "__name__", "") == "quantised_linear" for n in nodes)
    assert sum("metrics" in n.meta and n.meta["metrics"].bwd is not None for n in nodes) > 3


def test_two_formats_round_twice():
    torch.manual_seed(0)
    module, x = Residual(), torch.randn(3, 4)
    value, _ = expected(module, x, coarse=True)
    torch.testing.assert_close(simulate(simulate(module, VALUES), COARSE)(x).detach(), value)


class Changed(Residual):
    """What changes a product, in place or not."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, x):
        hidden = self.change(self.fc1(x))
        product = nn.functional.scaled_dot_product_attention(hidden, hidden, hidden)
        return self.fc2(self.change(product))


class ChangedAgain(Changed):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


def fill_first(y):
    y.view(-1)[0] = 0
    return y


def without_first(y):
    return torch.cat([y.new_zeros(1), y.reshape(-1)[1:]]).view(y.shape)


CHANGES = {
    "function": (lambda y: nn.functional.relu(y, inplace=True), torch.relu),
    "method": (lambda y: y.mul_(2), lambda y: y * 2),
    "view": (fill_first, without_first),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("order", ["simulate", "simulate-simulate", "simulate-track"])
@pytest.mark.parametrize("kind", [Changed, ChangedAgain])
def test_a_product_may_be_changed_in_place(kind, order, change):
    check_in_place(kind, [TRANSFORMS[name] for name in order.split("-")], *CHANGES[change])


def check_in_place(kind, transforms, in_place, change):
    results = []
    for each in (in_place, change):
        torch.manual_seed(0)
        module, leaf = kind(each), torch.randn(3, 4, requires_grad=True)
        for transform in transforms:
            module = transform(module)
        y = module(leaf)
        gradients = torch.autograd.grad(y.square().sum(), [leaf, *module.parameters()])
        results.append((y, *gradients))
    torch.testing.assert_close(*results)


def test_torch_compile_keeps_what_a_transform_does():
    torch.manual_seed(0)
    module, x = Residual(), torch.randn(3, 4)
    value, _ = expected(module, x)
    simulated = simulate(module)
    for outer in (simulated, nn.Sequential(simulated)):
        compiled = compile_eagerly(outer)
        for _ in range(2):
            torch.testing.assert_close(compiled(x).detach(), value)
    tracked = us.track_scales(module)
    compile_eagerly(tracked)(x)
    assert len(tracked.scales_graph().nodes) > 3


@pytest.mark.parametrize("outer", [simulate, us.track_scales, us.compile])
def test_a_transformed_part_is_refused(outer):
    with pytest.raises(UnsupportedError, match="whose 1 is transformed"):
        outer(nn.Sequential(nn.ReLU(), simulate(Residual())))


def test_tracking_and_compiling_exclude_each_other():
    for chain in (
        lambda m: us.compile(us.track_scales(m)),
        lambda m: us.track_scales(us.compile(m)),
    ):
        with pytest.raises(UnsupportedError, match="tracked and compiled"):
            chain(Residual())


def test_a_function_that_was_set_as_forward_is_refused():
    module = Residual()
    old = module.forward
    module.forward = lambda x: 2 * old(x)
    for whole in (module, nn.Sequential(module)):
        with pytest.raises(UnsupportedError, match="would run the original"):
            simulate(whole)


def test_a_copy_records_for_itself():
    one = us.track_scales(Residual())
    other = copy.deepcopy(one)
    one(torch.randn(3, 4))
    assert len(one.scales_graph().nodes) > 3
    assert not other.scales_graph().nodes
    other(torch.randn(3, 4))
    assert len(other.scales_graph().nodes) > 3


def test_what_torch_compile_does_not_trace_is_refused():
    class Untraced(nn.Module):
        @torch.compiler.disable
        def forward(self, x):
            return nn.functional.linear(x, x)

    for transform in (us.compile, us.track_scales):
        with pytest.raises(UnsupportedError, match="traced nothing"):
            transform(Untraced())(torch.randn(3, 3))
