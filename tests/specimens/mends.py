"""For each clause something broken, and the same as it is after what the report says to do.

Each mend names the words of the report that it follows, so that no advice is printed that nobody
has tried.
"""

import functools
from typing import Any, ClassVar

import torch
from tests.specimens._specimen import Mend, normal
from tests.specimens.right.domains import NegativeEntropy, shares
from tests.specimens.wrong import calls, compositions, families, machines, memory
from tests.specimens.wrong.sizes import ForwardTail, tail_fault
from tests.specimens.wrong.values import HypotenuseInHalf
from torch.autograd.function import once_differentiable

import pullback

__all__ = ["MENDS"]


class Sine(torch.autograd.Function):
    """Right in every way that torch offers."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return x.cos() * cotangent


class DerivedSine(pullback.Function):
    """The same, with every rule derived."""

    forward, setup_context, backward = Sine.forward, Sine.setup_context, Sine.backward


def with_(base: type, **more: Any) -> type:
    """A Function with other parts."""
    return type(base.__name__, (base,), {k: _part(v) for k, v in more.items()})


def _part(value: Any) -> Any:
    return staticmethod(value) if callable(value) else value


def without_source(rule):
    """The same rule, in whose source no edit can be looked for."""
    return functools.partial(rule)


def half(ctx, cotangent):
    return 0.5 * ctx.saved_tensors[0].cos() * cotangent


def cut(ctx, cotangent):
    return (ctx.saved_tensors[0].cos() * cotangent).clamp(-0.1, 0.1)


def counted_to_the_end(ctx, cotangent):
    (x,) = ctx.saved_tensors
    return x.cos() * cotangent * (x.shape[-1] > 0)


def seeded(ctx, cotangent):
    torch.manual_seed(7)
    return ctx.saved_tensors[0].cos() * cotangent


def seeded_in_a_fork(ctx, cotangent):
    with torch.random.fork_rng([]):
        return seeded(ctx, cotangent)


def squeezed(ctx, cotangent):
    slope = ctx.saved_tensors[0].cos().squeeze()
    slope = slope if slope.ndim > 1 else slope.cumsum(0)
    return slope.view(cotangent.shape) * cotangent


# double ------------------------------------------------------------------------------------------


class SavesSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.cos())
        return x.sin()

    @staticmethod
    def backward(ctx, cotangent):
        return ctx.saved_tensors[0] * cotangent


class SavesInput(SavesSlope):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    backward = Sine.backward


def cut_from_history(ctx, cotangent):
    return ctx.saved_tensors[0].detach().cos() * cotangent


class Shuffled(torch.autograd.Function):
    """Channels as pixels; of nothing, torch's own inverse is of another shape."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return torch.nn.functional.pixel_shuffle(x, 2)

    @staticmethod
    def backward(ctx, cotangent):
        return torch.nn.functional.pixel_unshuffle(cotangent, 2)


def unshuffled_or_empty(ctx, cotangent):
    if not cotangent.numel():
        return cotangent.new_zeros(ctx.shape)
    return torch.nn.functional.pixel_unshuffle(cotangent, 2)


class Once(SavesSlope):
    backward = staticmethod(once_differentiable(SavesSlope.backward))


# forward, vmap -----------------------------------------------------------------------------------


def save_both(ctx, inputs, output):
    ctx.save_for_backward(*inputs)
    ctx.save_for_forward(*inputs)


WrongTangent = with_(Sine, generate_vmap_rule=False, setup_context=save_both,
                     jvp=lambda ctx, tangent: 2 * ctx.saved_tensors[0].cos() * tangent)  # fmt: skip
RightTangent = with_(WrongTangent, jvp=lambda ctx, tangent: ctx.saved_tensors[0].cos() * tangent)
WrongBatch = with_(Sine, generate_vmap_rule=False,
                   vmap=lambda info, dims, x: (Sine.apply(x).flip(0), dims[0]))  # fmt: skip
RightBatch = with_(WrongBatch, vmap=lambda info, dims, x: (Sine.apply(x), dims[0]))

