"""What tensors are shaped like, said in letters."""

from typing import Any

import torch
from torch import Tensor

from pullback.errors import ArgumentError, ArgumentTypeError

__all__ = ["check_shapes"]

_KNOWN = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.bool, torch.uint8,
          torch.int8, torch.int16, torch.int32, torch.int64)  # fmt: skip


def check_shapes(sizes: dict[str, int] | None = None, /, **given: tuple[Any, str]) -> None:
    """Refuse by name what is no tensor of real numbers, or not shaped as is said.

    Arguments:
        sizes: what letters stand for that is known; the others stand for what comes first.
        given: tensors by their names, each with its form, as in ``"batch horizon dof"``; after
            ``"..."`` there may be any first dimensions.

    Raises:
        ArgumentTypeError: one is no tensor, or none of numbers.
        ArgumentError: one has another shape.
    """
    known = {"1": 1, **(sizes or {})}
    for name, (value, form) in given.items():
        if not isinstance(value, Tensor):
            raise ArgumentTypeError(
                f"{name} is not a tensor.", given=type(value).__name__, expected=f"[{form}]"
            )
        if value.dtype not in _KNOWN or value.layout is not torch.strided:
            raise ArgumentTypeError(
                f"{name} is not a dense tensor of numbers.", given=f"{value.dtype}, {value.layout}"
            )
        letters = form.replace("...", "").split()
        shape = value.shape[value.ndim - len(letters) :] if "..." in form else value.shape
        fits = len(shape) == len(letters)
        if not fits or any(
            known.setdefault(k, n) != n for k, n in zip(letters, shape, strict=True)
        ):
            where = ", ".join(f"{k} = {known[k]}" for k in letters if k in known and k != "1")
            raise ArgumentError(
                f"{name} does not fit the other arguments.",
                given=f"shape {tuple(value.shape)}",
                expected=f"[{form}]" + (f" with {where}" if where else ""),
            )
