"""unit-scaling's transforms give the effect of each, or refuse: nothing is left out silently."""

import copy
import types

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from pullback.compat import unit_scaling as us
from pullback.errors import UnsupportedError

VALUES = us.FPFormat(4, 3, "nearest")
GRADIENTS = us.FPFormat(5, 2, "nearest")
COARSE = us.FPFormat(2, 1, "nearest")
TRANSFORMS = [
    lambda module: us.transforms.simulate_format(module, VALUES, GRADIENTS),
    us.track_scales,
    us.compile,
]
simulate = TRANSFORMS[0]
each_transform = pytest.mark.parametrize("transform", TRANSFORMS, ids=["simulate", "track", "comp"])


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 4)
        self.fc2 = nn.Linear(4, 4)
        self.factor = 1.0

    def forward(self, x):
        return x + self.fc2(torch.tanh(self.fc1(x))) * self.factor


class Method(Residual):
    """A method of another class is set on each instance."""

    def __init__(self):
        super().__init__()
        self.forward = types.MethodType(lambda self, x: 3 * self.fc1(x), self)


class Decorated(Residual):
    """The frame of its forward is torch's own."""

    @torch.enable_grad()
    def forward(self, x):
        return self.fc1(x) * 2


class Operator(Residual):
    def forward(self, x):
        return self.fc2(torch.ops.aten.linear(x, self.fc1.weight, self.fc1.bias))


def expected(module, x, formats=(VALUES,)):
    """The result with rounded products, computed by hand."""

    class Round(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func not in (functional.linear, torch.ops.aten.linear):
                return func(*args, **(kwargs or {}))
            for each in formats:
                args = (*map(each.quantise_fwd, args[:2]), *args[2:])
            return GRADIENTS.quantise_bwd(functional.linear(*args, **(kwargs or {})))

    leaf = x.clone().requires_grad_()
    with Round():
        y = module(leaf)
    return y.detach(), torch.autograd.grad(y.square().sum(), leaf)[0]


def sequential():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))


@pytest.mark.parametrize("make", [Residual, Method, Decorated, Operator, sequential])
def test_what_is_tracked_is_rounded(make):
    torch.manual_seed(0)
    module, x = make(), torch.randn(3, 4)
    transformed = copy.deepcopy(us.track_scales(copy.deepcopy(simulate(module))))
    for _ in range(2):
        leaf = x.clone().requires_grad_()
        y = transformed(leaf)
        y.square().sum().backward()
        torch.testing.assert_close((y.detach(), leaf.grad), expected(module, x))
    assert all(p.grad is None for p in module.parameters())
    assert any(p.grad is not None for p in transformed.parameters())
    nodes = list(transformed.scales_graph().nodes)
    names = [getattr(n.target, "__name__", "") for n in nodes]
    assert names.count("quantise_fwd") == 2 * names.count("quantise_bwd") > 0
    assert sum("metrics" in n.meta and n.meta["metrics"].bwd is not None for n in nodes) > 3


def test_two_formats_round_twice():
    torch.manual_seed(0)
    module, x = Residual(), torch.randn(3, 4)
    twice = us.transforms.simulate_format(simulate(module), COARSE, us.FPFormat(8, 20, "nearest"))
    value, _ = expected(module, x, [VALUES, COARSE])
    torch.testing.assert_close(twice(x).detach(), value)