# memory ------------------------------------------------------------------------------------------


class Attribute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x.sin()

    @staticmethod
    def backward(ctx, cotangent):
        return ctx.x.cos() * cotangent


class Exponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.y = x.exp()
        return ctx.y

    @staticmethod
    def backward(ctx, cotangent):
        return ctx.y * cotangent


class SavedExponential(Exponential):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, cotangent):
        return ctx.saved_tensors[0] * cotangent


class Data(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x.data
        return x.sin()

    backward = Attribute.backward


class DataClone(Data):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.clone())
        return x.sin()

    backward = Sine.backward


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.mul_(2)

    @staticmethod
    def backward(ctx, cotangent):
        return 2 * cotangent


class DoublesDirty(Doubles):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)


class DoublesClone(Doubles):
    @staticmethod
    def forward(ctx, x):
        return x.clone().mul_(2)


class DirtyTogether(families.DirtyTwice):
    @staticmethod
    def forward(ctx, x, y):
        ctx.mark_dirty(x, y)
        return x.mul_(2), y.mul_(3)


ScalesCotangent = with_(SavesInput, backward=lambda ctx, g: g.mul_(ctx.saved_tensors[0].cos()))


def as_it_lies(ctx, cotangent):
    flat = cotangent.as_strided((cotangent.numel(),), (1,))
    return ctx.saved_tensors[0].cos() * flat.view(cotangent.shape)


ReadsMemory = with_(SavesInput, backward=as_it_lies)
ReadsContiguous = with_(SavesInput, backward=lambda ctx, g: as_it_lies(ctx, g.contiguous()))


class Shares(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(x.detach().numpy())

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


SharesNothing = with_(Shares, forward=lambda ctx, x: torch.from_numpy(x.detach().numpy()).clone())
SharesAsView = with_(Shares, forward=lambda ctx, x: x.view_as(x))

# calls -------------------------------------------------------------------------------------------


class AddsBias(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, b):
        return x + b

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent, cotangent


AddsBiasSummed = with_(AddsBias, backward=lambda ctx, g: (g, g.sum(0)))


class Scaled(torch.autograd.Function):
    """The second argument is no tensor, so that the third has the position 2."""

    @staticmethod
    def forward(ctx, x, power, w):
        ctx.save_for_backward(x, w)
        ctx.power = power
        return x**power * w

    @staticmethod
    def backward(ctx, cotangent):
        x, w = ctx.saved_tensors
        of_w = cotangent * x**ctx.power if ctx.needs_input_grad[1] else None
        return cotangent * ctx.power * x ** (ctx.power - 1) * w, None, of_w


def as_many(ctx, cotangent):
    x, weight = ctx.saved_tensors
    first = cotangent * weight if ctx.needs_input_grad[0] else None
    return first, cotangent * x


def scaled_by_position(ctx, cotangent):
    x, w = ctx.saved_tensors
    of_x = cotangent * ctx.power * x ** (ctx.power - 1) * w if ctx.needs_input_grad[0] else None
    return of_x, None, cotangent * x**ctx.power if ctx.needs_input_grad[2] else None


class TwoOutputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, first, second):
        (x,) = ctx.saved_tensors
        if first is None or second is None:
            return None
        return first * x.cos() - second * x.sin()


def two_outputs(ctx, first, second):
    (x,) = ctx.saved_tensors
    found = torch.zeros_like(x)
    found = found if first is None else found + first * x.cos()
    return found if second is None else found - second * x.sin()


class MarksTogether(families.MarksTwice):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        lower, upper = x.detach().floor(), x.detach().ceil() + 0.5
        ctx.mark_non_differentiable(lower, upper)
        return x.sin(), lower, upper


class Noise(torch.autograd.Function):
    source = torch.Generator()

    @staticmethod
    def forward(ctx, x):
        noise = torch.rand(x.shape, dtype=x.dtype, generator=Noise.source)
        ctx.save_for_backward(noise)
        return noise * x

    @staticmethod
    def backward(ctx, cotangent):
        return ctx.saved_tensors[0] * cotangent


