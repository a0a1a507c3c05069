"""Two tensors side by side, around the entry in which they differ most."""

from typing import TypeGuard

import torch

from pullback.conformance._explain import Difference, explain
from pullback.conformance._values import SHOWN, is_freed, show, show_part

__all__ = ["compared", "is_plain", "show_pair", "table", "window"]

_ROWS = 64
_DIGITS = (6, 9, 12, 17)


def compared(expected: object, got: object, said: str | None) -> tuple[tuple[str, str], str, str]:
    """Both for a report, how they differ in words, and a table of their entries.

    Arguments:
        expected: what is right.
        got: what was seen.
        said: how they differ, where that is known; ``None`` to find it from the numbers.
    """
    entries = ""
    if isinstance(expected, torch.Tensor) and got is None:
        said = explain(Difference(expected, None))
    elif is_plain(expected) and is_plain(got) and expected.shape == got.shape:
        said = explain(Difference(expected, got)) if said is None else said
        entries = table(expected, got)
    return show_pair(expected, got), said or "", entries


def window(expected: torch.Tensor, got: torch.Tensor) -> range:
    """At most six flat indices: the first, or those around the largest difference.

    A number that is not known is NaN.

    Example:
        >>> one = torch.zeros(100)
        >>> other = one.clone(); other[50] = 1
        >>> window(one, other)
        range(47, 53)
    """
    count = expected.numel()
    if count <= SHOWN:
        return range(count)
    first = range(SHOWN)
    gap = _gap(expected, got)
    place = int(gap.argmax())
    if place < SHOWN or float(gap[:SHOWN].max()) >= 0.5 * float(gap[place]):
        return first
    start = min(max(place - SHOWN // 2, 0), count - SHOWN)
    return range(start, start + SHOWN)


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
    if not (is_plain(expected) and is_plain(got)) or expected.shape != got.shape:
        return show(expected), show(got)
    places = window(expected, got)
    texts = "", ""
    for digits in _DIGITS:
        texts = show_part(expected, places, digits), show_part(got, places, digits)
        if texts[0] != texts[1] or expected.dtype != got.dtype:
            break
    return texts


def is_plain(value: object) -> TypeGuard[torch.Tensor]:
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
        index = [int(i) for i in torch.unravel_index(torch.tensor(k), expected.shape)]
        mark = "*" if float(gap[k]) > 1e-3 * most and most else ""
        rows.append((str(index), f"{one[k].item():.8g}", f"{other[k].item():.8g}", mark))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}  {mark}".rstrip()
        for a, b, c, mark in rows
    )
