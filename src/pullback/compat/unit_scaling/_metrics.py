"""`Metrics`: a few numbers about a tensor and its gradient."""

import math
from dataclasses import dataclass, fields

from torch import Tensor

from pullback.compat.unit_scaling._std import std_of
from pullback.gradients._factor import widen

__all__ = ["Metrics"]

_FULL_NAMES = {
    "mean_abs": "mean absolute value",
    "abs_mean": "absolute mean value",
    "std": "standard deviation",
    "abs_max": "absolute maximum",
    "abs_min": "absolute minimum",
    "numel": "number of elements",
}


class Metrics:
    """Metrics of a tensor, in ``fwd``, and of its gradient, in ``bwd``.

    Arguments:
        fwd_tensor: the tensor, of any shape and floating dtype.

    Example:
        >>> import torch
        >>> from pullback.compat.unit_scaling import Metrics
        >>> Metrics(torch.tensor([1.0, -3.0])).fwd.mean_abs
        2.0
    """

    @dataclass
    class Data:
        """The metrics of one tensor.

        Arguments:
            mean_abs: the mean of the absolute values.
            abs_mean: the absolute value of the mean.
            std: the unbiased standard deviation.
            abs_max: the largest absolute value.
            abs_min: the smallest absolute value, zero included.
            numel: the number of elements.
        """

        mean_abs: float
        abs_mean: float
        std: float
        abs_max: float
        abs_min: float
        numel: int

    def __init__(self, fwd_tensor: Tensor) -> None:
        self.fwd = self.from_tensor(fwd_tensor)
        self.bwd: Metrics.Data | None = None

    def set_bwd(self, bwd_tensor: Tensor) -> None:
        """Record the gradient's metrics.

        Arguments:
            bwd_tensor: the gradient.
        """
        self.bwd = self.from_tensor(bwd_tensor)

    def __str__(self) -> str:
        return f"fwd: {self.fwd}, bwd: {self.bwd}"

    @staticmethod
    def from_tensor(t: Tensor) -> "Metrics.Data":
        """Return the metrics of a tensor, computed in float32 or wider; NaN of no elements.

        Arguments:
            t: shape (...), any floating or complex dtype.
        """
        values = widen(t.detach())
        if values.numel() == 0:
            return Metrics.Data(*(math.nan,) * 5, numel=0)
        magnitudes = values.abs()
        return Metrics.Data(
            mean_abs=magnitudes.mean().item(),
            abs_mean=values.mean().abs().item(),
            std=std_of(values),
            abs_max=magnitudes.max().item(),
            abs_min=magnitudes.min().item(),
            numel=values.numel(),
        )

    @staticmethod
    def get_full_name(short_name: str) -> str:
        """Return the words for a metric.

        Arguments:
            short_name: one of `names`.
        """
        return _FULL_NAMES[short_name]

    @staticmethod
    def names() -> list[str]:
        """Return the short names."""
        return [field.name for field in fields(Metrics.Data)]

    @staticmethod
    def full_names() -> list[str]:
        """Return the names in words."""
        return [_FULL_NAMES[name] for name in Metrics.names()]