def noise_of_torch(ctx, x):
    noise = torch.rand(x.shape, dtype=x.dtype)
    ctx.save_for_backward(noise)
    return noise * x


class OnTheClass(torch.autograd.Function):
    kept: ClassVar[Any] = None

    @staticmethod
    def forward(ctx, x):
        OnTheClass.kept = x.detach().cos()
        return x.sin()

    @staticmethod
    def backward(ctx, cotangent):
        return OnTheClass.kept * cotangent


class Forgets(Attribute):
    @staticmethod
    def backward(ctx, cotangent):
        x, ctx.x = ctx.x, ctx.x * 2
        return x.cos() * cotangent


def read_twice(ctx, cotangent):
    return ctx.saved_tensors[0].cos() * cotangent * (ctx.saved_tensors[0] * 0 + 1)


# machines ----------------------------------------------------------------------------------------


class Linear(torch.autograd.Function):
    """Under autocast its output is bfloat16, and so is the cotangent, beside float32."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, cotangent):
        x, w = ctx.saved_tensors
        return cotangent @ w.mT, x.mT @ cotangent


class LinearCustom(Linear):
    forward = staticmethod(torch.amp.custom_fwd(Linear.forward, device_type="cpu"))
    backward = staticmethod(torch.amp.custom_bwd(Linear.backward, device_type="cpu"))


class LinearSplit(torch.autograd.Function):
    @staticmethod
    def forward(x, w):
        return x @ w

    setup_context, backward = Sine.setup_context, Linear.backward


class LinearPolicy(pullback.Function):
    autocast = torch.float32
    forward, setup_context, backward = LinearSplit.forward, Sine.setup_context, Linear.backward


class OfNumpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(x.detach().numpy()).sin()

    backward = Sine.backward


@torch.library.custom_op("pullback_mends::sine", mutates_args=())
def sine(x: torch.Tensor) -> torch.Tensor:
    """A kernel of its own."""
    return torch.from_numpy(x.detach().numpy()).sin()


sine.register_fake(torch.empty_like)
OfOperator = with_(OfNumpy, forward=lambda ctx, x: (ctx.save_for_backward(x), sine(x))[1])
OfTorch = with_(OfNumpy, forward=lambda ctx, x: (ctx.save_for_backward(x), x.sin())[1])


@torch.library.custom_op("pullback_mends::cube", mutates_args=())
def cube(x: torch.Tensor) -> torch.Tensor:
    """Its fake is of another shape."""
    return x**3


cube.register_fake(lambda x: x.new_empty(x.numel() + 1))


@torch.library.custom_op("pullback_mends::right_cube", mutates_args=())
def right_cube(x: torch.Tensor) -> torch.Tensor:
    """Its fake is of the right shape."""
    return x**3


right_cube.register_fake(torch.empty_like)
for _op in (cube, right_cube):
    _op.register_autograd(
        lambda ctx, g: 3 * ctx.saved_tensors[0] ** 2 * g,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )


class InDict(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, options):
        ctx.save_for_backward(x, options["w"])
        return x * options["w"]

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.saved_tensors[1], None


class AsArgument(pullback.Function):
    @staticmethod
    def forward(x, w):
        return x * w

    setup_context = Sine.setup_context

    @staticmethod
    def backward(ctx, cotangent):
        x, w = ctx.saved_tensors
        return cotangent * w, cotangent * x


class NormAtZero(torch.autograd.Function):
    """x |x|, smooth at zero, by a quotient."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.abs()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent * 2 * x * x / x.abs()


def norm_where(ctx, cotangent):
    (x,) = ctx.saved_tensors
    return cotangent * 2 * x * x / torch.where(x == 0, 1.0, x.abs())


def pair():
    return normal(3, 4), normal(4, 2, seed=2)


def two():
    return normal(3), normal(3, seed=2)


complete = pullback.complete


# what is said of one thing alone -----------------------------------------------------------------


