"""Say in words how one tensor differs from another: the first relation that fits all entries."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

__all__ = ["Difference", "explain"]

_CLOSE = 1e-3
_LITTLE = 0.05
_NOTHING = 1e-5
_WIDE = {True: torch.complex128, False: torch.float64}
# Whole factors that are told as such, also as divisors.
_WHOLE = range(2, 13)


# A sentence that is true, or one that is where a tensor equals what was expected.
_Said = str | tuple[torch.Tensor, str]


@dataclass(frozen=True)
class Difference:
    """What was expected and what was got, and what may explain why they differ.

    Arguments:
        expected: the right numbers.
        got: the numbers seen, or ``None`` where backward returned no gradient.
        known: where ``expected`` is known, a mask; ``None`` for everywhere.
        sizes: numbers that a factor may be, by what they are.
        others: tensors of the same shape that may be taken for it, missing or one too many.
        parts: the terms that what is expected is the sum of.
        reduced: tensors that what is expected may be the sum of, along a dimension.
        factors: tensors of the same shape that may be missing as a factor, or one too many.
        numbers: numbers among the arguments, that may be such factors too.
        indices: tensors of indices among the arguments.
        close: how far apart equal numbers may be, beside the largest.
    """

    expected: torch.Tensor
    got: torch.Tensor | None
    known: torch.Tensor | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    others: Mapping[str, torch.Tensor] = field(default_factory=dict)
    parts: Mapping[str, torch.Tensor] = field(default_factory=dict)
    reduced: Mapping[str, torch.Tensor] = field(default_factory=dict)
    factors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    indices: Mapping[str, torch.Tensor] = field(default_factory=dict)
    close: float = _CLOSE


def explain(difference: Difference) -> str:
    """One sentence that says how the numbers got differ from those expected.

    Arguments:
        difference: what is compared.

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
    pair = _Pair.of(difference)
    if pair is None:
        return _not_finite(difference)
    if pair.equal(pair.got):
        return ""
    return _first(pair, _RULES)


def _first(pair: "_Pair", rules: "Sequence[Callable[[_Pair], Iterator[_Said]]]") -> str:
    """The first sentence that is true."""
    for said in itertools.chain.from_iterable(rule(pair) for rule in rules):
        if isinstance(said, str):
            return said
        if pair.equal(said[0]):
            return said[1]
    return ""


def _numeric(*tensors: torch.Tensor) -> bool:
    return all(t.layout is torch.strided and not t.is_quantized for t in tensors)


