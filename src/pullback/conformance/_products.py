"""Numbers as a product of what is at hand: a factor or a term that a rule lacks.

log |t| of a product is the sum of the logarithms of its factors, so that all products of few
factors are compared at once; what is left over has to be one number for all entries, with a name.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from pullback.conformance._arguments import is_continuous
from pullback.conformance._changes import CLOSE
from pullback.conformance._names import Name, named_factors, numbers_at

__all__ = ["products", "sums"]

_EXACT = 1e-5
_FEWEST = 6  # entries that a product must explain
_SCREENED = 24  # entries that all products are compared at
_MOST = 2**14  # entries of the numbers
_PLAIN = ("{0}", "/ {0}", "{0} ** 2", "(1 - {0})", "(1 - {0} ** 2)")
_OTHER = ("/ {0} ** 2", "{0}.sqrt()", "{0}.exp()", "{0}.log()", "{0}.sin()", "{0}.cos()",
          "{0}.sign()", "{0}.sigmoid()", "{0}.tanh()", "(1 + {0})")  # fmt: skip
_COUNTS = {1: 200, 2: 130, 3: 50, 4: 28}  # the factors that products of so many are made of
_BEST = 4


class _Factor(NamedTuple):
    text: str
    value: torch.Tensor


def _factors(names: Sequence[Name], shape: torch.Size) -> list[_Factor]:
    """What may be a factor of a tensor of a shape, the likeliest first."""
    found = []
    for form in (*_PLAIN, *_OTHER):
        for name in names:
            t = name.value
            if not (isinstance(t, torch.Tensor) and is_continuous(t)) or t.is_complex():
                continue
            views = {name.text: t.detach().cpu().double()}
            if t.ndim:
                views[f"{name.text}[..., None]"] = t.detach().cpu().double()[..., None]
            for text, view in views.items():
                try:
                    wide = view.expand(shape) if view.numel() > 1 or not view.ndim else None
                except RuntimeError:
                    continue
                if wide is not None and not (
                    t.numel() > 1 and text != name.text and name.text in found
                ):
                    value = _formed(form, wide)
                    if value is not None and value.isfinite().all():
                        found.append(_Factor(form.format(text), value))
    return found


def _formed(form: str, t: torch.Tensor) -> torch.Tensor | None:
    head = form.partition("}")[2]
    if form == "/ {0}":
        return 1 / t
    if form == "/ {0} ** 2":
        return 1 / t**2
    if form.startswith("("):
        square = t**2 if "**" in form else t
        return 1 - square if "-" in form else 1 + square
    if form == "{0} ** 2":
        return t**2
    return getattr(t, head[1:-2])() if head else t


def products(target: torch.Tensor, names: Sequence[Name]) -> Iterator[str]:
    """Products that equal a tensor, those of the fewest factors first.

    Arguments:
        target: real numbers.
        names: what may be named.
    """
    target = target.double()
    flat = target.reshape(-1)
    some = flat.nonzero().reshape(-1)
    if not len(some) >= _FEWEST or flat.numel() > _MOST or not flat.isfinite().all():
        return
    numbers = numbers_at(names)
    factors = _factors(names, target.shape)
    kept = [f for f in factors if bool((f.value.reshape(-1)[some] != 0).all())]
    at = some[torch.linspace(0, len(some) - 1, min(_SCREENED, len(some))).long()]
    logs = torch.stack([f.value.reshape(-1)[at].abs().log() for f in kept]) if kept else None
    wanted = flat[at].abs().log()
    for count, most in ({0: 0} | _COUNTS).items():
        if count and (logs is None or len(kept) < count):
            return
        rows = list(itertools.combinations(range(min(most, len(kept))), count))
        chosen = torch.tensor(rows, dtype=torch.int64).reshape(len(rows), count)
        left = wanted - (logs[chosen].sum(1) if count and logs is not None else 0.0 * wanted)
        left = left.reshape(len(rows), -1)
        good = (left - left.mean(1, keepdim=True)).abs().amax(1) < _EXACT
        texts = []
        for row in good.nonzero().reshape(-1).tolist()[: 4 * _BEST]:
            texts += _written([kept[k] for k in rows[row]], target, numbers)
        if texts:
            yield from [text for _, text in sorted(texts, key=lambda pair: pair[0])][:_BEST]


def _written(
    factors: Sequence[_Factor], target: torch.Tensor, numbers: Sequence[Name]
) -> Iterator[tuple[int, str]]:
    """How a product and the number that is left over are written, with a rank."""
    value = torch.ones_like(target)
    for factor in factors:
        value = value * factor.value
    share = float((value * target).sum() / value.square().sum())
    if not (share and bool((share * value - target).abs().max() <= _EXACT * target.abs().max())):
        return
    over = [f.text for f in factors if not f.text.startswith("/ ")]
    under = [f.text for f in factors if f.text.startswith("/ ")]
    text = " ".join([" * ".join(over) or "1", *under])
    sign, size = "-" * (share < 0), abs(share)
    if abs(size - 1) < _EXACT:
        yield 0, sign + text
    for rank, how in [*named_factors(size, numbers), *_simple(size)]:
        yield rank + (rank > 2), sign + how.format(text)


def _simple(size: float) -> Iterator[tuple[int, str]]:
    for n in (1, 2, 3, 4, 6):
        for m in (1, 2, 3, 4, 5):
            if math.gcd(n, m) == 1 and (n, m) != (1, 1) and abs(size - m / n) < CLOSE * _EXACT:
                yield 2, f"{m / n:.6g} * " + "{0}"


def sums(target: torch.Tensor, names: Sequence[Name]) -> Iterator[str]:
    """Sums of products along leading dimensions that equal a tensor, of at most three factors."""
    target = target.double()
    wide = [n.value.shape for n in names if isinstance(n.value, torch.Tensor) and n.value.ndim]
    wide = [
        s
        for s in dict.fromkeys(wide)
        if len(s) > target.ndim and s[len(s) - target.ndim :] == target.shape
    ]
    numbers = numbers_at(names)
    for shape in wide[:2]:
        if math.prod(shape) > _MOST:
            continue
        factors = _factors(names, shape)[:36]
        dims = tuple(range(len(shape) - target.ndim))
        shown = "" if not target.ndim else f"{dims[0]}" if len(dims) == 1 else f"{dims}"
        for count in (1, 2, 3):
            texts = []
            for some in itertools.combinations(factors[: 36 if count < 3 else 24], count):
                value = some[0].value
                for factor in some[1:]:
                    value = value * factor.value
                value = value.sum(dims)
                norm = float(value.square().sum())
                share = float((value * target).sum()) / norm if norm else 0.0
                if share and bool(
                    (share * value - target).abs().max() <= _EXACT * target.abs().max()
                ):
                    over = [f.text for f in some if not f.text.startswith("/ ")]
                    under = [f.text for f in some if f.text.startswith("/ ")]
                    text = f"({' '.join([' * '.join(over) or '1', *under])}).sum({shown})"
                    sign, size = "-" * (share < 0), abs(share)
                    if abs(size - 1) < _EXACT:
                        texts.append((0, sign + text))
                    hows = [*named_factors(size, numbers), *_simple(size)]
                    texts += [(rank, sign + how.format(text)) for rank, how in hows]
            if texts:
                yield from [text for _, text in sorted(texts, key=lambda pair: pair[0])][
                    : 2 * _BEST
                ]
                break
