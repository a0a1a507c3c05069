"""Compare and show the numbers of tensors, and put the same ones into other memory."""

from collections.abc import Iterable

import torch

from pullback.conformance._arguments import is_continuous

__all__ = ["CANCELLED", "SHOWN", "broadcast", "close", "expanded", "is_freed", "largest", "offset",
           "same_bits", "show", "show_part", "strided", "transposed"]  # fmt: skip

SHOWN = 6  # entries of a tensor
CANCELLED = 16  # roundings that are left where terms cancel


def is_freed(tensor: torch.Tensor) -> bool:
    """Whether the memory of a strided tensor was given back; reading it ends the process.

    Reversible blocks do so to their inputs, with ``x.untyped_storage().resize_(0)``.
    """
    if tensor.layout is not torch.strided or not tensor.numel():
        return False
    return tensor.device.type != "meta" and tensor.untyped_storage().nbytes() == 0


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and entries; NaN equals NaN.

    Example:
        >>> same_bits(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
        True
    """
    if one.shape != other.shape or one.dtype != other.dtype or is_freed(one) or is_freed(other):
        return False
    a, b = one.detach().resolve_conj(), other.detach().resolve_conj()
    return bool(((a == b) | (torch.isnan(a) & torch.isnan(b))).all())


def show(value: object) -> str:
    """A value for a report: short tensors in full, others by their first entries."""
    if isinstance(value, torch.Tensor):
        if is_freed(value):
            return f"freed memory, shape {tuple(value.shape)} {value.dtype}".replace("torch.", "")
        return show_part(value, range(min(value.numel(), SHOWN)), 6)
    return f"{value:.8g}" if isinstance(value, float) else str(value)


def show_part(value: torch.Tensor, places: range, digits: int) -> str:
    """Consecutive entries of a tensor, its shape and dtype."""
    flat = value.detach().reshape(-1)[places.start : places.stop]
    entries = ", ".join(f"{number:.{digits}g}" for number in flat.tolist())
    lead = "..., " if places.start else ""
    more = ", ..." if places.stop < value.numel() else ""
    where = f"from entry {places.start} of shape" if places.start else "shape"
    text = f"[{lead}{entries}{more}] {where} {tuple(value.shape)} {value.dtype}"
    return text.replace("torch.", "")


def close(
    one: torch.Tensor, other: torch.Tensor, looser: float, least: float, among: float = 0.0
) -> bool:
    """Whether two tensors are equal up to rounding, relative to the largest entry.

    NaN and infinity must coincide.

    Arguments:
        one: a tensor.
        other: the tensor that it is compared with, of the same shape.
        looser: how many times the usual rounding is allowed.
        least: the rounding of one operation, where it is more than that of the dtypes.
        among: the largest number that both were computed beside. Of terms of that size that cancel,
            as those of a bias before a normalisation, rounding leaves some.

    Example:
        >>> one = torch.ones(2)
        >>> close(one, one + 1e-7, 1.0, 0.0), close(one, one + 1e-3, 1.0, 0.0)
        (True, False)
    """
    if one.numel() == 0:
        return True
    found = [torch.finfo(t.dtype).eps for t in (one, other) if is_continuous(t)]
    eps = max([least, *found])
    # So much of a half-precision number would let anything pass.
    tolerance = looser * eps**0.75 if eps > least else min(looser * eps**0.75, max(16 * eps, 0.1))
    wide = torch.complex128 if one.is_complex() or other.is_complex() else torch.float64
    a, b = one.detach().to(wide), other.detach().to(wide)
    finite = torch.isfinite(b)
    if not torch.equal(torch.isfinite(a), finite):
        return False
    if not finite.any():
        return True
    gap, size = (a - b)[finite].abs().max(), b[finite].abs().max()
    rounded = max(tolerance * max(float(size), float(a[finite].abs().max()), 1e-300),
                  CANCELLED * eps * among)  # fmt: skip
    return bool(gap <= rounded)


def largest(tensors: Iterable[torch.Tensor]) -> float:
    """The largest finite magnitude among the entries."""
    sizes = (t.detach().abs() for t in tensors if is_continuous(t))
    finite = (size[size.isfinite()] for size in sizes)
    return max((float(size.max()) for size in finite if size.numel()), default=0.0)


def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT if x.ndim >= 2 else strided(x)


def strided(x: torch.Tensor) -> torch.Tensor:
    wide = torch.zeros((*x.shape, 2), dtype=x.dtype, device=x.device)
    wide[..., 1] = x
    return wide[..., 1]


def offset(x: torch.Tensor) -> torch.Tensor:
    store = torch.zeros(x.numel() + 1, dtype=x.dtype, device=x.device)
    store[1:] = x.reshape(-1)
    return store[1:].view(x.shape)


def expanded(x: torch.Tensor) -> torch.Tensor:
    """Every row along the first dimension the same memory; square matrices keep their structure."""
    square = x.ndim >= 2 and x.shape[-1] == x.shape[-2]
    return x[:1].expand(x.shape) if x.ndim and x.shape[0] > 1 and not square else x


def broadcast(x: torch.Tensor) -> torch.Tensor:
    """Every entry the memory of the first, as the cotangent of a sum has it."""
    return x.reshape(-1)[:1].expand(x.numel()).view(x.shape) if x.numel() else x
