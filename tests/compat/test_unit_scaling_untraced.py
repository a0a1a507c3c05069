"""What torch.compile leaves in eager code is rounded like the rest, or refused by name."""

import contextlib
from functools import partial

import pytest
import torch
from tests.versions import refused_before
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
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


class CheckpointedUnseen(Checkpointed):
    @torch.compiler.disable
    def forward(self, x):
        return super().forward(x)


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


KINDS = [Layers, Disabled, Unseen, Checkpointed, CheckpointedUnseen, Conditional, Operator]


@pytest.mark.parametrize("kind", KINDS)
def test_every_layer_is_rounded(kind):
    torch.manual_seed(0)
    module, x = kind(), torch.randn(4, 6)
    simulated = simulate(module)
    for _ in range(2):
        check(simulated, module, x)
    twice = us.transforms.simulate_format(simulated, COARSE, us.FPFormat(8, 20, "nearest"))
    check(twice, module, x, (COARSE, VALUES))


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


def test_a_branch_that_rounds_stochastically_has_no_gradient():
    module, x = Conditional(), torch.randn(4, 6)
    for simulated in (us.simulate_fp8(module), us.simulate_fp8(simulate(module))):
        with pytest.raises(UnsupportedError, match=r"inside of torch\.cond"):
            simulated(x)
        with torch.no_grad():
            assert simulated(x).shape == x.shape


@pytest.mark.parametrize("warm", [False, True], ids=["first", "again"])
@pytest.mark.parametrize(
    "around",
    [
        lambda: FlopCounterMode(display=False),
        lambda: torch.compiler.set_stance("force_eager"),
        lambda: torch._dynamo.config.patch(disable=True),
        contextlib.nullcontext,
    ],
    ids=["dispatch mode", "stance", "disabled", "nothing"],
)
def test_whatever_turns_the_tracer_off(around, warm):
    torch.manual_seed(0)
    module, x = Layers(), torch.randn(4, 6)
    simulated = simulate(module)
    if warm:
        check(simulated, module, x)
    with around():
        check(simulated, module, x)


@refused_before(
    "2.8", "its view.dtype has no rule for vmap", match="Batching of RoundValueFunction"
)
@pytest.mark.parametrize("warm", [False, True], ids=["first", "again"])
def test_transforms_of_torch_func(warm):
    torch.manual_seed(0)
    module, x = Layers(), torch.randn(4, 6)
    simulated = simulate(module)
    if warm:
        check(simulated, module, x)
    value, gradient = expected(module, x)
    torch.testing.assert_close(torch.vmap(simulated)(x[None].expand(3, -1, -1))[1], value)
    with pytest.raises(UnsupportedError, match="nonlinear"):
        torch.func.jvp(simulated, (x,), (x,))
    got = torch.func.grad(lambda t: simulated(t).square().sum())(x)
    torch.testing.assert_close(got, gradient)


def test_more_recompilations_than_torch_allows():
    torch.manual_seed(0)
    module, x = Layers(), torch.randn(4, 6)
    simulated = simulate(module)
    for factor in range(1, 12):
        simulated.factor = module.factor = float(factor)
        check(simulated, module, x)


class Attends(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x):
        return self.attention(x, x, x)[0]


class AttendsUnseen(Attends):
    @torch.compiler.disable
    def forward(self, x):
        return super().forward(x)


def test_the_layers_within_attention_are_rounded_in_a_graph_as_outside_of_one():
    torch.manual_seed(0)
    attention, x = nn.MultiheadAttention(6, 2), torch.randn(4, 6)

    def run(module):
        leaf = x.clone().requires_grad_()
        y = module(leaf)
        (gradient,) = torch.autograd.grad(y.square().sum(), leaf)
        return y, gradient

    traced, untraced = simulate(Attends(attention)), simulate(AttendsUnseen(attention))
    torch.testing.assert_close(run(traced), run(untraced))
    assert not torch.allclose(run(traced)[0], attention(x, x, x)[0], atol=1e-4)
    twice = [us.transforms.simulate_format(each, COARSE, GRADIENTS) for each in (traced, untraced)]
    torch.testing.assert_close(run(twice[0]), run(twice[1]))
    torch.testing.assert_close(run(us.track_scales(traced)), run(untraced))


@pytest.mark.parametrize("weights", [True, False])
def test_attention_itself_is_rounded_where_no_weights_of_it_are_asked_for(weights):
    torch.manual_seed(0)
    attention, x = nn.MultiheadAttention(6, 2, bias=False), torch.randn(4, 6)
    rounded = COARSE.quantise_fwd
    whole = functional.linear(rounded(x), rounded(attention.in_proj_weight))
    q, k, v = (each.view(4, 2, 3).transpose(0, 1) for each in whole.chunk(3, -1))
    if not weights:
        q, k, v = rounded(q), rounded(k), rounded(v)
    heads = functional.scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(4, 6)
    simulated = us.transforms.simulate_format(attention, COARSE, GRADIENTS)
    expected = functional.linear(rounded(heads), rounded(attention.out_proj.weight))
    torch.testing.assert_close(simulated(x, x, x, need_weights=weights)[0], expected)


def test_the_fused_layers_are_given_back_whichever_forward_ends_last():
    first, second = us._simulate._unfused(), us._simulate._unfused()
    assert torch.backends.mha.get_fastpath_enabled()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not torch.backends.mha.get_fastpath_enabled()
    second.__exit__(None, None, None)
    assert torch.backends.mha.get_fastpath_enabled()


def test_the_fused_encoder_layer_is_not_taken():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval()
    simulated, x = simulate(layer), torch.randn(2, 5, 8)
    with torch.no_grad():
        fused = simulated(x)
    torch.testing.assert_close(fused, simulated(x.requires_grad_()).detach())
    assert not torch.allclose(fused, layer(x), atol=1e-3)


def test_products_of_a_custom_function_are_refused():
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

    with pytest.raises(UnsupportedError, match="custom Function"):
        simulate(Custom())(torch.randn(4, 6))


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


def test_a_mode_of_the_caller_sees_the_products():
    class Mode(TorchFunctionMode):
        seen = False

        def __torch_function__(self, func, types, args=(), kwargs=None):
            if not torch.compiler.is_compiling():
                Mode.seen = True
            return func(*args, **(kwargs or {}))

    torch.manual_seed(0)
    module, x = Layers(), torch.randn(4, 6)
    simulated = simulate(module)
    with Mode():
        check(simulated, module, x)
    assert Mode.seen
