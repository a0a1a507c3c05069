r"""`ProductRounding`: how the factors of a model's products, and their gradients, are rounded.

Scales are shared along the dimension that a product sums over, and the three products of a layer
sum over different ones. With :math:`Y = A B`, in :math:`R^{m \times n}`, and Q_d rounding along d,

.. math:: Y = Q_k(A) Q_k(B), \quad
    \bar A = Q_n(\bar Y) Q_n(B)^T, \quad \bar B = Q_m(A)^T Q_m(\bar Y),

each factor rounded anew from the unrounded one, as training in MX formats does (Rouhani et al.,
Microscaling Data Formats for Deep Learning, 2023, figure 8).
"""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pullback.errors import UnsupportedError
from pullback.internal.torch import (
    disable_torch_function,
    get_unwrapped,
    innermost,
    is_batchedtensor,
    is_recomputing,
)
from pullback.tensor import Function
from pullback.tracking.formats._noise import NoiseMeter
from pullback.tracking.formats._recipe import ProductFormats, Recipe, Role
from pullback.tracking.formats._round import (
    Format,
    RoundGradientFunction,
    Rounding,
    RoundValueFunction,
    ScaledFormat,
    draw_noise,
    parts_of,
    round_known,
)
from pullback.tracking.formats._table import Overflow

__all__ = ["BlockProductFunction", "ProductRounding", "Spot"]


