"""The gradient within bounds, at a norm, in a dtype or with noise: not linear, and declared so."""

import functools
import math

import torch
from torch import Tensor

from pullback.gradients._arguments import (
    Dimensions,
    check_bounds,
    check_dimensions,
    check_dtype,
    check_generator,
    check_positive,
    check_std,
)
from pullback.gradients._check import Factor, check_tensor, widen
from pullback.gradients._module import ShapeFunction, module_of

__all__ = [
    "ClipGradient",
    "DtypeGradient",
    "NoiseGradient",
    "NormaliseGradient",
    "clip_gradient",
    "dtype_gradient",
    "noise_gradient",
    "normalise_gradient",
]


def _direction_of(tensor: Tensor, axes: tuple[int, ...] | None) -> tuple[Tensor, Tensor]:
    r"""Return the direction of a tensor over ``axes`` and its norm, in float32 or wider.

    The values are divided by the largest first, so that neither 1e30 nor 1e-30 in float32 is
    lost when it is squared, and the direction is finite where the norm itself overflows:

    .. math:: \frac{y}{\lVert y \rVert} = \frac{y / p}{\lVert y / p \rVert}

    For p the power of two below the largest is taken, which is exact and changes in steps: the
    right side does not depend on it, so neither does its derivative.

    The direction is of norm 1, zero where the tensor is zero, and NaN throughout a sum in which an
    element is not finite. The norm has size 1 where it was summed, and is infinite where it
    overflows.
    """
    wide = widen(tensor)
    axes = tuple(range(wide.ndim)) if axes is None else axes
    if wide.is_complex():
        # By parts: torch's quotient of complex numbers is NaN where the divisor is subnormal.
        peak = _power_of_two(torch.maximum(wide.real.abs(), wide.imag.abs()).amax(axes, True))
        relative = torch.complex(wide.real / peak, wide.imag / peak)
    else:
        peak = _power_of_two(wide.abs().amax(axes, True))
        relative = wide / peak
    length = torch.linalg.vector_norm(relative, dim=axes, keepdim=True)
    # A zero tensor has no direction and stays zero, with a finite derivative. What is not finite
    # has none either: divided by infinity its finite elements would be zeros that nobody computed.
    divisor = torch.where(torch.isfinite(length), length, torch.nan)
    direction = relative / torch.where(length == 0, torch.ones_like(length), divisor)
    return direction, length * peak


def _power_of_two(size: Tensor) -> Tensor:
    """The power of two below each positive number, and one where there is none.

    Its derivative is zero wherever there is one.
    """
    usable = torch.where((size > 0) & torch.isfinite(size), size, torch.ones_like(size))
    largest = math.frexp(torch.finfo(size.dtype).max)[1] - 1  # to which the logarithm may round up
    return torch.exp2(torch.floor(torch.log2(usable)).clamp(max=largest))


class ClipGradientFunction(ShapeFunction):
    """The Function behind `clip_gradient`: not linear in the cotangent, and declared so."""

    gradient = "nonlinear"
    _direct = True

    @staticmethod
    def shape(
        cotangent: Tensor, value: float | None, norm: float | None, axes: tuple[int, ...] | None
    ) -> Tensor:
        """Return the clipped cotangent."""
        if value is not None:
            return _clip_value(cotangent, value)
        assert norm is not None  # checked: one of them is given
        return _clip_norm(cotangent, norm, axes)


def _clip_value(cotangent: Tensor, value: float) -> Tensor:
    dtype = cotangent.dtype
    # No element can be larger, but an infinite one, and torch takes no number beyond its range.
    if value > torch.finfo(dtype).max * (1 + dtype.is_complex):
        return cotangent
    if not dtype.is_complex:
        if dtype.itemsize == 1:  # float8 has no clamp
            return widen(cotangent).clamp(-value, value).to(dtype)
        return cotangent.clamp(-value, value)
    wide = widen(cotangent)
    parts = torch.stack([wide.real, wide.imag], -1)
    # An infinite part leaves no room for a finite one: inf + 2j points along the real axis.
    infinite = torch.isinf(parts.abs().amax(-1, keepdim=True))
    finite = torch.where(infinite, torch.isinf(parts) * parts.sign(), parts)
    direction, length = _direction_of(finite, (-1,))
    clipped = torch.where((length > value) | infinite, direction * value, parts)
    return torch.complex(*clipped.unbind(-1)).to(dtype)


def _clip_norm(cotangent: Tensor, norm: float, axes: tuple[int, ...] | None) -> Tensor:
    if cotangent.numel() == 0:
        return cotangent
    direction, length = _direction_of(cotangent, axes)
    norm = min(norm, torch.finfo(length.dtype).max)
    # Below the bound the cotangent is as it was, to the last bit; a NaN is not below it.
    clipped = torch.where(length <= norm, widen(cotangent), direction * norm)
    return clipped.to(cotangent.dtype)


