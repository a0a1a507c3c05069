"""`simulate_format`: run a model, or a tensor, as though in a smaller number format."""

from typing import Any, overload

import torch
from torch import Tensor, nn

from pullback.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from pullback.internal.torch import run_eagerly
from pullback.tracking.formats._mode import rounding_products
from pullback.tracking.formats._number_format import NumberFormat, find_format
from pullback.tracking.formats._round import Overflow, Rounding, check_choices, check_values
from pullback.tracking.formats._simulate import simulate_tensor

__all__ = ["SimulatedFormat", "simulate_format"]

Named = NumberFormat | str | torch.dtype | None


class SimulatedFormat(nn.Module):
    """A model that runs as though its products were computed in other formats.

    It holds the model itself, not a copy: parameters, gradients and state are shared. Made by
    `simulate_format`.

    Arguments:
        model: the module to run.
        forward: the format of the factors of every product.
        backward: the format of the gradient that comes back to every product.
        rounding: ``"nearest"`` or ``"stochastic"``.
        overflow: ``"saturate"`` or ``"cast"``.
        generator: where stochastic rounding draws from.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        forward: NumberFormat | None,
        backward: NumberFormat | None,
        rounding: Rounding,
        overflow: Overflow,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        self.model = model
        self.forward_format = forward
        self.backward_format = backward
        self.rounding: Rounding = rounding
        self.overflow: Overflow = overflow
        self.generator = generator

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model with simulated products; torch.compile breaks its graph here.

        Raises:
            UnsupportedError: a product that cannot be reached.
        """
        return self.run(*args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model with simulated products."""
        with rounding_products(self):
            return self.model(*args, **kwargs)

    def round_factor(self, x: Tensor) -> Tensor:
        """Return a factor of a product with its value rounded."""
        return simulate_tensor(
            x,
            self.forward_format,
            None,
            rounding=self.rounding,
            overflow=self.overflow,
            generator=self.generator,
        )

    def round_result(self, x: Tensor) -> Tensor:
        """Return a product whose gradient will be rounded."""
        return simulate_tensor(
            x,
            None,
            self.backward_format,
            rounding=self.rounding,
            overflow=self.overflow,
            generator=self.generator,
        )

    def extra_repr(self) -> str:
        """Return the formats."""
        return (
            f"forward={self.forward_format}, backward={self.backward_format}, "
            f"rounding={self.rounding!r}, overflow={self.overflow!r}"
        )


run_eagerly(
    SimulatedFormat.run,
    "A simulated model is not compiled: torch.compile does not trace its mode. "
    "Compile without fullgraph=True, and it runs eagerly.",
)


@overload
def simulate_format(
    target: Tensor,
    *,
    forward: Named = None,
    backward: Named = None,
    rounding: Rounding = "nearest",
    overflow: Overflow = "saturate",
    generator: torch.Generator | None = None,
) -> Tensor: ...
@overload
def simulate_format(
    target: nn.Module,
    *,
    forward: Named = None,
    backward: Named = None,
    rounding: Rounding = "nearest",
    overflow: Overflow = "saturate",
    generator: torch.Generator | None = None,
) -> SimulatedFormat: ...
def simulate_format(
    target: Tensor | nn.Module,
    *,
    forward: Named = None,
    backward: Named = None,
    rounding: Rounding = "nearest",
    overflow: Overflow = "saturate",
    generator: torch.Generator | None = None,
) -> Tensor | SimulatedFormat:
    """Run a model's products, or a tensor, as though in smaller number formats.

    For a model, both factors of every matrix product, linear layer, convolution and attention
    are rounded to ``forward``, and the gradient that comes back to the product's result to
    ``backward``; so the two products of the backward see rounded factors as well. Sums, biases,
    normalisation and the softmax inside of attention stay in the model's dtype. For a tensor,
    its value and its gradient are rounded. Rounding passes gradients straight through. It is
    exact and works in any dtype; it simulates numerics and gains no speed.

    Arguments:
        target: a module or a floating or complex tensor of any shape.
        forward: a `NumberFormat`, its name (``"E4M3"``) or dtype; ``None`` leaves values.
        backward: the same for gradients.
        rounding: ``"nearest"``, ties to even, or ``"stochastic"``, unbiased.
        overflow: ``"saturate"`` at the largest value, or ``"cast"``: infinity, or NaN without
            one, which is the non-saturating conversion of the OCP specification.
        generator: where stochastic rounding draws from; ``None`` takes torch's own.

    Returns:
        A tensor, or a module that shares the model's parameters.

    Raises:
        ArgumentTypeError: neither a module nor a floating tensor.
        ArgumentError: an unknown format, rounding or overflow, or no format at all.
        UnsupportedError: the model has scripted parts; or, when run, a product that cannot be
            rounded, however it is called: those of nn.LSTM, nn.GRU, nn.RNN and their cells, of
            flex_attention, of a custom Function whose gradient is wanted, and reentrant
            activation checkpointing. What non-reentrant checkpointing computes again is
            rounded as it was.

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
    check_choices(rounding, overflow)
    if forward is None and backward is None:
        raise ArgumentError(
            "simulate_format was given no format.", mend='Pass forward="E4M3", backward="E5M2".'
        )
    value_format = None if forward is None else find_format(forward)
    gradient_format = None if backward is None else find_format(backward)
    if isinstance(target, nn.Module):
        _check_traceable(target)
        return SimulatedFormat(
            target,
            forward=value_format,
            backward=gradient_format,
            rounding=rounding,
            overflow=overflow,
            generator=generator,
        )
    if not isinstance(target, Tensor):
        raise ArgumentTypeError(
            "simulate_format takes a module or a tensor.", given=f"a {type(target).__name__}"
        )
    check_values(target, "simulate_format")
    return simulate_tensor(
        target,
        value_format,
        gradient_format,
        rounding=rounding,
        overflow=overflow,
        generator=generator,
    )


def _check_traceable(model: nn.Module) -> None:
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
