"""The check cases of number formats, offered through the entry point group ``pullback.cases``."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Generator, Tensor

from pullback.gradients._cases import normal, with_tensors
from pullback.tensor import Case
from pullback.tracking.formats._blocks import BlockProductFunction
from pullback.tracking.formats._model import simulate_format
from pullback.tracking.formats._round import RoundGradientFunction, RoundValueFunction
from pullback.tracking.formats._scaled import ScaledFormat
from pullback.tracking.formats._table import E4M3, E5M2

__all__ = ["cases"]

_FORWARD = "the backward is not linear in the cotangent, so it has no transpose"
_NONLINEAR = {
    "forward": _FORWARD,
    "transforms": f"torch.func.hessian runs forward mode: {_FORWARD}",
}


def _with_noise(generator: Generator) -> tuple[Tensor, Tensor]:
    return normal(generator, 3, 5), torch.rand(3, 5, generator=generator, dtype=torch.float64)


def _round_value(x: Tensor, noise: Tensor) -> Tensor:
    return RoundValueFunction.apply(x, noise, E4M3, "saturate")


def _round_gradient(x: Tensor, noise: Tensor) -> Tensor:
    return RoundGradientFunction.apply(x, noise, E5M2, "saturate")


def _block_product(a: Tensor, b: Tensor) -> Tensor:
    blocks = ScaledFormat("blocks of two", E5M2, per=2, scale="E8M0")
    return BlockProductFunction.apply(a, b, a, b, None, blocks, "saturate")


def cases() -> Iterator[Case]:
    """Return the cases: values and gradients, to nearest and stochastically, and products."""
    yield Case(
        "formats.value",
        partial(simulate_format, forward=E4M3),
        with_tensors((3, 5)),
        gradient="surrogate",
    )
    yield Case("formats.value.stochastic", _round_value, _with_noise, gradient="surrogate")
    yield Case(
        "formats.gradient", partial(simulate_format, backward=E5M2), with_tensors((3, 5)),
        gradient="nonlinear", refuses=dict(_NONLINEAR),
    )  # fmt: skip
    yield Case(
        "formats.gradient.stochastic", _round_gradient, _with_noise,
        gradient="nonlinear", refuses=dict(_NONLINEAR),
    )  # fmt: skip
    yield Case(
        "formats.product.blocks", _block_product, with_tensors((4, 4), (4, 4)),
        gradient="nonlinear", refuses=dict(_NONLINEAR),
    )  # fmt: skip
