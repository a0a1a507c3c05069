"""`dtype_gradient`, `noise_gradient`: the gradient in a dtype, or with noise."""

import torch
from torch import Tensor

from pullback.gradients._arguments import check_dtype, check_generator, check_std
from pullback.gradients._check import Factor, check_tensor, widen
from pullback.gradients._module import ShapeFunction, module_of

__all__ = [
    "DtypeGradient",
    "NoiseGradient",
    "dtype_gradient",
    "noise_gradient",
]


class DtypeGradientFunction(ShapeFunction):
    """The Function behind `dtype_gradient`: rounding is not linear, and declared so."""

    gradient = "nonlinear"
    _direct = True

    @staticmethod
    def shape(cotangent: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the cotangent rounded to the dtype, in its own dtype."""
        if torch.compiler.is_compiling():
            return _cast(cotangent, dtype)
        return cotangent.to(dtype).to(cotangent.dtype)


# Two casts that a compiler fuses are computed in float32 and round to neither dtype: one call that
# it runs as it is. Compiled code is differentiated once, so the operator needs no rule.
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
