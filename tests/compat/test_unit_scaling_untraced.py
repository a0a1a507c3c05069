"""What torch.compile leaves in eager code is refused; what a checkpoint runs again is as it was."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

from pullback.compat import unit_scaling as us
from pullback.errors import UnsupportedError

VALUES = us.FPFormat(4, 3, "nearest")
GRADIENTS = us.FPFormat(5, 2, "nearest")
COARSE = us.FPFormat(2, 1, "nearest")

pytestmark = [  # where warnings are errors, Dynamo's own end its graphs
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.factor = 1.0

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))) * self.factor


class Disabled(Layers):
    @torch.compiler.disable
    def part(self, x):
        return self.first(x)

    def forward(self, x):
        return self.second(torch.tanh(self.part(x)))


class Unseen(Layers):
    @torch.compiler.disable
    def forward(self, x):
        return super().forward(x)


class Checkpointed(Layers):
    def forward(self, x):
        return self.second(torch.tanh(checkpoint(self.first, x, use_reentrant=False)))


class Conditional(Layers):
    def forward(self, x):
        hidden = torch.cond(x.sum() > 100, lambda x: -self.first(x), self.first, (x,))
        return self.second(torch.tanh(hidden))


class Scripted(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.jit.script(self.first)


class Operator(Layers):
    def forward(self, x):
        hidden = torch.ops.aten.linear(x, self.first.weight, self.first.bias)
        return self.second(torch.tanh(hidden))


def simulate(module):
    return us.transforms.simulate_format(module, VALUES, GRADIENTS)


def expected(module, x, formats=(VALUES,)):
    """The value and the gradient of the input by hand."""

    def linear(layer, x):
        weight = layer.weight
        for each in formats:
            x, weight = each.quantise_fwd(x), each.quantise_fwd(weight)
        return GRADIENTS.quantise_bwd(functional.linear(x, weight, layer.bias))

    leaf = x.detach().clone().requires_grad_()
    y = linear(module.second, torch.tanh(linear(module.first, leaf))) * module.factor
    y.square().sum().backward()
    module.zero_grad()
    return y.detach(), leaf.grad


def check(simulated, module, x, formats=(VALUES,)):
    leaf = x.detach().clone().requires_grad_()
    y = simulated(leaf)
    y.square().sum().backward()
    value, gradient = expected(module, x, formats)
    torch.testing.assert_close(y.detach(), value)
    torch.testing.assert_close(leaf.grad, gradient)


@pytest.mark.parametrize("kind", [Layers, Checkpointed, Operator])
def test_every_layer_in_a_graph_is_rounded(kind):
    torch.manual_seed(0)
    module, x = kind(), torch.randn(4, 6)
    simulated = simulate(module)
    for _ in range(2):
        check(simulated, module, x)
    twice = us.transforms.simulate_format(simulated, COARSE, us.FPFormat(8, 20, "nearest"))
    check(twice, module, x, (COARSE, VALUES))


class Attends(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2)

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


class Custom(Layers):
    def forward(self, x):
        return self.second(Product.apply(x, self.first.weight))


def encoder():
    return nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True).eval()


REFUSED = [Disabled, Unseen, Conditional, Attends, Custom, encoder]


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
@pytest.mark.parametrize("twice", [False, True])
def test_a_product_out_of_reach_is_refused(make, twice):
    simulated = simulate(make())
    simulated = us.simulate_fp8(simulated) if twice else simulated
    # Without gradients the compiler takes a custom Function apart, and its product is rounded.
    for mode in (torch.enable_grad, torch.no_grad)[: 1 if make is Custom else 2]:
        with mode(), pytest.raises(UnsupportedError, match=r"in graphs of torch\.compile alone"):
            simulated(torch.randn(2, 4, 6) if make is encoder else torch.randn(4, 6))


class Random(Layers):
    def part(self, x):
        return functional.dropout(self.first(x), 0.5, self.training)

    def forward(self, x):
        return self.second(torch.tanh(checkpoint(self.part, x, use_reentrant=False)))


class RandomWithin(Random):
    def part(self, x):
        inner = checkpoint(super().part, x, use_reentrant=False)
        return inner * torch.rand_like(inner)


class RandomSelected(Random):
    def forward(self, x):
        contexts = partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])
        hidden = checkpoint(self.part, x, use_reentrant=False, context_fn=contexts)
        return self.second(torch.tanh(hidden))


def gradients_of(module, x, seed=3):
    """The value, the gradients and the next random numbers after a step from a seed."""
    torch.manual_seed(seed)
    leaf = x.clone().requires_grad_()
    y = module(leaf)
    gradients = torch.autograd.grad(y.square().sum(), [leaf, *module.parameters()])
    return [y, *gradients, torch.rand(2)]


EXACT = us.FPFormat(8, 23, "nearest")
CHAINS = {
    "track": us.track_scales,
    "simulate": lambda module: us.transforms.simulate_format(module, EXACT, EXACT),
    "both": lambda module: us.transforms.simulate_format(us.track_scales(module), EXACT, EXACT),
}


@pytest.mark.parametrize("autocast", [False, True], ids=["single", "autocast"])
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("kind", [Random, RandomWithin, RandomSelected])
def test_a_checkpoint_draws_the_same_random_numbers_again(kind, chain, autocast):
    torch.manual_seed(0)
    module, x = kind(), torch.randn(4, 6)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        torch.testing.assert_close(gradients_of(CHAINS[chain](module), x), gradients_of(module, x))


@pytest.mark.parametrize("preserve", [True, False])
def test_a_checkpoint_rounds_stochastically_as_it_did(preserve):
    class Either(Layers):
        def forward(self, x):
            options = {"use_reentrant": False, "preserve_rng_state": preserve}
            return self.second(torch.tanh(checkpoint(self.first, x, **options)))

    torch.manual_seed(0)
    module, plain, x = Either(), Layers(), torch.randn(4, 6)
    plain.load_state_dict(module.state_dict())
    expected = gradients_of(us.simulate_fp8(plain), x)
    torch.testing.assert_close(gradients_of(us.simulate_fp8(module), x), expected)


@pytest.mark.parametrize("warm", [False, True], ids=["first", "again"])
@pytest.mark.parametrize(
    "around",
    [
        lambda: FlopCounterMode(display=False),
        lambda: torch.compiler.set_stance("force_eager"),
        lambda: torch._dynamo.config.patch(disable=True),
    ],
    ids=["dispatch mode", "stance", "disabled"],
)
def test_whatever_turns_the_tracer_off(around, warm):
    torch.manual_seed(0)
    module, x = Layers(), torch.randn(4, 6)
    simulated = simulate(module)
    if warm:
        check(simulated, module, x)
    with around(), pytest.raises(UnsupportedError, match="does not trace"):
        simulated(x)
    with pytest.raises(UnsupportedError, match="does not trace"):
        torch.func.grad(lambda t: simulated(t).sum())(x)


def test_more_recompilations_than_torch_allows():
    torch.manual_seed(0)
    module, x = Layers(), torch.randn(4, 6)
    simulated = simulate(module)

    def run_all():
        for factor in range(1, 12):
            simulated.factor = module.factor = float(factor)
            check(simulated, module, x)

    with pytest.raises(UnsupportedError, match="does not trace"):
        run_all()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is")
def test_scripted_parts_are_refused():
    with pytest.raises(UnsupportedError, match="scripted module"):
        simulate(Scripted())


@pytest.mark.parametrize("warm", [False, True], ids=["first", "again"])
@pytest.mark.parametrize("transform", [us.track_scales, us.compile])
def test_what_was_not_traced_is_neither_tracked_nor_compiled(transform, warm):
    module, x = transform(Layers()), torch.randn(4, 6)
    if warm:
        module(x)
    with pytest.raises(UnsupportedError, match="traced nothing"):
        torch.vmap(module)(x[None])