def clip_gradient(
    x: Tensor,
    value: float | None = None,
    norm: float | None = None,
    *,
    dim: Dimensions = None,
) -> Tensor:
    r"""Return ``x`` unchanged and clip the gradient that flows back to it.

    .. math:: \bar x = \min(\max(\bar y, -v), v) \quad\text{or}\quad
              \bar x = \bar y \, \min(1, n / \lVert \bar y \rVert_2)

    The backward is not linear in the cotangent and declares it: forward mode, which is the
    transpose of a linear map, is refused by name. A complex gradient keeps its phase and has its
    magnitude clipped. NaN stays NaN; an infinite element is clipped by value. By norm, one element
    that is NaN or infinite makes all of its norm NaN: they have no direction together. The result
    shares its memory with ``x``.

    The clipping of Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural
    networks" (ICML 2013, https://arxiv.org/abs/1211.5063), at one tensor of the graph.

    Arguments:
        x: shape (...), any floating or complex dtype.
        value: the largest magnitude of one element, > 0.
        norm: the largest Euclidean norm, > 0, measured in float32 or wider. Give either
            ``value`` or ``norm``. Under vmap each sample has its own norm.
        dim: the dimensions over which the norm is taken, each slice on its own; ``None`` takes
            the whole tensor.

    Returns:
        A view of ``x``.

    Raises:
        ArgumentTypeError: ``x`` or a bound has no usable type.
        ArgumentError: not exactly one bound, one that is not positive, or an unknown ``dim``.
        UnsupportedError: a sparse or nested tensor, or torch.export with gradients.

    Example:
        >>> import torch
        >>> from pullback.gradients import clip_gradient
        >>> x = torch.zeros(2, requires_grad=True)
        >>> (clip_gradient(x, norm=1.0) * torch.tensor([3.0, 4.0])).sum().backward()
        >>> x.grad
        tensor([0.6000, 0.8000])
    """
    check_tensor(x, "clip_gradient")
    return ClipGradientFunction.apply(x, *check_bounds(value, norm, dim, x, "clip_gradient"))


ClipGradient = module_of(clip_gradient, "norm=1.0", check=functools.partial(check_bounds, x=None))


class NormaliseGradientFunction(ShapeFunction):
    """The Function behind `normalise_gradient`: not linear in the cotangent, declared so."""

    gradient = "nonlinear"
    _direct = True

    @staticmethod
    def shape(cotangent: Tensor, norm: float, axes: tuple[int, ...] | None) -> Tensor:
        """Return the cotangent with the given norm; a zero one stays zero."""
        if cotangent.numel() == 0:
            return cotangent
        return (_direction_of(cotangent, axes)[0] * norm).to(cotangent.dtype)


def normalise_gradient(x: Tensor, norm: float = 1.0, *, dim: Dimensions = None) -> Tensor:
    r"""Return ``x`` unchanged and bring the gradient that flows back to it to a given norm.

    .. math:: y = x, \qquad \bar x = n \, \bar y / \lVert \bar y \rVert_2

    A zero gradient stays zero. The backward is not linear in the cotangent and declares it:
    forward mode is refused by name. One element that is NaN or infinite makes all of its norm NaN.
    The result shares its memory with ``x``.

    Arguments:
        x: shape (...), any floating or complex dtype.
        norm: the Euclidean norm of the result, > 0, measured in float32 or wider. Under vmap
            each sample has its own.
        dim: the dimensions over which the norm is taken, each slice on its own; ``None`` takes
            the whole tensor.

    Returns:
        A view of ``x``.

    Raises:
        ArgumentTypeError: ``x`` or the norm has no usable type.
        ArgumentError: the norm is not positive, or an unknown ``dim``.
        UnsupportedError: a sparse or nested tensor, or torch.export with gradients.

    Example:
        >>> import torch
        >>> from pullback.gradients import normalise_gradient
        >>> x = torch.zeros(2, requires_grad=True)
        >>> (normalise_gradient(x, 10.0) * torch.tensor([3.0, 4.0])).sum().backward()
        >>> x.grad
        tensor([6., 8.])
    """
    check_tensor(x, "normalise_gradient")
    norm = check_positive(norm, x, "normalise_gradient", "norm")
    axes = check_dimensions(dim, x, "normalise_gradient")
    return NormaliseGradientFunction.apply(x, norm, axes)


NormaliseGradient = module_of(normalise_gradient)