class Changed(Residual):
    """What changes a product, in place or not."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, x):
        hidden = self.change(self.fc1(x))
        product = functional.scaled_dot_product_attention(hidden, hidden, value=hidden)
        return self.fc2(self.change(product))


def fill_first(y):
    y.view(-1)[0] = 0
    return y


def without_first(y):
    return torch.cat([y.new_zeros(1), y.reshape(-1)[1:]]).view(y.shape)


@pytest.mark.parametrize("track", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        (lambda y: functional.relu(y, inplace=True), torch.relu),
        (lambda y: y.mul_(2), lambda y: y * 2),
        (fill_first, without_first),
    ],
    ids=["function", "method", "view"],
)
def test_a_product_may_be_changed_in_place(changes, track):
    results = []
    for each in changes:
        torch.manual_seed(0)
        module, leaf = simulate(Changed(each)), torch.randn(3, 4, requires_grad=True)
        module = us.track_scales(module) if track else module
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
        compiled = torch.compile(outer, backend="eager")
        for _ in range(2):
            torch.testing.assert_close(compiled(x).detach(), value)


@each_transform
def test_a_transformed_part_is_not_traced_past_its_transform(transform):
    with pytest.raises(RuntimeError, match="graph_break"):
        transform(nn.Sequential(nn.ReLU(), simulate(Residual())))(torch.randn(3, 4))


@each_transform
@pytest.mark.parametrize("last", [us.track_scales, us.compile])
def test_tracking_and_compiling_come_last(last, transform):
    with pytest.raises(UnsupportedError, match="comes last"):
        transform(last(Residual()))


def test_a_function_that_was_set_as_forward_is_refused():
    module = Residual()
    old = module.forward
    module.forward = lambda x: 2 * old(x)
    for whole in (module, nn.Sequential(module)):
        with pytest.raises(UnsupportedError, match="would run the original"):
            simulate(whole)


def test_a_copy_records_for_itself():
    one = us.track_scales(Residual())
    one(torch.randn(3, 4))
    other = copy.deepcopy(one)
    assert len(one.scales_graph().nodes) > 3
    assert not other.scales_graph().nodes
    other(torch.randn(3, 4))
    assert len(other.scales_graph().nodes) > 3


class Disabled(Residual):
    @torch.compiler.disable
    def part(self, x):
        return self.fc1(x)

    def forward(self, x):
        return self.fc2(torch.tanh(self.part(x)))


class Checkpointed(Residual):
    def forward(self, x):
        return self.fc2(
            checkpoint(lambda x: functional.dropout(self.fc1(x)), x, use_reentrant=False)
        )


class Conditional(Residual):
    def forward(self, x):
        return torch.cond(x.sum() > 100, lambda x: -self.fc1(x), self.fc1, (x,))


class Attends(Residual):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return functional.linear(x, weight)

    @staticmethod
    def backward(ctx, cotangent):
        x, weight = ctx.saved_tensors
        return cotangent @ weight, cotangent.T @ x


class Custom(Residual):
    def forward(self, x):
        return self.fc2(Product.apply(x, self.fc1.weight))


class Encoder(Residual):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).eval()

    def forward(self, x):
        return self.layer(x[None])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", [Disabled, Checkpointed, Conditional, Attends, Custom, Encoder])
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_product_out_of_reach_is_refused(make):
    simulated = simulate(make())
    # Without gradients the compiler takes a custom Function apart, and its product is rounded.
    for mode in (torch.enable_grad, torch.no_grad)[: 1 if make is Custom else 2]:
        with mode(), pytest.raises(RuntimeError, match=r"of one graph|checkpoint|Skip inlining"):
            simulated(torch.randn(3, 4))


def run_counted(module, x):
    with FlopCounterMode(display=False):
        module(x)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(
    "run",
    [
        run_counted,
        lambda module, x: torch.func.grad(lambda t: module(t).sum())(x),
        lambda module, x: torch.vmap(module)(x[None]),
    ],
    ids=["dispatch mode", "grad", "vmap"],
)
@each_transform
def test_what_torch_does_not_trace_is_refused(transform, run):
    module, x = transform(Residual()), torch.randn(3, 4)
    with pytest.raises(Exception, match=r"functorch|fullgraph|requires_grad_"):
        run(module, x)


def test_more_recompilations_than_torch_allows_are_refused():
    module, x = simulate(Residual()), torch.randn(3, 4)
    with pytest.raises(Exception, match="fullgraph"):  # noqa: PT012 - it is one of them
        for factor in range(12):
            module.factor = float(factor)
            module(x)


@pytest.mark.parametrize("warm", [False, True], ids=["first", "again"])
@each_transform
def test_a_tracer_that_is_turned_off(transform, warm):
    module, x = transform(Residual()), torch.randn(3, 4)
    if warm:
        module(x)
    with torch.compiler.set_stance("force_eager"), pytest.raises(UnsupportedError, match="nothing"):
        module(x)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is")
def test_scripted_parts_are_refused():
    with pytest.raises(UnsupportedError, match="scripted module"):
        simulate(nn.Sequential(torch.jit.script(nn.Linear(4, 4))))
