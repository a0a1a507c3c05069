"""Lists of tensors as one real vector, and back; random ones, to move inputs with."""

import math
from collections.abc import Callable, Sequence

import torch

__all__ = [
    "KINDS",
    "Tensors",
    "are_finite",
    "coarsest",
    "filled",
    "flatten",
    "inner",
    "least_move",
    "normal",
    "nudged",
    "products",
    "scale",
    "spread",
    "unflatten",
    "wide",
]

Tensors = list[torch.Tensor]


def flatten(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Tensors as one real vector; a complex entry gives two."""
    pieces = [
        torch.view_as_real(p.detach().resolve_conj()) if p.is_complex() else p.detach()
        for p in parts
    ]
    if not pieces:
        return torch.zeros(0, dtype=torch.float64, device="cpu")
    # Computed in float32, shown in float32: the precision decides how rough an estimate is.
    dtype = torch.float64 if coarsest(pieces) <= 2.0**-52 else torch.float32
    return torch.cat([piece.reshape(-1).to(dtype) for piece in pieces])


def coarsest(parts: Sequence[torch.Tensor]) -> float:
    """The unit of rounding of the lowest precision among tensors; 0 for none."""
    return max((torch.finfo(part.dtype).eps for part in parts), default=0.0)


def are_finite(parts: Sequence[torch.Tensor]) -> bool:
    """Whether every entry of every tensor is finite."""
    return all(bool(wide(part).isfinite().all()) for part in parts)  # float8 is not asked


def filled(like: Sequence[torch.Tensor], found: Sequence[torch.Tensor | None]) -> Tensors:
    """Tensors with zeros in place of ``None``."""
    pairs = zip(like, found, strict=True)
    return [torch.zeros_like(x) if t is None else t for x, t in pairs]


def unflatten(flat: torch.Tensor, like: Sequence[torch.Tensor]) -> Tensors:
    """One real vector as tensors of the shapes and dtypes of ``like``: the inverse of `flatten`."""
    found, used = [], 0
    for tensor in like:
        count = tensor.numel() * (2 if tensor.is_complex() else 1)
        part = flat[used : used + count].to(tensor.dtype.to_real())
        used += count
        if tensor.is_complex():
            found.append(torch.view_as_complex(part.reshape(*tensor.shape, 2)))
        else:
            found.append(part.reshape(tensor.shape))
    return found


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in float64, or its complex partner."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def inner(first: torch.Tensor, second: torch.Tensor) -> float:
    """The real inner product Re(sum(conj(first) * second)) in float64."""
    return float((wide(first).conj() * wide(second)).sum().real)


def products(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> tuple[float, float]:
    """The inner product of two lists of tensors, and the sum of its terms' absolute values."""
    value = sum(inner(a, b) for a, b in zip(first, second, strict=True))
    scale = sum(inner(a.abs(), b.abs()) for a, b in zip(first, second, strict=True))
    return value, scale


def normal(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    dtype = torch.complex128 if like.is_complex() else torch.float64
    drawn = torch.randn(like.shape, dtype=dtype, generator=generator, device="cpu")
    return drawn.to(dtype=like.dtype, device=like.device)


def spread(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Entries of random sign and of a magnitude between a half and one and a half."""
    shape = (*like.shape, 2) if like.is_complex() else like.shape
    how = {"dtype": torch.float64, "generator": generator, "device": "cpu"}
    drawn = torch.rand(shape, **how) + 0.5
    drawn[torch.rand(shape, **how) < 0.5] *= -1
    whole = torch.view_as_complex(drawn) if like.is_complex() else drawn
    return whole.to(dtype=like.dtype, device=like.device)


def nudged(x: torch.Tensor, generator: torch.Generator, by: float) -> torch.Tensor:
    """A tensor whose entries are off by up to so much of themselves, up or down."""
    drawn = torch.rand(x.shape, dtype=torch.float64, generator=generator, device="cpu")
    return x * (1 + by * (2 * drawn - 1)).to(x)


def scale(point: torch.Tensor) -> torch.Tensor:
    """How far each entry may move: in proportion to itself, so that signs and domains are kept.

    What is infinite, as the score of what a mask leaves out, stays where it is.
    """
    moves = (point.abs().double() + least_move(point)).to(point.dtype)
    return torch.where(point.isfinite(), moves, 0)


def least_move(point: torch.Tensor) -> float:
    """How far an entry may move that is zero."""
    size = point.abs().double().reshape(-1)
    typical = float(size.square().mean().sqrt())
    if not math.isfinite(typical):
        finite = size[size.isfinite()]
        typical = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    return 0.1 * (typical or 10.0)


# Ways to move that keep to what a forward which validates its values may accept, the freest first.
KINDS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "any": lambda point, step: step,
    "kept": lambda point, step: step,  # and what has left a curved set is brought back
    # So that zeros stay.
    "in proportion": lambda point, step: point * torch.sign(step.real) / 2,
    "scaled": lambda point, step: point * 0.5,
    "none": lambda point, step: torch.zeros_like(step),
}
