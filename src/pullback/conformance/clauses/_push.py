"""One run of forward mode."""

from collections.abc import Sequence

import torch
from torch.autograd import forward_ad

from pullback.conformance._probe import Probe, Tensors

__all__ = ["push"]


def push(
    probe: Probe, points: Sequence[torch.Tensor], step: Sequence[torch.Tensor | None]
) -> tuple[Tensors, list[torch.Tensor | None]]:
    """Outputs and tangents, detached from forward mode; a step of ``None`` is no tangent at all."""
    with forward_ad.dual_level():
        duals = [
            x.clone() if v is None else forward_ad.make_dual(x.clone(), v)
            for x, v in zip(points, step, strict=True)
        ]
        pairs = [forward_ad.unpack_dual(y) for y in probe.evaluate(duals)]
        return [p.primal.detach() for p in pairs], [p.tangent for p in pairs]
