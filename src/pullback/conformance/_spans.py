"""`spans`: what does not depend on the choice of a basis.

A null space or an invariant subspace has no basis of its own: a Function that returns an
orthonormal one, Y, is right where it is for every loss that sees the span alone, and its entries
may turn from point to point. What such losses see is the projection P = Y Y', which is unique. So
where a comparison of Y fails it is made again with P: the same Function, followed by a product
that autograd differentiates (the cotangent W of P reaches the Function as (W + W') Y).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from pullback.conformance import _tree
from pullback.conformance._probe import Probe
from pullback.conformance._vectors import are_finite

__all__ = ["has_basis", "has_own_span", "is_basis", "spans"]


def has_basis(outputs: Sequence[torch.Tensor]) -> bool:
    """Whether an output is an orthonormal basis of a span: defined up to a rotation of it."""
    return any(is_basis(y.detach()) for y in outputs)


def is_basis(y: torch.Tensor) -> bool:
    """Whether the columns are orthonormal and fewer than the rows, or the rows than the columns."""
    if y.ndim < 2 or y.shape[-2] == y.shape[-1] or not y.numel():
        return False
    columns = _upright(y)
    eye = torch.eye(columns.shape[-1], dtype=y.dtype, device=y.device)
    return bool((columns.mH @ columns - eye).abs().max() < 1e3 * torch.finfo(y.dtype).eps)


def has_own_span(
    given: Sequence[torch.Tensor], found: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
) -> bool:
    """Whether bases as given are bases elsewhere too, of spans that have derivatives there.

    A basis of everything says nothing of its span; and where vectors of one singular value are on
    both sides of it, the span is any of many, which backward says by a NaN.
    """
    pairs = zip(given, found, strict=True)
    if not has_basis(given):
        return True
    whole = any(is_basis(y) and z.ndim > 1 and z.shape[-2] == z.shape[-1] for y, z in pairs)
    return not whole and are_finite(gradients)


def _upright(y: torch.Tensor) -> torch.Tensor:
    """The vectors of a basis as columns."""
    return y if y.shape[-2] > y.shape[-1] else y.mH


def spans(probe: Probe) -> Probe:
    """The probe with the projection on its span in place of each output that is a basis."""
    every = probe.run(probe.leaves())
    bases = {k for k in probe.outputs if is_basis(every[k].detach())}

    def call(*args: Any, **kwargs: Any) -> Any:
        found = probe.subject.call(*args, **kwargs)
        parts = _tree.tensors(found)
        columns = [_upright(y) if k in bases else y for k, y in enumerate(parts)]
        projected = (y @ y.mH if k in bases else y for k, y in enumerate(columns))
        return _tree.replace(found, projected)

    return replace(probe, subject=replace(probe.subject, call=call))
