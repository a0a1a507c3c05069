"""Compare and show the numbers of tensors."""

import torch

__all__ = ["is_freed", "same_bits", "show"]


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
        flat = value.detach().reshape(-1)
        entries = ", ".join(f"{number:.6g}" for number in flat[:6].tolist())
        more = ", ..." if flat.numel() > 6 else ""
        return f"[{entries}{more}] shape {tuple(value.shape)} {value.dtype}".replace("torch.", "")
    return f"{value:.8g}" if isinstance(value, float) else str(value)
