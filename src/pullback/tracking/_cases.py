"""The cases of tracking that ``pullback check`` finds."""

from collections.abc import Iterator

import torch

from pullback.tensor import Case
from pullback.tracking.watch._track import Record, track

__all__ = ["cases"]


def cases() -> Iterator[Case]:
    """`track` on a matrix, on complex numbers, and twice in a row on one record."""
    matrix, complex_numbers, reused = Record("matrix"), Record("complex"), Record("reused")
    yield Case(
        "tracking.track",
        lambda x: track(x, matrix),
        lambda generator: (_random(generator, 3, 4),),
        gradient="exact",
    )
    yield Case(
        "tracking.track.complex",
        lambda x: track(x, complex_numbers),
        lambda generator: (_random(generator, 5, dtype=torch.complex128),),
        gradient="exact",
    )
    yield Case(
        "tracking.track.reused",
        lambda x: track(track(x, reused).sin(), reused),
        lambda generator: (_random(generator, 2, 3),),
        gradient="exact",
    )


def _random(
    generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()
