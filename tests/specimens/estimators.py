"""Families of straight-through and surrogate Functions, and smooth ones that look alike.

A family takes a size, a dtype and a seed and gives a Function with its inputs. `ESTIMATORS` are
right as they are: forward is a step, backward the one that the field trains with; nothing is
declared. `PRETENDERS` are exact Functions whose backward has a real error, and whose forward looks
like steps: steep, softened, saturated, on large numbers, or quantised in another input.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["ESTIMATORS", "PRETENDERS", "Family"]

# The least weights that share one mean: a filter of 3 by 3.
FILTER = 9

Family = Callable[[int, torch.dtype, int], tuple[Any, tuple[Any, ...]]]


def drawn(size, dtype, seed, scale=1.0):
    """Normal entries that require a gradient."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(size, dtype=torch.float64, generator=generator) * scale
    return values.to(dtype).requires_grad_()


def unary(name, forward, backward, scale=1.0, *, saves=True):
    """The family of a Function of one tensor."""

    class Unary(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            if saves:
                ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx, cotangent):
            return backward(ctx.saved_tensors[0] if saves else None, cotangent)

    Unary.__name__ = Unary.__qualname__ = name
    return lambda size, dtype, seed: (Unary, (drawn(size, dtype, seed, scale),))


def straight(name, forward, scale=1.0):
    """A step with the identity as its backward."""
    return unary(name, forward, lambda _, g: g, scale, saves=False)


def hard(name, forward, bound=1.0, scale=1.0):
    """A step with the identity inside bounds, as hard tanh has it."""
    return unary(name, forward, lambda x, g: g * (x.abs() <= bound), scale)


def one_hot(x):
    return torch.zeros_like(x).index_fill(-1, x.argmax(-1), 1.0)


