"""`DelayedScales`: scales that come of what was seen before, as in training with FP8."""

import torch
from torch import Tensor

from pullback.internal.torch import innermost
from pullback.tracking.formats._round import Rounder, parts_of
from pullback.tracking.formats._scaled import FixedScale, ScaledFormat
from pullback.tracking.formats._spot import Spot

__all__ = ["DelayedScales"]


class DelayedScales:
    """The largest magnitudes that were seen at each spot, the last ones only.

    Source: Micikevicius et al., FP8 Formats for Deep Learning (2022), section 3.
    """

    def __init__(self) -> None:
        self._seen: dict[Spot, Tensor] = {}

    def fix(self, number_format: Rounder | None, spot: Spot) -> Rounder | None:
        """The format with the scale that its past gives; at first with that of the values."""
        if not isinstance(number_format, ScaledFormat) or not number_format.history:
            return number_format
        seen = self._seen.get(spot)
        if seen is None:
            return number_format
        scale = innermost(number_format.scales(seen.unsqueeze(0)).squeeze())
        return FixedScale(number_format, scale)

    def see(self, number_format: Rounder | None, spot: Spot, values: Tensor) -> None:
        """Remember the largest magnitude of some values."""
        if not isinstance(number_format, ScaledFormat) or not number_format.history:
            return
        values = parts_of(values.detach())
        # Under vmap this is the peak of each example; what is kept is plain, and of all.
        peak = _peak(innermost(_peak(values.abs().nan_to_num(0.0, 0.0, 0.0).to(torch.float64))))
        known = self._seen.get(spot)
        together = peak.unsqueeze(0) if known is None else torch.cat([known, peak.unsqueeze(0)])
        self._seen[spot] = innermost(together[-number_format.history :].detach())


def _peak(sizes: Tensor) -> Tensor:
    return sizes.amax() if sizes.numel() else sizes.sum()
