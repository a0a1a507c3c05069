"""Say in words how one tensor differs from another: the first relation that fits all entries."""

from collections.abc import Sequence

import torch

from pullback.conformance._pair import Difference, Pair, Rule, first_true
from pullback.conformance._relations import RULES, lowered

__all__ = ["Difference", "explain"]


def explain(difference: Difference, rules: Sequence[Rule] = RULES) -> str:
    """One sentence that says how the numbers got differ from those expected.

    Arguments:
        difference: what is compared.
        rules: the relations that are tried.

    Returns:
        The sentence, or an empty text where the two are equal or no relation is recognised.

    Example:
        >>> expected = torch.tensor([1.0, 2.0, 3.0])
        >>> explain(Difference(expected, -expected))
        'Got is expected with the other sign.'
        >>> explain(Difference(expected, expected / 64, sizes={"dimension 0 of args[0]": 64}))
        'Got is expected / 64, and 64 is the size of dimension 0 of args[0].'
    """
    expected, got = difference.expected, difference.got
    if got is None:
        return "Got is None: backward returned no gradient."
    if expected.shape != got.shape:
        return _shapes(expected, got)
    if not expected.numel() or not _numeric(expected, got):
        return ""
    pair = Pair.of(difference)
    if pair is None:
        return _not_finite(difference)
    if pair.equal(pair.got):
        return first_true(pair, (lowered,))
    return first_true(pair, rules)


def _numeric(*tensors: torch.Tensor) -> bool:
    return all(t.layout is torch.strided and not t.is_quantized for t in tensors)


def _shapes(expected: torch.Tensor, got: torch.Tensor) -> str:
    return f"Got has shape {tuple(got.shape)}, expected is {tuple(expected.shape)}."


def _not_finite(difference: Difference) -> str:
    got = difference.got
    if got is None or not difference.expected.isfinite().all():
        return ""
    bad = ~got.isfinite()
    kind = "NaN" if bool(got.isnan().any()) else "infinite"
    return f"{int(bad.sum())} of {bad.numel()} entries got are {kind}; expected are finite numbers."
