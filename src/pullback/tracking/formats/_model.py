"""`simulate_format`: run a model, or a tensor, as though in a smaller number format."""

from typing import Any, overload

import torch
from torch import Tensor, nn

from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.gradients._check import check_tensor
from pullback.internal._arguments import checked
from pullback.internal.torch import run_eagerly
from pullback.tracking.formats._mode import check_output, rounding_products
from pullback.tracking.formats._noise import (
    NoiseMeter,
    QuantisationNoise,
    noise_between,
    render_noise,
)
from pullback.tracking.formats._recipe import ProductFormats, Recipe
from pullback.tracking.formats._round import (
    Named,
    RoundGradientFunction,
    Rounding,
    RoundValueFunction,
    ScaledFormat,
    draw_noise,
)
from pullback.tracking.formats._rounding import ProductRounding
from pullback.tracking.formats._table import Overflow

__all__ = ["SimulatedFormat", "check_traceable", "simulate_format"]


class SimulatedFormat(nn.Module):
    """A model that runs as though its products were computed in other formats.

    It holds the model itself, not a copy: parameters, gradients and state are shared. Made by
    `simulate_format`.

    Arguments:
        model: the module to run.
        products: how the factors of its products are rounded.
    """

    def __init__(self, model: nn.Module, products: ProductRounding) -> None:
        super().__init__()
        self.model = model
        self.products = products
        self.meter = products.meter

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model with simulated products; torch.compile breaks its graph here.

        Raises:
            UnsupportedError: a product that cannot be reached.
        """
        return self.run(*args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model with simulated products."""
        self.products.training = self.training
        with rounding_products(self.model, self.products):
            output = self.model(*args, **kwargs)
        check_output(output)
        return output

    def noise(self) -> list[QuantisationNoise]:
        """The signal-to-quantisation-noise ratio of each module's factors, since the beginning.

        Raises:
            UnsupportedError: the model was not made with ``measure=True``.
        """
        if self.meter is None:
            raise UnsupportedError(
                "The quantisation noise was not measured.",
                mend="simulate_format(model, ..., measure=True)",
            )
        return noise_between({}, self.meter.sums())

    def table(self) -> str:
        """The same as lines of text.

        Raises:
            UnsupportedError: the model was not made with ``measure=True``.
        """
        return render_noise(self.noise())

    def extra_repr(self) -> str:
        """Return the formats."""
        how = self.products
        return f"{how.recipe!r}, rounding={how.rounding!r}, overflow={how.overflow!r}"


run_eagerly(
    SimulatedFormat.run,
    "A simulated model is not compiled: torch.compile does not trace its mode. "
    "Compile without fullgraph=True, and it runs eagerly.",
)