class BlockProductFunction(Function):
    """Multiply factors that were rounded for the forward, and go back with others."""

    gradient = "nonlinear"

    @staticmethod
    def forward(  # noqa: PLR0917 - a Function takes its inputs by position
        a: Tensor,
        b: Tensor,
        again_a: Tensor,
        again_b: Tensor,
        noise: Tensor | None,
        number_format: Format | None,
        overflow: Overflow,
    ) -> Tensor:
        """Return ``a @ b``."""
        return a @ b

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the factors for the backward, and how to round the gradient."""
        a, b, again_a, again_b, noise, ctx.number_format, ctx.overflow = inputs
        ctx.shapes = a.shape, b.shape
        ctx.save_for_backward(again_a, again_b, noise)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Any, ...]:
        """Return the gradients of ``a`` and ``b``; the others are the same factors again."""
        a, b, noise = ctx.saved_tensors

        def rounded(dim: int) -> Tensor:
            if ctx.number_format is None:
                return cotangent
            chosen = ctx.number_format.along(dim)
            return RoundValueFunction.apply(cotangent, noise, chosen, ctx.overflow)

        first = second = None
        if ctx.needs_input_grad[0]:
            first = (rounded(-1) @ b.mH).sum_to_size(ctx.shapes[0])
        if ctx.needs_input_grad[1]:
            second = (a.mH @ rounded(-2)).sum_to_size(ctx.shapes[1])
        return first, second, *(None,) * 5


class Spot(NamedTuple):
    """A factor of a product, the same at each pass of a model: of which module, and its numbers.

    The parameter that a product multiplies by, where it is asked for, tells products of one module
    apart of which some passes call only a few.
    """

    module: str
    product: int
    factor: int = 0
    parameter: str = ""

    @property
    def of_gradient(self) -> "Spot":
        """That of the gradient of the product."""
        return self._replace(factor=-1)


def _peak(sizes: Tensor) -> Tensor:
    return sizes.amax() if sizes.numel() else sizes.sum()


@dataclass(eq=False)
class ProductRounding:
    """Rounds what the products of a model multiply, and remembers and measures what it saw."""

    recipe: Recipe
    rounding: Rounding
    overflow: Overflow
    generator: torch.Generator | None
    meter: NoiseMeter | None
    training: bool = True  # whether scales that come of the past learn from what is seen now
    seen: dict[Spot, Tensor] = field(default_factory=dict)  # the largest magnitudes, the last ones

    def factor(
        self,
        x: Tensor,
        formats: ProductFormats,
        role: Role,
        spot: Spot,
        dim: int = -1,
        *,
        again: bool = False,
    ) -> Tensor:
        """Return a factor of a product with its value rounded; ``again``, if it counted before."""
        wanted = formats.of(role)
        if wanted is None:
            return x
        with disable_torch_function():  # what rounding computes, the model does not call
            chosen = self._fix(wanted.along(dim), spot, x.device)
            rounded = RoundValueFunction.apply(x, self._noise(x), chosen, self.overflow)
            if self.training:
                self._see(wanted, spot, x)
            if self.meter is not None and not again and not is_recomputing():
                self.meter.add(spot.module, role, str(wanted), x, rounded)
            return rounded

    def result(self, x: Tensor, formats: ProductFormats, spot: Spot) -> Tensor:
        """Return a product whose gradient will be rounded."""
        wanted = formats.of("gradient")
        if wanted is None:
            return x
        with disable_torch_function():
            noise = self._noise(x)
            chosen = self._fix(wanted, spot.of_gradient, x.device)
            y = RoundGradientFunction.apply(x, noise, chosen, self.overflow)
            self._see_gradient(y, wanted, chosen, noise, spot)
            return y.clone()  # a Function's view must not be changed in place, a product may be

    def multiply_blocks(
        self, a: Tensor, b: Tensor, formats: ProductFormats, roles: tuple[Role, Role], spot: Spot
    ) -> Tensor:
        """Return the product of matrices whose factors are scaled along a dimension."""
        first = self.factor(a, formats, roles[0], spot, -1)
        second = self.factor(b, formats, roles[1], spot._replace(factor=1), -2)
        if not torch.is_grad_enabled():
            return first @ second
        again = (
            self.factor(a, formats, roles[0], spot._replace(factor=2), -2, again=True),
            self.factor(b, formats, roles[1], spot._replace(factor=3), -1, again=True),
        )
        wanted, noise, chosen = formats.of("gradient"), None, None
        if wanted is not None:
            batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
            with disable_torch_function():
                noise = self._noise(a.new_empty(*batch, a.shape[-2], b.shape[-1]))
                chosen = self._fix(wanted, spot.of_gradient, a.device)
        y = BlockProductFunction.apply(first, second, *again, noise, chosen, self.overflow)
        if wanted is not None and chosen is not None:
            self._see_gradient(y, wanted, chosen.along(-1), noise, spot)
        return y

    def _fix(self, number_format: Format, spot: Spot, device: torch.device) -> Format:
        """The format with the scale that its past gives; at first with that of the values.

        Source: Micikevicius et al., FP8 Formats for Deep Learning (2022), section 3.
        """
        if not isinstance(number_format, ScaledFormat) or spot not in self.seen:
            return number_format
        seen = self.seen[spot].to(device)  # the model may have been moved since
        scale = innermost(number_format.scales(seen.unsqueeze(0)).squeeze())
        return replace(number_format, chosen=scale)

    def _see(self, number_format: Format, spot: Spot, values: Tensor) -> None:
        """Remember the largest magnitude of some values, if scales are to come of it."""
        if number_format.history:
            sizes = parts_of(values.detach()).abs().nan_to_num(0.0, 0.0, 0.0).to(torch.float64)
            # Under vmap this is the peak of each example; what is kept is plain, and of all.
            peak = _peak(innermost(_peak(sizes)))
            known = self.seen.get(spot, peak.new_empty(0)).to(peak.device)
            together = torch.cat([known, peak.unsqueeze(0)])
            self.seen[spot] = innermost(together[-number_format.history :].detach())

    def _noise(self, x: Tensor) -> Tensor | None:
        return draw_noise(x, self.generator) if self.rounding == "stochastic" else None

    def _see_gradient(
        self, y: Tensor, wanted: Format, chosen: Format, noise: Tensor | None, spot: Spot
    ) -> None:
        """When a gradient comes, remember how large it is and measure what rounding loses."""
        meter, training = self.meter, self.training
        given = y
        while is_batchedtensor(y):  # below vmap: the gradient of all examples, taken outside of it
            y = get_unwrapped(y)
        if not y.requires_grad or not (meter or wanted.history):
            return

        def see(gradient: Tensor) -> None:
            if training:
                self._see(wanted, spot.of_gradient, gradient)
            if meter is not None:
                rounded = round_known(gradient.detach(), chosen, noise, self.overflow)
                meter.add(spot.module, "gradient", str(wanted), gradient, rounded)

        if given is not y and meter and (noise is not None or isinstance(chosen, ScaledFormat)):
            raise UnsupportedError(
                "simulate_format measures how gradients are rounded for each example of vmap only "
                "where they are taken within.",
                given="vmap of a model, with stochastic rounding or scales, and measure=True",
                mend="vmap(grad(f)), torch.no_grad(), or measure=False.",
            )
        y.register_hook(see)
