"""The check cases of number formats, offered through the entry point group ``pullback.cases``."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Generator, Tensor

from pullback.tensor import Case
from pullback.tracking.formats._model import simulate_format
from pullback.tracking.formats._number_format import E4M3
from pullback.tracking.formats._simulate import RoundValueFunction

__all__ = ["cases"]


def _normal(generator: Generator) -> tuple[Tensor]:
    return (torch.randn(3, 5, generator=generator, dtype=torch.float64, requires_grad=True),)


def _with_noise(generator: Generator) -> tuple[Tensor, Tensor]:
    (x,) = _normal(generator)
    return x, torch.rand(3, 5, generator=generator, dtype=torch.float64)


def _round_value(x: Tensor, noise: Tensor) -> Tensor:
    return RoundValueFunction.apply(x, noise, E4M3, "saturate")


def cases() -> Iterator[Case]:
    """Return the cases: values, to nearest and stochastically.

    Rounded gradients are no case: their second order is straight-through, as declared, and not
    the derivative of rounding, which is zero. The tests hold them to every other clause.

    Example:
        >>> from pullback.tracking.formats._cases import cases
        >>> len(list(cases()))
        2
    """
    yield Case(
        "formats.value", partial(simulate_format, forward=E4M3), _normal, gradient="surrogate"
    )
    yield Case("formats.value.stochastic", _round_value, _with_noise, gradient="surrogate")