@dataclass(frozen=True)
class _Pair:
    """Finite numbers in one wide dtype."""

    expected: torch.Tensor
    got: torch.Tensor
    known: torch.Tensor
    difference: Difference

    @classmethod
    def of(cls, difference: Difference) -> "_Pair | None":
        one, other = difference.expected, difference.got
        if other is None:
            return None
        dtype = _WIDE[one.is_complex() or other.is_complex()]
        expected, got = one.detach().to("cpu", dtype), other.detach().to("cpu", dtype)
        known = difference.known
        known = torch.ones(expected.shape, dtype=torch.bool) if known is None else known.cpu()
        if not known.any() or not (expected[known].isfinite().all() and got.isfinite().all()):
            return None
        return cls(expected, got, known, difference)

    @property
    def size(self) -> float:
        return float(self.expected[self.known].abs().max())

    def equal(self, other: torch.Tensor) -> bool:
        """Whether a tensor is what was expected, where that is known."""
        if other.shape != self.expected.shape:
            return False
        gap = (other - self.expected)[self.known].abs().max()
        return bool(gap <= self.difference.close * self.size)

    def takes(self, tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """Those of the shape compared, in its dtype."""
        for name, tensor in tensors.items():
            fits = tensor.shape == self.expected.shape and tensor.isfinite().all()
            if fits and tensor.is_complex() <= self.expected.is_complex():
                yield name, tensor.detach().to("cpu", self.expected.dtype)


def _shapes(expected: torch.Tensor, got: torch.Tensor) -> str:
    return f"Got has shape {tuple(got.shape)}, expected is {tuple(expected.shape)}."


def _not_finite(difference: Difference) -> str:
    got = difference.got
    if got is None or not difference.expected.isfinite().all():
        return ""
    bad = ~got.isfinite()
    kind = "NaN" if bool(got.isnan().any()) else "infinite"
    return f"{int(bad.sum())} of {bad.numel()} entries got are {kind}; expected are finite numbers."


# Rules --------------------------------------------------------------------------------------------
# Each yields sentences, or claims: a sentence with what equals the expected numbers if it is true.


def _zero(pair: _Pair) -> Iterator[_Said]:
    if not pair.got[pair.known].any():
        yield "Got is zero everywhere."


def _factor(pair: _Pair) -> Iterator[_Said]:
    """One factor for all entries."""
    expected, got = pair.expected[pair.known], pair.got[pair.known]
    norm = float(expected.abs().square().sum())
    factor = complex((expected.conj() * got).sum() / norm) if norm else 0.0
    ratio = factor.real
    if not ratio or abs(factor.imag) > pair.difference.close * abs(factor):
        return
    if not pair.equal(pair.got / ratio) or abs(ratio - 1) < _LITTLE / 5:
        return
    if _near(ratio, -1.0):
        yield "Got is expected with the other sign."
    sign = "-" if ratio < 0 else ""
    named = (said for size, said in _numbers(pair.difference, sign) if _near(abs(ratio), size))
    yield next(named, f"Got is {ratio:.4g} x expected.")


def _numbers(difference: Difference, sign: str) -> Iterator[tuple[float, str]]:
    """Factors that have a name, and how it is said."""
    large = [(name, size) for name, size in difference.sizes.items() if size > 2]
    for name, size in large:
        tail = f"and {size} is the size of {name}."
        yield 1 / size, f"Got is {sign}expected / {size}, {tail}"
        yield size, f"Got is {size} x {sign}expected, {tail}"
    for whole in _WHOLE:
        yield whole, f"Got is {whole} x {sign}expected."
        yield 1 / whole, f"Got is {sign}expected / {whole}."
    for name, number in difference.numbers.items():
        size, tail = abs(number), f"and {name} is {number:.4g}."
        yield size, f"Got is {size:.4g} x {sign}expected, {tail}"
        yield 1 / size, f"Got is {sign}expected / {size:.4g}, {tail}"
    for name, size in large:
        tail = f"and {size} is the size of {name}."
        yield size**-0.5, f"Got is {sign}expected / sqrt({size}), {tail}"
        yield size**0.5, f"Got is sqrt({size}) x {sign}expected, {tail}"


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= _CLOSE * abs(other)


def _arranged(pair: _Pair) -> Iterator[_Said]:
    """The right numbers at other places."""
    got = pair.got
    for first, second in itertools.combinations(range(got.ndim), 2):
        turned = got.transpose(first, second)
        said = f"Got is expected transposed: dimensions {first} and {second} are exchanged"
        yield turned, f"{said}."
        yield turned.reshape(got.shape), f"{said}."
        back = got.reshape(turned.shape).transpose(first, second)
        yield back, f"{said}, and the shape is put back."
    for dim in range(got.ndim):
        yield got.flip(dim), f"Got is expected reversed along dimension {dim}."
        for shift in (1, -1):
            yield got.roll(shift, dim), f"Got is expected, shifted by one along dimension {dim}."
    yield got.conj(), "Got is the complex conjugate of expected."


def _terms(pair: _Pair) -> Iterator[_Said]:
    """Another gradient, or not all of several terms."""
    others = [(name, t) for name, t in pair.takes(pair.difference.others) if t.any()]
    parts = [(name, t) for name, t in pair.takes(pair.difference.parts) if t.any()]
    for name, term in [*parts, *others]:
        yield pair.got + term, f"The term of {name} is missing."
        yield pair.got - term, f"The term of {name} is counted once too often."
    for name, term in parts:
        share = _ratio_of(term[pair.known], (pair.got - pair.expected + term)[pair.known])
        if share:
            said = f"The term of {name} is {share:.4g} x what it should be."
            yield pair.got + (1 - share) * term, said
    for name, term in others:
        other = _Pair(term, pair.got, pair.known, pair.difference)
        if other.equal(pair.got):
            yield f"Got is {name}."
        elif other.equal(-pair.got):
            yield f"Got is minus {name}."


def _factors(pair: _Pair) -> Iterator[_Said]:
    """A tensor that is missing as a factor, or is one too many, up to a number."""
    whole = [(n, f) for n, f in pair.takes(pair.difference.factors) if f[pair.known].all()]
    for name, factor in whole:
        said = f"Got is expected with {name} where its complex conjugate is meant."
        yield pair.got * factor.conj() / factor, said
    for name, factor in whole:
        if _is_constant(factor[pair.known]):
            continue
        for other, said in (
            (pair.got * factor, f"Got is expected without the factor {name}"),
            (pair.got / factor, f"Got is expected with the factor {name} once too often"),
        ):
            yield other, f"{said}."
            expected = pair.expected[pair.known]
            ratio = _ratio_of(expected, other[pair.known]) if len(expected) > 2 else 0.0
            if ratio:
                yield other / ratio, f"{said}, and {ratio:.4g} times as large."


def _ratio_of(one: torch.Tensor, other: torch.Tensor) -> float:
    norm = float(one.abs().square().sum())
    return complex((one.conj() * other).sum() / norm).real if norm else 0.0


def _is_constant(values: torch.Tensor) -> bool:
    return bool((values - values[0]).abs().max() <= _CLOSE * values.abs().max())


def _rows(pair: _Pair) -> Iterator[_Said]:
    """The same numbers all along a dimension."""
    got, expected = pair.got, pair.expected
    whole = bool(pair.known.all())
    for dim in range(got.ndim):
        first = got.narrow(dim, 0, 1).expand_as(got)
        if got.shape[dim] < 2 or not _same(got, first, pair.difference.close):
            continue
        if _same(expected[pair.known], expected.narrow(dim, 0, 1).expand_as(got)[pair.known],
                 pair.difference.close):  # fmt: skip
            continue
        what = "the same for all entries" if got.ndim == 1 else f"the same along dimension {dim}"
        for name, reduced in (("sum", expected.sum(dim, keepdim=True)),
                              ("mean", expected.mean(dim, keepdim=True))):  # fmt: skip
            if whole and _same(first, reduced.expand_as(got), pair.difference.close):
                yield f"Got is {what}: the {name} of expected along it."
        yield f"Got is {what}, expected is not."


def _same(one: torch.Tensor, other: torch.Tensor, close: float) -> bool:
    return bool((one - other).abs().max() <= close * one.abs().max())


def _reduced(pair: _Pair) -> Iterator[_Said]:
    """A sum along a dimension that is not taken, or of which the mean is left out."""
    for name, tensor in pair.difference.reduced.items():
        wide = tensor.detach().to("cpu", pair.expected.dtype)
        for dim in range(wide.ndim):
            if wide.shape[dim] > 1:
                kinds = {"first entry": wide.select(dim, 0), "last entry": wide.select(dim, -1)}
                seen = [k for k, v in kinds.items() if v.shape == pair.got.shape
                        and _same(v, pair.got, pair.difference.close)]  # fmt: skip
                tail = f"got is its {seen[0]}" if seen else "got is not"
                said = f"Expected is the sum of {name} along dimension {dim}; {tail}."
                yield wide.sum(dim), said
    for dim in range(pair.got.ndim if bool(pair.known.all()) else 0):
        said = f"Expected is got less its mean along dimension {dim}: that term is missing."
        yield pair.got - pair.got.mean(dim, keepdim=True), said


def _signs(pair: _Pair) -> Iterator[_Said]:
    if not pair.expected.is_complex() and _same(
        pair.got.abs()[pair.known], pair.expected.abs()[pair.known], pair.difference.close
    ):
        wrong = int((pair.got.sign() != pair.expected.sign())[pair.known].sum())
        yield f"Got has the right size, and the wrong sign at {wrong} of {int(pair.known.sum())}."


def _blocks(pair: _Pair) -> Iterator[_Said]:
    """Right but for a part that is a range of one dimension."""
    wrong = (pair.got - pair.expected).abs() > pair.difference.close * pair.size
    wrong &= pair.known
    for dim in range(wrong.ndim):
        size = wrong.shape[dim]
        others = [k for k in range(wrong.ndim) if k != dim]
        touched = wrong.any(others) if others else wrong  # type: ignore[call-overload]
        seen = pair.known.any(others) if others else pair.known  # type: ignore[call-overload]
        places = [k for k in range(size) if bool(touched[k])]
        right = [k for k in range(size) if bool(seen[k] & ~touched[k])]
        if not right or not places:
            continue
        along = f"dimension {dim}" if wrong.ndim > 1 else "the vector"
        tail = _what(pair, touched, dim)
        if right[-1] < places[0]:
            yield f"Right but for the last {size - places[0]} of {size} along {along}{tail}."
        elif places[-1] < right[0]:
            yield f"Right but for the first {places[-1] + 1} of {size} along {along}{tail}."
        elif len(places) <= max(1, size // 4):
            named = ", ".join(map(str, places[:4])) + (", ..." if len(places) > 4 else "")
            where = _repeated(pair, places, right)
            yield f"Right but for index {named} of {size} along {along}{tail}{where}."


def _what(pair: _Pair, touched: torch.Tensor, dim: int) -> str:
    """What stands in the wrong part, where that has a name."""
    places = touched.nonzero().reshape(-1)
    known = pair.known.index_select(dim, places)
    if not known.any():
        return ""
    part = _Pair(pair.expected.index_select(dim, places), pair.got.index_select(dim, places),
                 known, pair.difference)  # fmt: skip
    said = _first(part, (_zero, _factor))
    return f", where {said[0].lower()}{said[1:-1]}" if said else ""


def _repeated(pair: _Pair, places: list[int], right: list[int]) -> str:
    """Whether the wrong places are those that a tensor of indices names more than once."""
    for name, index in pair.difference.indices.items():
        count = torch.bincount(index.reshape(-1).clamp(min=0), minlength=max(*places, *right) + 1)
        if all(count[k] > 1 for k in places) and not any(count[k] > 1 for k in right):
            return f", which {name} names more than once: all of its terms are to be added"
    return ""


def _nearly(pair: _Pair) -> Iterator[_Said]:
    """Off by little at most entries."""
    gaps = (pair.got - pair.expected)[pair.known].abs() / pair.size
    gap, off = float(gaps.max()), int((gaps > _NOTHING).sum())
    if pair.difference.close < _LITTLE / 2 and gap < _LITTLE and 2 * off > len(gaps):
        small = [f"{name} = {n:.4g}" for name, n in pair.difference.numbers.items() if 0 < n < 0.1]
        what = f" ({small[0]})" if small else ""
        yield (
            f"Got is off by {100 * gap:.2g} % of the largest entry at most: a small constant{what} "
            "that is left out of one of the two, a lower precision, or a tolerance."
        )


def _offset(pair: _Pair) -> Iterator[_Said]:
    gap = (pair.got - pair.expected)[pair.known]
    if len(gap) > 2 and _is_constant(gap):
        yield f"Got is expected {complex(gap.mean()).real:+.4g} at every entry."


_RULES: tuple[Callable[[_Pair], Iterator[_Said]], ...] = (
    _zero, _factor, _arranged, _terms, _factors, _reduced, _rows, _nearly, _blocks, _signs, _offset,
)  # fmt: skip