@overload
def simulate_format(
    target: Tensor,
    *,
    forward: Named | None = None,
    backward: Named | None = None,
    rounding: Rounding = "nearest",
    overflow: Overflow = "saturate",
    generator: torch.Generator | None = None,
) -> Tensor: ...
@overload
def simulate_format(
    target: nn.Module,
    *,
    forward: Named | None = None,
    backward: Named | None = None,
    rounding: Rounding = "nearest",
    overflow: Overflow = "saturate",
    generator: torch.Generator | None = None,
    recipe: Recipe | None = None,
    measure: bool = False,
) -> SimulatedFormat: ...
@checked
def simulate_format(
    target: Tensor | nn.Module,
    *,
    forward: Named | None = None,
    backward: Named | None = None,
    rounding: Rounding = "nearest",
    overflow: Overflow = "saturate",
    generator: torch.Generator | None = None,
    recipe: Recipe | None = None,
    measure: bool = False,
) -> Tensor | SimulatedFormat:
    """Run a model's products, or a tensor, as though in smaller number formats.

    For a model, both factors of every matrix product, linear layer, convolution and attention
    are rounded to ``forward``, and the gradient that comes back to the product's result to
    ``backward``; so the two products of the backward see rounded factors as well. Sums, biases,
    normalisation and the softmax inside of attention stay in the model's dtype. With scales by
    channel or block, each of the three products rounds its factors anew along the dimension that
    it sums over, and attention is two products, whose softmax is rounded too. A bias of the same
    call gets the sum of the rounded gradient, and with scales by channel or block of the gradient
    as it came. For a tensor, its value and its gradient are rounded. Rounding passes gradients
    straight through. It is exact and works in any dtype; it simulates numerics and gains no speed.

    Arguments:
        target: a module or a floating or complex tensor of any shape.
        forward: a `NumberFormat`, a `ScaledFormat`, a name (``"E4M3"``, ``"MXFP8"``) or dtype;
            ``None`` leaves values.
        backward: the same for gradients.
        rounding: ``"nearest"``, ties to even, or ``"stochastic"``, unbiased.
        overflow: what becomes of finite values beyond the largest: that value (``"saturate"``),
            or what torch's cast makes of them and of infinities (``"cast"``), see `round_values`.
        generator: where stochastic rounding draws from; ``None`` takes torch's own.
        recipe: instead of ``forward`` and ``backward``, for a module: formats by the names of its
            modules, weights and activations apart.
        measure: whether to measure the quantisation noise of each module's factors, as
            `SimulatedFormat.noise` and `SimulatedFormat.table` give it.

    Returns:
        A tensor, or a module that shares the model's parameters.

    Raises:
        ArgumentTypeError: neither a module nor a floating tensor.
        ArgumentError: an unknown format, rounding or overflow, or no format at all.
        UnsupportedError: the model has scripted parts; or, when run, a product that cannot be
            rounded, however it is called: those of nn.LSTM, nn.GRU, nn.RNN and their cells, of
            flex_attention, of the forward of a custom Function whose gradient is wanted, of a
            generator or function that the model returns, and of reentrant activation checkpointing.
            What non-reentrant checkpointing computes again is rounded as it was, and measured
            once. Around the whole model, checkpointing is refused with a generator, which it does
            not put back, and reentrant checkpointing with stochastic rounding.

    Example:
        >>> import torch
        >>> from pullback.tracking.formats import simulate_format
        >>> x = torch.tensor([0.3, 17.0], requires_grad=True)
        >>> y = simulate_format(x, forward="E4M3", backward="E5M2")
        >>> y.sum().backward(torch.tensor(0.3))
        >>> y.detach(), x.grad
        (tensor([ 0.3125, 16.0000]), tensor([0.3125, 0.3125]))
        >>> model = simulate_format(torch.nn.Linear(2, 2), forward="E4M3", backward="E5M2")
        >>> model(x).shape
        torch.Size([2])
    """
    if (recipe is None) == (forward is None and backward is None):
        raise ArgumentError(
            "simulate_format was given no format."
            if recipe is None
            else "simulate_format was given formats and a recipe.",
            mend='Pass forward="E4M3", backward="E5M2", or recipe=Recipe({...}) for a module.',
        )
    everywhere = ProductFormats(weight=forward, activation=forward, gradient=backward)
    if isinstance(target, nn.Module):
        check_traceable(target)
        if recipe is not None:
            recipe.check(name for name, _ in target.named_modules(remove_duplicate=False))
        recipe = Recipe({"*": everywhere}) if recipe is None else recipe
        meter = NoiseMeter() if measure else None
        products = ProductRounding(recipe, rounding, overflow, generator, meter)
        return SimulatedFormat(target, products)
    if recipe is not None or measure:
        raise ArgumentTypeError(
            "Recipes, and what is measured, are for modules.", given=f"a {type(target).__name__}"
        )
    check_tensor(target, "simulate_format")
    if everywhere.remembers:
        raise UnsupportedError(
            "A single tensor has no past that its scale could come of.",
            given="a ScaledFormat with a history",
            mend="Use one without, or simulate a module.",
        )
    for chosen in (everywhere.gradient, everywhere.activation):
        if isinstance(chosen, ScaledFormat):
            chosen.check_dimension(target.dim())
    for rule, chosen in (
        (RoundGradientFunction, everywhere.of("gradient")),
        (RoundValueFunction, everywhere.of("activation")),
    ):
        if chosen is not None:
            noise = draw_noise(target, generator) if rounding == "stochastic" else None
            target = rule.apply(target, noise, chosen, overflow)
    return target


def check_traceable(model: nn.Module) -> None:
    """Refuse a model with scripted parts."""
    scripted = [
        name or "the model itself"
        for name, part in model.named_modules()
        if isinstance(part, torch.jit.ScriptModule)
    ]
    if scripted:
        raise UnsupportedError(
            "simulate_format cannot reach the products of a scripted module.",
            given=f"a torch.jit.ScriptModule: {', '.join(scripted)}",
            mend="Pass the module that it was scripted from.",
        )