def top_k(x):
    kept = x.topk(max(1, x.shape[-1] // 4), -1).indices
    return torch.zeros_like(x).scatter(-1, kept, 1.0)


class LearntStep(torch.autograd.Function):
    """LSQ (Esser and others, ICLR 2020): the step size is learnt; 4 bits, signed."""

    @staticmethod
    def forward(ctx, x, step):
        ctx.save_for_backward(x, step)
        return (x / step).clamp(-8, 7).round() * step

    @staticmethod
    def backward(ctx, cotangent):
        x, step = ctx.saved_tensors
        ratio = x / step
        below, above = ratio <= -8, ratio >= 7
        inside = ~(below | above)
        slope = torch.where(inside, ratio.round() - ratio, torch.where(below, -8.0, 7.0).to(x))
        share = 1.0 / math.sqrt(max(x.numel(), 1) * 7)
        return cotangent * inside, ((cotangent * slope).sum() * share).reshape(step.shape)


class LearntRange(torch.autograd.Function):
    """Fake-quantise with a learnt scale and zero point, 8 bits, as LSQ+ and torch have it."""

    @staticmethod
    def forward(ctx, x, scale, zero):
        ctx.save_for_backward(x, scale, zero)
        return ((x / scale + zero).round().clamp(0, 255) - zero.round()) * scale

    @staticmethod
    def backward(ctx, cotangent):
        x, scale, zero = ctx.saved_tensors
        place = (x / scale + zero).round()
        inside = (place >= 0) & (place <= 255)
        code = place.clamp(0, 255) - zero.round()
        slope = torch.where(inside, code - x / scale, code)
        shift = torch.where(inside, torch.zeros_like(x), -scale.expand_as(x))
        return (
            cotangent * inside,
            (cotangent * slope).sum().reshape(scale.shape),
            (cotangent * shift).sum().reshape(zero.shape),
        )


class LearntClip(torch.autograd.Function):
    """PACT (Choi and others, 2018): the clipping level of an activation is learnt; 4 bits."""

    @staticmethod
    def forward(ctx, x, level):
        ctx.save_for_backward(x, level)
        unit = 15 / level
        return (torch.minimum(x.clamp(min=0), level) * unit).round() / unit

    @staticmethod
    def backward(ctx, cotangent):
        x, level = ctx.saved_tensors
        above = x >= level
        inside = (x > 0) & ~above
        return cotangent * inside, (cotangent * above).sum().reshape(level.shape)


class Ternary(torch.autograd.Function):
    """TWN (Li and others, 2016) with a threshold that is given."""

    @staticmethod
    def forward(ctx, x, threshold):
        return x.sign() * (x.abs() > threshold)

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent, None


class AbsoluteMaximum(torch.autograd.Function):
    """8 bits on a range that is measured: the largest magnitude (BitNet's activations)."""

    @staticmethod
    def forward(ctx, x):
        scale = 127 / x.abs().max().clamp(min=1e-5)
        return (x * scale).round() / scale

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


class MinimumMaximum(torch.autograd.Function):
    """4 bits between the smallest and the largest entry, as activations are often quantised."""

    @staticmethod
    def forward(ctx, x):
        low = x.min()
        scale = 15 / (x.max() - low).clamp(min=1e-5)
        return ((x - low) * scale).round() / scale + low

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


class SignMean(torch.autograd.Function):
    """Signs times the mean magnitude (XNOR-Net, Rastegari and others, 2016)."""

    @staticmethod
    def forward(ctx, x):
        return x.sign() * x.abs().mean()

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


class Codebook(torch.autograd.Function):
    """The nearest of 16 codes that are given (a scalar vector-quantiser)."""

    @staticmethod
    def forward(ctx, x, codes):
        nearest = (x.unsqueeze(-1) - codes).abs().argmin(-1)
        return codes[nearest]

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent, None


class LeakyNeuron(torch.autograd.Function):
    """One step of a leaky neuron: spikes through a surrogate, the membrane as it is."""

    @staticmethod
    def forward(ctx, current, membrane, decay):
        moved = decay * membrane + current
        ctx.save_for_backward(membrane, decay, moved)
        return (moved > 1.0).to(moved.dtype), moved

    @staticmethod
    def backward(ctx, spikes_cotangent, moved_cotangent):
        membrane, decay, moved = ctx.saved_tensors
        slope = spikes_cotangent / (1 + 10 * (moved - 1).abs()) ** 2 + moved_cotangent
        return slope, slope * decay, (slope * membrane).sum().reshape(decay.shape)


def with_inputs(function, *others):
    """The family of a Function of a tensor and fixed further inputs."""

    def family(size, dtype, seed):
        x = drawn(size, dtype, seed)
        return function, (x, *(other(x) for other in others))

    return family


def number(value, *, learnt=True):
    return lambda x: torch.tensor([value], dtype=x.dtype, requires_grad=learnt)


def half_rounded(name, error=1.0):
    """The family that rounds one half of the entries, straight through, and squares the other."""

    class Half(torch.autograd.Function):
        @staticmethod
        def rule(x):
            return torch.cat([0 * x[: len(x) // 2], x[len(x) // 2 :].square()])

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            half = len(x) // 2
            return torch.cat([x[:half].round(), x[half:].square()])

        @staticmethod
        def backward(ctx, cotangent):
            (x,) = ctx.saved_tensors
            half = len(x) // 2
            return torch.cat([cotangent[:half], 2 * error * x[half:] * cotangent[half:]])

    Half.__name__ = Half.__qualname__ = name
    # Large enough to change its code: what never does cannot be told from a forgotten mask.
    return lambda size, dtype, seed: (Half, (drawn(size, dtype, seed, 10.0),))


def codes(x):
    return torch.linspace(-2, 2, 16, dtype=x.dtype)


def spike(x):
    return (x > 0).to(x.dtype)


ESTIMATORS: dict[str, Family] = {
    "round": straight("Round", torch.round),
    "round-large": straight("RoundLarge", torch.round, 100.0),
    "grid-tenth": straight("GridTenth", lambda x: (x * 10).round() / 10),
    "grid-256": straight("Grid256", lambda x: (x * 256).round() / 256),
    "floor": straight("Floor", torch.floor),
    "ceil": straight("Ceil", torch.ceil),
    "sign": straight("Sign", torch.sign),
    "sign-hard": hard("SignHard", torch.sign),
    "binary": hard("Binary", lambda x: torch.where(x >= 0, 1.0, -1.0).to(x.dtype)),
    "threshold": straight("Threshold", lambda x: (x > 0.3).to(x.dtype)),
    "threshold-far": straight("ThresholdFar", lambda x: (x > 2.5).to(x.dtype)),
    "one-hot": straight("OneHot", one_hot),
    "top-k": straight("TopK", top_k),
    "clamped-grid": hard("ClampedGrid", lambda x: (x.clamp(-1, 1) * 7).round() / 7),
    "round-single": straight("RoundSingle", lambda x: x.float().round().to(x.dtype)),
    "grid-single": straight("GridSingle", lambda x: ((x.float() * 20).round() / 20).to(x.dtype)),
    "detach-trick": straight("DetachTrick", lambda x: x + (x.round() - x)),
    "learnt-step": with_inputs(LearntStep, number(0.3)),
    "learnt-range": with_inputs(LearntRange, number(0.02), number(128.0)),
    "learnt-clip": with_inputs(LearntClip, number(1.5)),
    "ternary": with_inputs(Ternary, lambda x: 0.5),
    "absolute-maximum": with_inputs(AbsoluteMaximum),
    "minimum-maximum": with_inputs(MinimumMaximum),
    "sign-mean": lambda size, *others: with_inputs(SignMean)(max(size, FILTER), *others),
    "power-of-two": straight(
        "PowerOfTwo", lambda x: x.sign() * x.abs().clamp(min=1e-3).log2().round().exp2()
    ),
    "half-rounded": half_rounded("HalfRounded"),
    "codebook": with_inputs(Codebook, codes),
    "leaky-neuron": with_inputs(LeakyNeuron, lambda x: x.detach().flip(0).requires_grad_(),
                                number(0.9)),
    "spike-sigmoid": unary(
        "SpikeSigmoid", spike, lambda x, g: g * 4 * (4 * x).sigmoid() * (-4 * x).sigmoid()
    ),
    "spike-arctan": unary(
        "SpikeArctan", spike, lambda x, g: g / (1 + (math.pi * x).square())
    ),
    "spike-triangle": unary(
        "SpikeTriangle", spike, lambda x, g: g * (1 - x.abs()).clamp(min=0)
    ),
    "spike-fast": unary("SpikeFast", spike, lambda x, g: g / (1 + 25 * x.abs()) ** 2),
}  # fmt: skip


def smooth(name, formula, error=1.5, scale=1.0, shift=0.0):
    """An exact Function of a smooth formula whose backward is off by a factor."""

    class Smooth(torch.autograd.Function):
        rule = staticmethod(formula)

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return formula(x)

        @staticmethod
        def backward(ctx, cotangent):
            return error * torch.func.vjp(formula, *ctx.saved_tensors)[1](cotangent)[0]

    Smooth.__name__ = Smooth.__qualname__ = name

    def family(size, dtype, seed):
        x = drawn(size, dtype, seed, scale).detach() + shift
        return Smooth, (x.requires_grad_(),)

    return family


class RoundTimesWeight(torch.autograd.Function):
    """Straight through x; the gradient of the weight is twice what it is."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x.round() * weight

    @staticmethod
    def backward(ctx, cotangent):
        x, weight = ctx.saved_tensors
        return cotangent * weight, 2 * x.round() * cotangent


def softened(x, sharpness):
    """Rounding, softened (Agustsson and Theis, NeurIPS 2020)."""
    middle = x.floor() + 0.5
    return middle + (sharpness * (x - middle)).tanh() / (2 * math.tanh(sharpness / 2))


PRETENDERS: dict[str, Family] = {
    "steep": smooth("Steep", lambda x: (50 * x).tanh()),
    "steeper": smooth("Steeper", lambda x: (1000 * x).tanh(), scale=0.01),
    "softened": smooth("Softened", lambda x: softened(x, 6.0)),
    "softened-sharp": smooth("SoftenedSharp", lambda x: softened(x, 25.0)),
    "sine-steps": smooth("SineSteps", lambda x: x - (2 * math.pi * x).sin() / (2 * math.pi)),
    "rectifier": smooth("Rectifier", lambda x: x.relu()),
    "large-scale": smooth("LargeScale", lambda x: x * x / 1e6, scale=1e6),
    "large-offset": smooth("LargeOffset", lambda x: (x - 1e4) * 3, shift=1e4),
    "small-slope": smooth("SmallSlope", lambda x: 1 + 0.01 * x.sin(), error=3.0),
    "single-inside": smooth("SingleInside", lambda x: x.float().sin().to(x.dtype)),
    "single-large": smooth("SingleLarge", lambda x: (x.float() / 1e5).sin().to(x.dtype), scale=1e6),
    "single-steep": smooth("SingleSteep", lambda x: (50 * x.float()).tanh().to(x.dtype)),
    "logistic": smooth("Logistic", lambda x: (20 * x).sigmoid()),
    "hard-shrink": smooth("HardShrink", lambda x: x * (x.abs() > 0.5)),
    "hard-shrink-large": smooth("HardShrinkLarge", lambda x: x * (x.abs() > 5e3), scale=1e4),
    "fraction": smooth("Fraction", lambda x: x - x.floor()),
    "fraction-fine": smooth("FractionFine", lambda x: 20 * x - (20 * x).floor()),
    "lifted": smooth("Lifted", lambda x: x + (x > 0)),
    "lifted-rectifier": smooth("LiftedRectifier", lambda x: (x + 0.5) * (x > 0)),
    "staircase": smooth("Staircase", lambda x: x * x.floor()),
    "half-rounded-wrong": half_rounded("HalfRoundedWrong", 1.5),
    "weight-of-round": with_inputs(
        RoundTimesWeight, lambda x: (x.detach() * 0 + 0.7).requires_grad_()
    ),
}
