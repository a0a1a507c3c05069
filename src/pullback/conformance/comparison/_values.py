"""Compare and show the numbers of tensors, and put the same ones into other memory."""

from collections.abc import Iterable
from typing import TypeGuard

import torch

from pullback.conformance.comparison._explain import Difference, explain
from pullback.conformance.inputs._arguments import is_continuous
from pullback.conformance.inputs._vectors import wide

__all__ = [
    "CANCELLED", "broadcast", "close", "compared", "copies", "expanded", "is_freed", "largest",
    "offset", "same_bits", "show", "show_pair", "strided", "table", "transposed", "window",
]  # fmt: skip

_SHOWN = 6  # entries of a tensor
_ROWS, _DIGITS = 64, (6, 9, 12, 17)  # of a table; of numbers, as many as tell them apart
CANCELLED = 16  # roundings that are left where terms cancel


def is_freed(tensor: torch.Tensor) -> bool:
    """Whether the memory of a strided tensor was given back; reading it ends the process.

    Reversible blocks do so to their inputs, with ``x.untyped_storage().resize_(0)``.
    """
    if tensor.layout is not torch.strided or not tensor.numel():
        return False
    return tensor.device.type != "meta" and tensor.untyped_storage().nbytes() == 0


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and entries; NaN equals NaN.

    Example:
        >>> same_bits(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
        True
    """
    if one.shape != other.shape or one.dtype != other.dtype or is_freed(one) or is_freed(other):
        return False
    a, b = one.detach().resolve_conj(), other.detach().resolve_conj()
    return bool(((a == b) | (torch.isnan(a) & torch.isnan(b))).all())


def show(value: object) -> str:
    """A value for a report: short tensors in full, others by their first entries."""
    if isinstance(value, torch.Tensor):
        if is_freed(value):
            return f"freed memory, shape {tuple(value.shape)} {value.dtype}".replace("torch.", "")
        return _show_part(value, range(min(value.numel(), _SHOWN)), 6)
    return f"{value:.8g}" if isinstance(value, float) else str(value)


def _show_part(value: torch.Tensor, places: range, digits: int) -> str:
    """Consecutive entries of a tensor, its shape and dtype."""
    flat = value.detach().reshape(-1)[places.start : places.stop]
    entries = ", ".join(f"{number:.{digits}g}" for number in flat.tolist())
    lead = "..., " if places.start else ""
    more = ", ..." if places.stop < value.numel() else ""
    where = f"from entry {places.start} of shape" if places.start else "shape"
    text = f"[{lead}{entries}{more}] {where} {tuple(value.shape)} {value.dtype}"
    return text.replace("torch.", "")


def compared(expected: object, got: object, said: str | None) -> tuple[tuple[str, str], str, str]:
    """Both for a report, how they differ in words, and a table of their entries.

    The words are found from the numbers where they are not given.
    """
    entries = ""
    if isinstance(expected, torch.Tensor) and got is None:
        said = explain(Difference(expected, None)) if said is None else said
    elif _is_plain(expected) and _is_plain(got) and expected.shape == got.shape:
        said = explain(Difference(expected, got)) if said is None else said
        entries = table(expected, got)
    return show_pair(expected, got), said or "", entries


def window(expected: torch.Tensor, got: torch.Tensor | None) -> range:
    """At most six flat indices: the first, or those around the largest difference.

    A number that is not known is NaN. The first where got is ``None``, as in a report.

    Example:
        >>> one = torch.zeros(100)
        >>> other = one.clone(); other[50] = 1
        >>> window(one, other)
        range(47, 53)
    """
    count = expected.numel()
    if count <= _SHOWN:
        return range(count)
    first = range(_SHOWN)
    if got is None:
        return first
    gap = _gap(expected, got)
    place = int(gap.argmax())
    if place < _SHOWN or float(gap[:_SHOWN].max()) >= 0.5 * float(gap[place]):
        return first
    start = min(max(place - _SHOWN // 2, 0), count - _SHOWN)
    return range(start, start + _SHOWN)


def _gap(expected: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """How far apart each entry is; endless where one alone is finite, -1 where none is known."""
    wide = torch.complex128 if expected.is_complex() or got.is_complex() else torch.float64
    one, other = (t.detach().reshape(-1).to("cpu", wide) for t in (expected, got))
    gap = (one - other).abs()
    lone = (one.isnan() != other.isnan()) | (one.isinf() != other.isinf())
    gap = torch.where(lone & ~one.isnan(), torch.inf, gap)
    return torch.where(gap.isnan(), -1.0, gap)


def show_pair(expected: object, got: object) -> tuple[str, str]:
    """Both for a report, with as many digits as tell them apart, at the place where they differ.

    Example:
        >>> one = torch.zeros(100)
        >>> other = one.clone(); other[50] = 1
        >>> show_pair(one, other)[1]
        '[..., 0, 0, 0, 1, 0, 0, ...] from entry 47 of shape (100,) float32'
    """
    if not (_is_plain(expected) and _is_plain(got)) or expected.shape != got.shape:
        return show(expected), show(got)
    places = window(expected, got)
    texts = "", ""
    for digits in _DIGITS:
        texts = _show_part(expected, places, digits), _show_part(got, places, digits)
        if texts[0] != texts[1] or expected.dtype != got.dtype:
            break
    return texts


def _is_plain(value: object) -> TypeGuard[torch.Tensor]:
    """Whether it is a tensor whose entries can be read one by one."""
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and not is_freed(value)


def table(expected: torch.Tensor, got: torch.Tensor) -> str:
    """Index, expected and got of each entry; of many, those that differ most.

    Example:
        >>> print(table(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])))
        index  expected  got
        [0]           1    1
        [1]           2    4  *
    """
    gap = _gap(expected, got)
    known = (~expected.detach().reshape(-1).isnan()).nonzero().reshape(-1).tolist()
    if len(known) > _ROWS:
        known = sorted(sorted(known, key=lambda k: -float(gap[k]))[:_ROWS])
    most = max((float(gap[k]) for k in known), default=0.0)
    one, other = expected.detach().reshape(-1), got.detach().reshape(-1)
    rows = [("index", "expected", "got", "")]
    for k in known:
        index = [int(i) for i in torch.unravel_index(torch.tensor(k, device="cpu"), expected.shape)]
        mark = "*" if float(gap[k]) > 1e-3 * most and most else ""
        rows.append((str(index), f"{one[k].item():.8g}", f"{other[k].item():.8g}", mark))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}  {mark}".rstrip()
        for a, b, c, mark in rows
    )


def close(
    one: torch.Tensor, other: torch.Tensor, looser: float, least: float, among: float = 0.0
) -> bool:
    """Whether two tensors are equal up to rounding, relative to the largest entry.

    NaN and infinity must coincide.

    Arguments:
        one: a tensor.
        other: the tensor that it is compared with, of the same shape.
        looser: how many times the usual rounding is allowed.
        least: the rounding of one operation, where it is more than that of the dtypes.
        among: the largest number that both were computed beside. Of terms of that size that cancel,
            as those of a bias before a normalisation, rounding leaves some.

    Example:
        >>> one = torch.ones(2)
        >>> close(one, one + 1e-7, 1.0, 0.0), close(one, one + 1e-3, 1.0, 0.0)
        (True, False)
    """
    found = [torch.finfo(t.dtype).eps for t in (one, other) if is_continuous(t)]
    eps = max([least, *found])
    # So much of a half-precision number would let anything pass.
    tolerance = looser * eps**0.75 if eps > least else min(looser * eps**0.75, max(16 * eps, 0.1))
    dtype = torch.complex128 if one.is_complex() or other.is_complex() else torch.float64
    a, b = one.detach().to(dtype), other.detach().to(dtype)
    finite = torch.isfinite(b)
    if not torch.equal(torch.isfinite(a), finite):
        return False
    if not finite.any():
        return True
    gap, size = (a - b)[finite].abs().max(), b[finite].abs().max()
    rounded = max(tolerance * max(float(size), float(a[finite].abs().max()), 1e-300),
                  CANCELLED * eps * among)  # fmt: skip
    return bool(gap <= rounded)


def largest(tensors: Iterable[torch.Tensor]) -> float:
    """The largest finite magnitude among the entries."""
    sizes = (wide(t.detach()).abs() for t in tensors if is_continuous(t))  # float8 has no abs
    finite = (size[size.isfinite()] for size in sizes)
    return max((float(size.max()) for size in finite if size.numel()), default=0.0)


def copies(parts: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Copies without history: the next call may write into what one has returned."""
    return [part.detach().clone() for part in parts]


def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT if x.ndim >= 2 else strided(x)


def strided(x: torch.Tensor) -> torch.Tensor:
    pairs = x.new_zeros((*x.shape, 2))
    pairs[..., 1] = x
    return pairs[..., 1]


def offset(x: torch.Tensor) -> torch.Tensor:
    store = torch.zeros(x.numel() + 1, dtype=x.dtype, device=x.device)
    store[1:] = x.reshape(-1)
    return store[1:].view(x.shape)


def expanded(x: torch.Tensor) -> torch.Tensor:
    """Every row along the first dimension the same memory; square matrices keep their structure."""
    square = x.ndim >= 2 and x.shape[-1] == x.shape[-2]
    return x[:1].expand(x.shape) if x.ndim and x.shape[0] > 1 and not square else x


def broadcast(x: torch.Tensor) -> torch.Tensor:
    """Every entry the memory of the first, as the cotangent of a sum has it."""
    return x.reshape(-1)[:1].expand(x.numel()).view(x.shape) if x.numel() else x