class ForgetsWeight(torch.autograd.Function):
    """Nothing for the second input, with which forward moves."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.saved_tensors[1], None


GivesWeight = with_(
    ForgetsWeight, backward=lambda ctx, g: (g * ctx.saved_tensors[1], g * ctx.saved_tensors[0])
)
RoughSine = with_(SavesInput, backward=lambda ctx, g: (1 + 1e-4) * ctx.saved_tensors[0].cos() * g)


def unmarked():
    return normal(3).detach(), normal(3, seed=2).detach()


def first_marked():
    return normal(3), normal(3, seed=2).detach()


def keeps_numbers(ctx, cotangent):
    if not hasattr(ctx, "slopes"):
        ctx.slopes = ctx.saved_tensors[0].cos().flatten().tolist()
    return cotangent * cotangent.new_tensor(ctx.slopes).view_as(cotangent)


def save_with_address(ctx, x):
    ctx.save_for_backward(x)
    ctx.address = x.data_ptr()
    return x.sin()


def by_address(ctx, cotangent):
    (x,) = ctx.saved_tensors
    return x.cos() * cotangent * (x.data_ptr() == ctx.address)


def mean_and_square(ctx, x):
    ctx.save_for_backward(x)
    return x.mean(-1), x.square().mean(-1)


def both_waves(ctx, first, second):
    (x,) = ctx.saved_tensors
    return x.cos() * first - x.sin() * second


def first_wave(ctx, x):
    ctx.save_for_backward(x)
    cosine = x.cos()
    ctx.mark_non_differentiable(cosine)
    return x.sin(), cosine


def none_is_zero(ctx, first, second):
    parts = [k * g for k, g in ((2, first), (3, second)) if g is not None]
    return sum(parts) if parts else None


class Detaches(torch.autograd.Function):
    """Its output carries no history, without a word."""

    @staticmethod
    def forward(ctx, x):
        y = x.sin()
        ctx.save_for_backward(x)
        ctx.mark_non_differentiable(y)
        return y

    backward = Sine.backward


def slopes_in_wide(ctx, cotangent):
    x, y = ctx.saved_tensors
    wide = (t.float() if t.itemsize < 4 else t for t in (x, y, cotangent))
    a, b, g = wide
    length = a.hypot(b)
    near = length == 0
    safe = length.masked_fill(near, 1.0)
    return tuple((g * (t / safe)).to(x.dtype) for t in (a, b))


def maximum_marked(ctx, x):
    values, indices = x.max(-1)
    ctx.save_for_backward(x, indices)
    numbers = indices.to(x.dtype)
    ctx.mark_non_differentiable(numbers)
    return values, numbers


ONE_THING = [
    Mend("values", HypotenuseInHalf, with_(HypotenuseInHalf, backward=slopes_in_wide),
         "Compute in float32", lambda: (normal(4), normal(4, seed=5))),
    Mend("non-differentiable", calls.MarksAnotherTensor,
         with_(calls.MarksAnotherTensor, forward=maximum_marked), "Mark the tensor"),
    Mend("derivative", ForgetsWeight, GivesWeight, "Return its gradient", unmarked),
    Mend("derivative", ForgetsWeight, ForgetsWeight, "with requires_grad", unmarked, first_marked),
    Mend("derivative", RoughSine, SavesInput, "check a finer one"),
    Mend("forward", right_cube, complete(right_cube), "complete(operator)", lambda: (normal(3),)),
    Mend("mutation", memory.FreesItsInput, SavesInput, "Leave the memory of inputs"),
    Mend("hooks", with_(SavesInput, backward=keeps_numbers), SavesInput, "inside backward"),
    Mend("hooks", with_(SavesInput, forward=save_with_address, backward=by_address), SavesInput,
         "Use only what ctx.saved_tensors returns"),
    Mend("retain", calls.BackwardDeletes, SavesInput, "delete nothing"),
    Mend("undefined", calls.NoneNotHandled, with_(calls.NoneNotHandled, backward=none_is_zero),
         "may be None"),
    Mend("non-differentiable", calls.MarksADifferentiable,
         with_(calls.MarksADifferentiable, forward=mean_and_square), "Do not mark"),
    Mend("non-differentiable", calls.IgnoresOneOutput,
         with_(calls.IgnoresOneOutput, backward=both_waves), "Differentiate the output"),
    Mend("non-differentiable", calls.IgnoresOneOutput,
         with_(calls.IgnoresOneOutput, forward=first_wave), "declare it with"),
    Mend("non-differentiable", Detaches, SavesInput, "or the mark"),
]  # fmt: skip


class WholeEntropy(NegativeEntropy):
    """Of any positive numbers."""

    @staticmethod
    def backward(ctx, cotangent):
        (p,) = ctx.saved_tensors
        return cotangent.unsqueeze(-1) * (p.log() + 1)


MENDS = [
    Mend("derivative", with_(Sine, backward=half), Sine, "for `0.5 * ctx.saved_tensors[0].cos()`"),
    Mend("derivative", with_(Sine, backward=without_source(half)), Sine, "Correct backward"),
    Mend("derivative", with_(Sine, backward=half),
         with_(Sine, backward=half, gradient="surrogate"), 'gradient = "surrogate"'),
    Mend("derivative", with_(Sine, backward=cut), with_(Sine, backward=cut, gradient="nonlinear"),
         'gradient = "nonlinear"'),
    Mend("derivative", with_(Sine, backward=squeezed), Sine, "Name the dimension",
         lambda: (normal(1, 4),)),
    Mend("sizes", with_(Sine, backward=squeezed), Sine, "Name the dimension",
         lambda: (normal(3, 4),)),
    Mend("linear", with_(Sine, backward=cut), Sine, "Write `ctx.saved_tensors[0].cos() * "),
    Mend("linear", with_(Sine, backward=without_source(cut)), Sine, "Make backward linear"),
    Mend("linear", with_(Sine, backward=cut), with_(Sine, backward=cut, gradient="nonlinear"),
         'gradient = "nonlinear"'),
    Mend("double", SavesSlope, SavesInput, "differentiable operations"),
    Mend("double", SavesSlope, Once, "once_differentiable"),
    Mend("double", with_(SavesInput, backward=cut_from_history), SavesInput,
         "Leave out of backward what cuts a tensor from its history"),
    Mend("double", Once, complete(Once), "pullback.complete(F)"),
    Mend("once", Once, complete(Once), "pullback.complete(F)"),
    Mend("forward", WrongTangent, RightTangent, "Correct jvp"),
    Mend("forward", WrongTangent, DerivedSine, "leave it out"),
    Mend("forward", WrongTangent, complete(Sine), "pullback.complete(F)"),
    Mend("forward", Sine, complete(Sine), "pullback.complete(F)"),
    Mend("forward-over-forward", RightTangent, DerivedSine, "Write Function from pullback"),
    Mend("forward-over-forward", RightTangent, complete(Sine), "pullback.complete(F)"),
    Mend("transforms", SavesInput, DerivedSine, "Write Function from pullback"),
    Mend("transforms", SavesInput, complete(SavesInput), "pullback.complete(F)"),
    Mend("vmap", WrongBatch, RightBatch, "Correct the vmap staticmethod"),
    Mend("vmap", WrongBatch, Sine, "generate_vmap_rule = True"),
    Mend("vmap", with_(Sine, generate_vmap_rule=False), Sine, "generate_vmap_rule = True"),
    Mend("vmap", with_(Sine, generate_vmap_rule=False), DerivedSine, "write Function"),
    Mend("saved", Attribute, SavesInput, "ctx.save_for_backward"),
    Mend("leak", Exponential, SavedExponential, "ctx.save_for_backward"),
    Mend("stale", Data, SavesInput, "ctx.save_for_backward"),
    Mend("stale", Data, DataClone, "save a clone"),
    Mend("mutation", Doubles, DoublesDirty, "ctx.mark_dirty"),
    Mend("mutation", Doubles, DoublesClone, "on a clone"),
    Mend("mutation", families.DirtyTwice, DirtyTogether, "one call with all of them", two),
    Mend("cotangent", ScalesCotangent, SavesInput, "Work on a clone"),
    Mend("layout", ReadsMemory, ReadsContiguous, ".contiguous()"),
    Mend("layout", with_(Sine, backward=counted_to_the_end), Sine, "take what forward takes"),
    Mend("layout", Shuffled, with_(Shuffled, backward=unshuffled_or_empty), "answer there by "
         "yourself, with zeros of the input's shape", lambda: (normal(2, 8, 3, 3),)),
    Mend("form", AddsBias, AddsBiasSummed, "with its shape",
         lambda: (normal(4, 3), normal(3, seed=2))),
    Mend("needs-input-grad", Scaled, with_(Scaled, backward=scaled_by_position),
         "ctx.needs_input_grad", lambda: (normal(3), 2, normal(3, seed=2))),
    Mend("needs-input-grad", calls.ShortWithoutFirst,
         with_(calls.ShortWithoutFirst, backward=as_many), "as many gradients",
         lambda: (normal(3), normal(3, seed=2))),
    Mend("undefined", TwoOutputs, with_(TwoOutputs, backward=two_outputs), "None as zero"),
    Mend("non-differentiable", families.MarksTwice, MarksTogether, "in one call"),
    Mend("alias", Shares, SharesNothing, "clone"),
    Mend("alias", Shares, SharesAsView, "x.view_as(x)"),
    Mend("deterministic", Noise, with_(Noise, forward=noise_of_torch),
         "torch's default generator"),
    Mend("state", OnTheClass, SavesInput, "on its ctx"),
    Mend("state", with_(Sine, backward=seeded), with_(Sine, backward=seeded_in_a_fork),
         "torch.random.fork_rng"),
    Mend("state", families.SharedGradient, families.Sine, "memory of the call's own"),
    Mend("retain", Forgets, SavesInput, "not change"),
    Mend("checkpoint", memory.ForwardCounts, SavesInput, "depend on its arguments"),
    Mend("checkpoint", with_(SavesInput, backward=read_twice), SavesInput,
         "Read ctx.saved_tensors once"),
    Mend("hooks", Attribute, SavesInput, "ctx.save_for_backward"),
    Mend("dtype", families.SingleOutput, families.Sine, "torch.zeros_like(x)"),
    Mend("dtype", machines.DoubleForSingle, families.Sine, "return gradients in it"),
    Mend("autocast", Linear, LinearCustom, "torch.amp.custom_fwd", pair),
    Mend("autocast", Linear, LinearPolicy, "pullback.Function", pair),
    Mend("autocast", LinearSplit, LinearPolicy, "autocast = torch.float32", pair),
    Mend("fake", OfNumpy, OfOperator, "torch.library.custom_op"),
    Mend("fake", OfNumpy, OfTorch, "Use torch operations"),
    Mend("compile", compositions.ReversedTangent, complete(compositions.ReversedTangent),
         "pullback.complete(F)"),
    Mend("sizes", tail_fault(4, "flat", "zero"), families.Sine, "Mask what lies beyond"),
    Mend("values", NormAtZero, with_(NormAtZero, backward=norm_where), "its limit"),
    Mend("compositions", compositions.ForwardOverReverse, DerivedSine,
         "Leave out jvp and vmap", lambda: (normal(3),)),
    Mend("structure", InDict, AsArgument, "arguments",
         lambda: (normal(3), {"w": normal(3, seed=2)}), two),
    Mend("registration", cube, right_cube, "register_fake", lambda: (normal(3),)),
    Mend("derivative", NegativeEntropy, WholeEntropy, "differentiate forward as it is there",
         lambda: (shares(3, 4),)),
    Mend("deterministic", ForwardTail, families.Sine, "allocate with torch.zeros",
         lambda: (normal(3, 5),)),
    *ONE_THING,
]  # fmt: skip
