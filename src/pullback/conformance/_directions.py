"""Random numbers to move inputs with, and the ways to move that a forward may ask for."""

from collections.abc import Callable

import torch

__all__ = ["KINDS", "normal", "scale", "spread"]


def normal(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    dtype = torch.complex128 if like.is_complex() else torch.float64
    drawn = torch.randn(like.shape, dtype=dtype, generator=generator)
    return drawn.to(dtype=like.dtype, device=like.device)


def spread(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Entries of random sign and of a magnitude between a half and one and a half."""
    shape = (*like.shape, 2) if like.is_complex() else like.shape
    drawn = torch.rand(shape, dtype=torch.float64, generator=generator)
    drawn = drawn + 0.5
    drawn[torch.rand(shape, dtype=torch.float64, generator=generator) < 0.5] *= -1
    whole = torch.view_as_complex(drawn) if like.is_complex() else drawn
    return whole.to(dtype=like.dtype, device=like.device)


def scale(point: torch.Tensor) -> torch.Tensor:
    """How far each entry may move: in proportion to itself, so that signs and domains are kept."""
    size = point.abs().double()
    if point.numel() == 0:
        return size.to(point.dtype)
    typical = (
        float(size[torch.isfinite(size)].square().mean().sqrt()) if size.isfinite().any() else 0
    )
    return (size + 0.1 * (typical or 10.0)).to(point.dtype)


def _positive(point: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """A step in proportion to each entry, so that zeros stay."""
    return point * torch.sign(step.real if step.is_complex() else step) / 2


# Ways to move that keep to what a forward which validates its values may accept, the freest first.
KINDS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "any": lambda point, step: step,
    "kept": lambda point, step: step,  # and what has left a curved set is brought back
    "in proportion": _positive,
    "scaled": lambda point, step: point * 0.5,
    "none": lambda point, step: torch.zeros_like(step),
}
