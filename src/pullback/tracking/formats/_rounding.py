"""`ProductRounding`: how the factors of a model's products, and their gradients, are rounded."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.errors import UnsupportedError
from pullback.internal.torch import get_unwrapped, is_batchedtensor, is_recomputing
from pullback.tracking.formats._blocks import BlockProductFunction
from pullback.tracking.formats._noise import NoiseMeter
from pullback.tracking.formats._recipe import ProductFormats, Recipe, Role
from pullback.tracking.formats._round import (
    RoundGradientFunction,
    Rounding,
    RoundValueFunction,
    draw_noise,
    round_values,
)
from pullback.tracking.formats._scaled import Format, ScaledFormat
from pullback.tracking.formats._table import Overflow

__all__ = ["ProductRounding"]


@dataclass(eq=False)
class ProductRounding:
    """Rounds what the products of a model multiply, and measures what it saw.

    Arguments:
        recipe: the formats of the products of each module.
        rounding: ``"nearest"`` or ``"stochastic"``.
        overflow: ``"saturate"`` or ``"cast"``.
        generator: where stochastic rounding draws from.
        meter: what measures the quantisation noise, if it is measured.
    """

    recipe: Recipe
    rounding: Rounding
    overflow: Overflow
    generator: torch.Generator | None
    meter: NoiseMeter | None

    def factor(
        self,
        x: Tensor,
        formats: ProductFormats,
        role: Role,
        module: str,
        dim: int = -1,
        *,
        again: bool = False,
    ) -> Tensor:
        """Return a factor of a product with its value rounded.

        Arguments:
            x: the factor.
            formats: those of the product's module.
            role: what it is.
            module: the name of the innermost module whose forward runs, ``""`` for the whole model.
            dim: the dimension that channels and blocks follow.
            again: whether it was rounded before, for another product: it counts once.
        """
        wanted = formats.of(role)
        if wanted is None:
            return x
        rounded = RoundValueFunction.apply(x, self._noise(x), wanted.along(dim), self.overflow)
        if self.meter is not None and not again and not is_recomputing():
            self.meter.add(module, role, str(wanted), x, rounded)
        return rounded

    def result(self, x: Tensor, formats: ProductFormats, module: str) -> Tensor:
        """Return a product whose gradient will be rounded."""
        wanted = formats.of("gradient")
        if wanted is None:
            return x
        noise = self._noise(x)
        y = RoundGradientFunction.apply(x, noise, wanted, self.overflow)
        self._measure_gradient(y, wanted, noise, module)
        return y.clone()  # a custom Function's view must not be changed in place, a product may be

    def multiply_blocks(
        self, a: Tensor, b: Tensor, formats: ProductFormats, roles: tuple[Role, Role], module: str
    ) -> Tensor:
        """Return the product of matrices whose factors are scaled along a dimension.

        Arguments:
            a: ``[..., m, k]``.
            b: ``[..., k, n]``.
            formats: those of the product's module.
            roles: what the factors are.
            module: as in `factor`.
        """
        first = self.factor(a, formats, roles[0], module, -1)
        second = self.factor(b, formats, roles[1], module, -2)
        if not torch.is_grad_enabled():
            return first @ second
        again = (
            self.factor(a, formats, roles[0], module, -2, again=True),
            self.factor(b, formats, roles[1], module, -1, again=True),
        )
        wanted, noise = formats.of("gradient"), None
        if wanted is not None:
            batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
            noise = self._noise(a.new_empty(*batch, a.shape[-2], b.shape[-1]))
        y = BlockProductFunction.apply(first, second, *again, noise, wanted, self.overflow)
        if wanted is not None:
            self._measure_gradient(y, wanted.along(-1), noise, module)
        return y

    def _noise(self, x: Tensor) -> Tensor | None:
        return draw_noise(x, self.generator) if self.rounding == "stochastic" else None

    def _measure_gradient(
        self, y: Tensor, wanted: Format, noise: Tensor | None, module: str
    ) -> None:
        """When a gradient comes, measure what rounding loses."""
        meter, given, y = self.meter, y, _below_vmap(y)
        if not y.requires_grad or meter is None:
            return

        def see(gradient: Tensor) -> None:
            rounded = round_values(gradient.detach(), wanted, noise, self.overflow)
            meter.add(module, "gradient", str(wanted), gradient, rounded)

        if given is not y and (noise is not None or isinstance(wanted, ScaledFormat)):
            raise UnsupportedError(
                "simulate_format measures how gradients are rounded for each example of vmap only "
                "where they are taken within.",
                given="vmap of a model, with stochastic rounding or scales, and measure=True",
                mend="vmap(grad(f)), torch.no_grad(), or measure=False.",
            )
        y.register_hook(see)


def _below_vmap(x: Tensor) -> Tensor:
    """What gets the gradient of all examples of a batch, taken outside of vmap."""
    while is_batchedtensor(x):
        x = get_unwrapped(x)
    return x
