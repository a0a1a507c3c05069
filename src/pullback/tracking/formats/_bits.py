"""The same bits read as another dtype, in a batch too."""

from typing import Any

import torch
from torch import Tensor

__all__ = ["bits_as"]


def bits_as(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The bits of each element as a number of a dtype that is as wide.

    Example:
        >>> import torch
        >>> bits_as(torch.tensor(1.0), torch.int32).item() == 127 << 23
        True
    """
    return values.view(dtype)


if torch.__version__ < "2.13":  # whose vmap has no rule for it

    class _BitsAs(torch.autograd.Function):
        """What has no derivative, as no step has, is the same for each of a batch."""

        @staticmethod
        def forward(values: Tensor, dtype: torch.dtype) -> Tensor:
            return values.view(dtype)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            ctx.mark_non_differentiable(output)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, Any]:
            return _BitsAs.apply(*inputs), in_dims[0]

    bits_as = _BitsAs.apply