class DtypeGradientFunction(ShapeFunction):
    """The Function behind `dtype_gradient`: rounding is not linear, and declared so."""

    gradient = "nonlinear"
    _direct = True

    @staticmethod
    def shape(cotangent: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the cotangent rounded to the dtype, in its own dtype."""
        if torch.compiler.is_dynamo_compiling():
            return _cast(cotangent, dtype)
        return cotangent.to(dtype).to(cotangent.dtype)


# Two casts that a compiler fuses are computed in float32 and round to neither dtype: one call that
# it runs as it is. It has no rule: the graph of a backward that Dynamo traces is differentiated no
# more. What Dynamo does not trace runs outside of graphs, also where only its shapes are asked for.
@torch.library.custom_op("pullback_gradients::cast", mutates_args=())
def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).to(x.dtype, copy=True)


_cast.register_fake(lambda x, dtype: torch.empty_like(x))


def dtype_gradient(x: Tensor, dtype: torch.dtype) -> Tensor:
    r"""Return ``x`` unchanged and round the gradient that flows back to it to a dtype.

    .. math:: y = x, \qquad \bar x = \operatorname{round}_d(\bar y)

    The gradient keeps the dtype of ``x``, as autograd demands, and takes only values that
    ``dtype`` has: what would be lost if gradients were kept or sent in it. Values beyond its
    range, infinity too, do what torch's cast does: infinity, NaN, or (of float8_e4m3fn, from torch
    2.12 on) the largest value. Rounding is not linear and declared ``nonlinear``: forward mode is
    refused by name. At second order the rounding passes gradients straight through. The result
    shares its memory with ``x``.

    For number formats without a torch dtype, stochastic rounding and saturation, see
    `pullback.tracking.simulate_format`.

    Arguments:
        x: shape (...), any floating or complex dtype.
        dtype: the dtype to round to, floating for a real ``x`` and complex for a complex one.

    Returns:
        A view of ``x``.

    Raises:
        ArgumentTypeError: ``x`` or ``dtype`` has no usable type.
        UnsupportedError: a sparse or nested tensor, or torch.export with gradients.

    Example:
        >>> import torch
        >>> from pullback.gradients import dtype_gradient
        >>> x = torch.ones(1, requires_grad=True)
        >>> (dtype_gradient(x, torch.bfloat16) * 1.001).sum().backward()
        >>> x.grad
        tensor([1.])
    """
    check_tensor(x, "dtype_gradient")
    return DtypeGradientFunction.apply(x, check_dtype(dtype, x, "dtype_gradient"))


DtypeGradient = module_of(dtype_gradient, "torch.bfloat16")


class NoiseGradientFunction(ShapeFunction):
    """The Function behind `noise_gradient`: ``g -> g + noise``, affine and declared so.

    The noise is an argument, so that the Function itself is deterministic: a second backward
    over a retained graph, and a recomputed forward, see the same noise.
    """

    gradient = "nonlinear"
    _direct = True

    @staticmethod
    def shape(cotangent: Tensor, noise: Tensor) -> Tensor:
        """Return the cotangent plus the noise."""
        return (widen(cotangent) + noise).to(cotangent.dtype)


def noise_gradient(x: Tensor, std: Factor, generator: torch.Generator | None = None) -> Tensor:
    r"""Return ``x`` unchanged and add normal noise to the gradient that flows back to it.

    .. math:: y = x, \qquad \bar x = \bar y + \sigma \, \varepsilon, \qquad
              \varepsilon \sim \mathcal N(0, 1)

    The noise is drawn when this is called, once an element, and kept until backward (in float32
    or wider): backward is deterministic, and two backward passes over one graph agree. It is
    always drawn, so that the stream of random numbers does not depend on whether gradients are
    recorded. Complex noise has the variance :math:`\sigma^2` in all, half in each part. The
    backward is affine in the cotangent, not linear, and declared ``nonlinear``: forward mode is
    refused by name. The result shares its memory with ``x``.

    Neelakantan et al., "Adding Gradient Noise Improves Learning for Very Deep Networks" (2015,
    https://arxiv.org/abs/1511.06807).

    Arguments:
        x: shape (...), any floating or complex dtype.
        std: the standard deviation, >= 0, a number or a tensor that broadcasts to ``x``. One
            that requires a gradient gets exactly zero at first order.
        generator: where the noise is drawn from; ``None`` takes torch's own. One of your own
            breaks the graph of torch.compile.

    Returns:
        A view of ``x``.

    Raises:
        ArgumentTypeError: an argument has no usable type.
        ArgumentError: ``std`` is negative, NaN or infinite, or does not broadcast.
        UnsupportedError: a sparse or nested tensor, or torch.export with gradients.

    Example:
        >>> import torch
        >>> from pullback.gradients import noise_gradient
        >>> x = torch.zeros(1000, requires_grad=True)
        >>> noise_gradient(x, 0.5, torch.Generator().manual_seed(0)).sum().backward()
        >>> bool((x.grad.std() - 0.5).abs() < 0.05)
        True
    """
    check_tensor(x, "noise_gradient")
    std = check_std(std, x, "noise_gradient")
    check_generator(generator, x, "noise_gradient")
    wide = widen(x.detach())
    if generator is None:
        noise = torch.randn_like(wide)
    else:
        noise = torch.randn(wide.shape, generator=generator, dtype=wide.dtype, device=wide.device)
    return NoiseGradientFunction.apply(x, noise * std)


NoiseGradient = module_of(noise_gradient, "0.1")
