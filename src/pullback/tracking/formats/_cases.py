"""The check cases of number formats, offered through the entry point group ``pullback.cases``."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Generator, Tensor

from pullback.gradients._cases import REFUSES, normal, with_tensors
from pullback.tensor import Case
from pullback.tracking.formats._model import simulate_format
from pullback.tracking.formats._round import RoundGradientFunction, RoundValueFunction, ScaledFormat
from pullback.tracking.formats._rounding import BlockProductFunction
from pullback.tracking.formats._table import E4M3, E5M2

__all__ = ["cases"]


def _with_noise(generator: Generator) -> tuple[Tensor, Tensor]:
    return normal(generator, 3, 5), torch.rand(3, 5, generator=generator, dtype=torch.float64)


def cases() -> Iterator[Case]:
    """Return the cases: values and gradients, to nearest and stochastically, and products."""
    plain, pairs = with_tensors((3, 5)), with_tensors((4, 4), (4, 4))
    blocks = ScaledFormat("blocks of two", E5M2, per=2, scale="E8M0")
    for name, function, inputs in (
        ("value", partial(simulate_format, forward=E4M3), plain),
        (
            "value.stochastic",
            lambda x, noise: RoundValueFunction.apply(x, noise, E4M3, "saturate"),
            _with_noise,
        ),
    ):
        yield Case(f"formats.{name}", function, inputs, gradient="surrogate")
    for name, function, inputs in (
        ("gradient", partial(simulate_format, backward=E5M2), plain),
        (
            "gradient.stochastic",
            lambda x, noise: RoundGradientFunction.apply(x, noise, E5M2, "saturate"),
            _with_noise,
        ),
        (
            "product.blocks",
            lambda a, b: BlockProductFunction.apply(a, b, a, b, None, blocks, "saturate"),
            pairs,
        ),
    ):
        yield Case(f"formats.{name}", function, inputs, "nonlinear", dict(REFUSES))
