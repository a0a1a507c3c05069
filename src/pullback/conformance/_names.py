"""What an expression of a rule may name, and how a number is written in those names."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from pullback.conformance._changes import CLOSE, is_same
from pullback.conformance._mends import Stand
from pullback.conformance._watch import Watch
from pullback.conformance._written import Expression

__all__ = ["Name", "is_number", "named_factors", "names_at", "numbers_at"]

_WHOLE = range(2, 13)  # numbers that are told as such, also as divisors


class Name(NamedTuple):
    """What an expression may name."""

    text: str
    value: Any


def is_number(value: Any) -> bool:
    """Whether it is a finite number of Python's."""
    return type(value) in (int, float) and math.isfinite(value)


def names_at(expression: Expression, noted: Watch) -> Sequence[Name]:
    """The tensors and numbers that it may name, each under its first name."""
    found: list[Name] = []
    for name, value in noted.scopes.get(expression.place, {}).items():
        if name.startswith("_"):  # what is not to be read
            continue
        found.append(Name(name, value))
        for attribute, held in vars(value).items() if isinstance(value, Stand) else ():
            if attribute == "saved_tensors":
                found += [Name(f"{name}.saved_tensors[{k}]", t) for k, t in enumerate(held)]
            elif not attribute.startswith("_"):
                found.append(Name(f"{name}.{attribute}", held))
    usable = [n for n in found if isinstance(n.value, torch.Tensor) or is_number(n.value)]
    usable.sort(key=lambda name: "." in name.text)  # a name of its own before a path
    return [n for k, n in enumerate(usable) if not any(_is_one(n, o) for o in usable[:k])]


def _is_one(name: Name, other: Name) -> bool:
    one, two = name.value, other.value
    return isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor) and is_same(one, two)


def numbers_at(names: Sequence[Name]) -> Sequence[Name]:
    """The numbers that an expression may name, sizes among them, each under its first name."""
    found = [n for n in names if is_number(n.value)]
    for name in names:
        if isinstance(name.value, torch.Tensor):
            if name.value.numel() == 1 and name.value.is_floating_point():
                found.append(name._replace(value=name.value.item()))
            if not name.value.is_floating_point() and not name.value.is_complex():
                mask = name.value.dtype == torch.bool
                count = int((name.value if mask else name.value >= 0).sum())
                if 0 < count < name.value.numel():
                    used = name.text if mask else f"({name.text} >= 0)"
                    found.append(Name(f"{used}.sum()", count))
            sizes = enumerate(name.value.shape)
            found += [Name(f"{name.text}.shape[{d}]", size) for d, size in sizes if size > 1]
    first: dict[Any, Name] = {}
    for name in found:
        first.setdefault((type(name.value), name.value), name)
    return list(first.values())


def named_factors(factor: float, numbers: Sequence[Name]) -> Iterator[tuple[int, str]]:
    """How a factor may be written, with ``{0}`` for what it multiplies."""
    known = [(n.text, abs(float(n.value)), n) for n in numbers if n.value not in (0, 1, -1)]

    def near(other: float) -> bool:
        return other > 0 and abs(factor - other) <= CLOSE * other

    for text, value, name in known:
        size = type(name.value) is int and value > 2
        kinds = [
            (2 + size, "{0} * " + text, value), (2 + size, "{0} / " + text, 1 / value),
            (3, "{0} * " + f"{text} ** 2", value**2), (3, "{0} / " + f"{text} ** 2", value**-2),
            (4, "{0} * " + f"{text} ** 0.5", value**0.5),
            (4, "{0} / " + f"{text} ** 0.5", value**-0.5),
            (4, "{0} / " + f"{text} ** 3", value**-3), (4, "{0} * " + f"{text} ** 3", value**3),
        ]  # fmt: skip
        if not size:
            kinds += [
                (3, "{0} * " + f"(1 - {text})", 1 - value),
                (3, "{0} * " + f"(1 + {text})", 1 + value),
                (3, "{0} / " + f"(1 - {text})", 1 / (1 - value) if value != 1 else 0),
                (3, "{0} / " + f"(1 + {text})", 1 / (1 + value)),
            ]  # fmt: skip
        else:
            kinds += [
                (3, "{0} * " + f"({text} - 1)", value - 1),
                (3, "{0} / " + f"({text} - 1)", 1 / (value - 1)),
                (3, "{0} * " + f"{text} / ({text} - 1)", value / (value - 1)),
                (3, "{0} * " + f"({text} - 1) / {text}", (value - 1) / value),
            ]  # fmt: skip
        yield from ((rank, how) for rank, how, by in kinds if near(by))
    for n in _WHOLE:
        yield from [(2 if n == 2 else 3, f"{n} * " + "{0}")] * near(n)
        yield from [(2 if n == 2 else 3, "{0} / " + f"{n}")] * near(1 / n)
    for k, (one, value, _) in enumerate(known):
        for other, by, _ in known[k + 1 :]:
            yield from [(4, "{0} * " + f"({one} * {other})")] * near(value * by)
            yield from [(4, "{0} / " + f"({one} * {other})")] * near(1 / (value * by))
            yield from [(4, "{0} * " + f"{one} / {other}")] * near(value / by)
            yield from [(4, "{0} * " + f"{other} / {one}")] * near(by / value)
