"""The cases of tracking that ``pullback check`` finds."""

from collections.abc import Iterator

import torch

from pullback.gradients._cases import with_tensors
from pullback.tensor import Case
from pullback.tracking.watch._track import Record, track

__all__ = ["cases"]


def cases() -> Iterator[Case]:
    """`track` on a matrix, on complex numbers, and twice in a row on one record."""
    matrix, complex_numbers, reused = Record("matrix"), Record("complex"), Record("reused")
    for name, function, inputs in (
        ("track", lambda x: track(x, matrix), with_tensors((3, 4))),
        ("track.complex", lambda x: track(x, complex_numbers), _complex),
        ("track.reused", lambda x: track(track(x, reused).sin(), reused), with_tensors((2, 3))),
    ):
        yield Case(f"tracking.{name}", function, inputs, gradient="exact")


def _complex(generator: torch.Generator) -> tuple[torch.Tensor]:
    return (torch.randn(5, generator=generator, dtype=torch.complex128).requires_grad_(),)
