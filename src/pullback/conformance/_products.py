"""Numbers as a product of what is at hand, or as a sum of one: what a rule lacks.

All products of few factors are compared at once. What is left over has to be one number for all
entries, and one with a name.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from pullback.conformance._arguments import is_continuous
from pullback.conformance._names import Name, named_factors

__all__ = ["products"]

_EXACT = 1e-5
_FEWEST = 6  # entries of a tensor that factors of its shape must explain
_MOST = 2**12  # entries of a factor
_BEST = 4
_COUNTS = {0: 0, 1: 200, 2: 130, 3: 50, 4: 28}  # the factors that products of so many are made of
# The likeliest first.
_FORMS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "{0}": lambda t: t, "/ {0}": torch.reciprocal, "{0} ** 2": torch.square,
    "(1 - {0})": lambda t: 1 - t, "(1 - {0} ** 2)": lambda t: 1 - t * t,
    "/ {0} ** 2": lambda t: t**-2, "{0}.sqrt()": torch.sqrt, "{0}.exp()": torch.exp,
    "{0}.log()": torch.log, "{0}.sin()": torch.sin, "{0}.cos()": torch.cos,
    "{0}.sign()": torch.sign, "{0}.sigmoid()": torch.sigmoid, "{0}.tanh()": torch.tanh,
    "(1 + {0})": lambda t: 1 + t,
}  # fmt: skip
_SIMPLE = [
    m / n for n in (1, 2, 3, 4, 6) for m in (1, 2, 3, 4, 5) if math.gcd(m, n) == 1 and m != n
]


def products(target: torch.Tensor, names: Sequence[Name], numbers: Sequence[Name]) -> Iterator[str]:
    """Products that equal a tensor, and sums of some along leading dimensions.

    Arguments:
        target: real numbers.
        names: what may be named.
        numbers: the numbers among them, and sizes.

    Yields:
        How each is written, those of the fewest factors first.
    """
    if not bool(target.isfinite().all()) or not bool(target.any()):
        return
    tensors = [n for n in names if isinstance(n.value, torch.Tensor) and is_continuous(n.value)]
    wide = [n.value.shape for n in tensors if n.value.ndim > target.ndim]
    ends = [s for s in dict.fromkeys(wide) if s[len(s) - target.ndim :] == target.shape]
    for shape in [target.shape] * (target.numel() >= _FEWEST) + ends[:2]:
        if math.prod(shape) <= _MOST:
            factors = _factors([n for n in tensors if not n.value.is_complex()], shape)
            yield from _found(target.double(), shape, factors, numbers)


def _factors(names: Sequence[Name], shape: torch.Size) -> dict[str, torch.Tensor]:
    """What may be a factor of a tensor of a shape, by how it is written."""
    found = {}
    for form, compute in _FORMS.items():
        for name in names:
            t = name.value.detach().cpu().double()
            for text, view in ((name.text, t), (f"{name.text}[..., None]", t[..., None])):
                if _fits(view, shape):
                    value = compute(view)
                    if value.isfinite().all():
                        found[form.format(text)] = value.expand(shape).reshape(-1)
                    break
    return found


def _fits(view: torch.Tensor, shape: torch.Size) -> bool:
    pairs = zip(view.shape[::-1], shape[::-1], strict=False)
    return view.ndim <= len(shape) and all(one in (1, other) for one, other in pairs)


def _found(
    target: torch.Tensor, shape: torch.Size, factors: Mapping[str, torch.Tensor],
    numbers: Sequence[Name],
) -> Iterator[str]:  # fmt: skip
    dims = tuple(range(len(shape) - target.ndim))
    along = "" if not target.ndim else f"{dims[0]}" if len(dims) == 1 else f"{dims}"
    texts, flat = list(factors), target.reshape(-1)
    values = torch.stack([torch.ones(math.prod(shape), dtype=flat.dtype), *factors.values()])
    for count, most in _COUNTS.items():
        rows = list(itertools.combinations(range(min(most, len(texts))), count))
        chosen = torch.tensor(rows, dtype=torch.int64).reshape(len(rows), count) + 1
        made = values[chosen].prod(1) if count else values[:1]
        made = made.reshape(len(rows), -1, flat.numel()).sum(1)
        share = (made * flat).sum(1) / made.square().sum(1)
        off = (share[:, None] * made - flat).abs().amax(1)
        best = (off <= _EXACT * flat.abs().max()).nonzero().reshape(-1).tolist()[: 4 * _BEST]
        written = []
        for row in best if count or not dims else ():
            some = [texts[k] for k in rows[row]]
            over = " * ".join(text for text in some if not text.startswith("/")) or "1"
            text = " ".join([over, *(text for text in some if text.startswith("/"))])
            text = f"({text}).sum({along})" if dims else text
            written += _with_number(text, float(share[row]), numbers)
        yield from [text for _, text in sorted(written)][:_BEST]


def _with_number(text: str, share: float, numbers: Sequence[Name]) -> Iterator[tuple[int, str]]:
    """The product times the number that is left over, with a rank."""
    sign, size = "-" * (share < 0), abs(share)
    if abs(size - 1) < _EXACT:
        yield 0, sign + text
    for rank, how in named_factors(size, numbers):
        yield rank, sign + how.format(text)
    for number in _SIMPLE:
        if abs(size - number) < _EXACT:
            yield 2, f"{sign}{number:.6g} * {text}"
