"""What may stand in the place of an expression: what it may name, and a number in those names."""

import ast
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import torch

from pullback.conformance.comparison._changes import CLOSE, is_same
from pullback.conformance.inputs._arguments import is_continuous
from pullback.conformance.process._limits import limited
from pullback.conformance.source._watch import Watch
from pullback.conformance.source._written import Edit, Expression, Written

__all__ = [
    "Meant", "Name", "Place", "Rewrite", "along", "computed_by", "go_together", "is_flag",
    "is_number", "is_plain", "is_simple", "is_size", "lowers", "named_factors", "names_at",
    "numbers_at", "one_more", "turned", "views",
]  # fmt: skip

_DEPTH, _FEW = 2, 8  # of what is held by what, and how many of a row
# These hold what is not of the moment.
_OWN_RIGHT = (torch.Tensor, torch.nn.Module, type, ModuleType, FunctionType)
_WHOLE = range(2, 13)  # numbers that are told as such, also as divisors
_LONG = 40  # characters
_AHEAD = 2  # entries that a scan or a difference leaves out at an end
_MANY, _SHARP = 60, 1e-6  # forms of numbers of which several go together, and how near they come


class Name(NamedTuple):
    """What an expression may name."""

    text: str
    value: Any


_CONSTANTS = (Name("torch.pi", math.pi), Name("(2 * torch.pi)", 2 * math.pi))


def is_number(value: Any) -> bool:
    """Whether it is a finite number of Python's."""
    return type(value) in (int, float) and math.isfinite(value)


def names_at(expression: Expression, noted: Watch) -> Sequence[Name]:
    """The tensors and numbers that it may name, each under its first name."""
    scope = noted.scopes.get(expression.place, {}).items()
    named = [Name(name, value) for name, value in scope if not name.startswith(("_", "."))]
    found = [name for whole in named for name in (whole, *_parts(whole, _DEPTH))]
    usable = [n for n in found if isinstance(n.value, torch.Tensor) or is_number(n.value)]
    usable.sort(key=lambda name: not name.text.isidentifier())  # a name of its own before a path
    return [n for k, n in enumerate(usable) if not any(_is_one(n, o) for o in usable[:k])]


def _parts(name: Name, depth: int) -> Iterator[Name]:
    """What a context, an object, a dictionary or a few values in a row hold."""
    text, value = name
    held: list[Name] = []
    if isinstance(value, torch.Size):
        held = [Name(f"{text}[{along(k, len(value))}]", n) for k, n in enumerate(value)]
    elif isinstance(value, (list, tuple)):
        held = [Name(f"{text}[{k}]", part) for k, part in enumerate(value[:_FEW])]
    elif isinstance(value, dict):
        texts = [(key, part) for key, part in value.items() if isinstance(key, str)]
        held = [Name(f'{text}["{key}"]', part) for key, part in texts]
    elif hasattr(value, "__dict__") and not isinstance(value, _OWN_RIGHT):
        own = [(key, part) for key, part in vars(value).items() if not key.startswith("_")]
        held = [Name(f"{text}.{key}", part) for key, part in own]
    for part in held if depth else ():
        yield part
        yield from _parts(part, depth - 1)


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
            sizes = [n for n in enumerate(name.value.shape) if n[1] > 1]
            ndim = name.value.ndim
            found += [Name(f"{name.text}.shape[{along(d, ndim)}]", size) for d, size in sizes]
            found += [Name(f"{name.text}.numel()", name.value.numel())] * bool(sizes)
    first: dict[Any, Name] = {}
    for name in found:
        every = name.text.endswith(".numel()")  # of one row, another number than its size
        first.setdefault((type(name.value), name.value, every), name)
    return list(first.values())


def is_simple(e: Expression) -> bool:
    """Whether it is computed, and short enough to be a factor elsewhere."""
    return isinstance(e.node, (ast.BinOp, ast.Call, ast.UnaryOp)) and len(e.text) <= _LONG


def computed_by(rule: Written, scope: Mapping[str, Any], patience: float) -> Iterator[Name]:
    """What another rule computes of names that are at hand here too, computed anew.

    Each within so many seconds: a name may stand for something else here.
    """
    for e in rule.expressions:
        names = [n.attr for n in ast.walk(e.node) if isinstance(n, ast.Attribute)]
        if is_simple(e) and not any(name.endswith("_") for name in names):
            with suppress(Exception), limited(patience), torch.no_grad():  # what is not at hand
                value = eval(e.text, rule.function.__globals__, dict(scope))  # noqa: S307
                if is_plain(value) and is_continuous(value):
                    yield Name(e.atom, value)


def one_more(text: str) -> str:
    """An expression with one more at its first entry."""
    zeros = f"({text}).new_zeros(({text}).shape)"
    first = f"{zeros}.reshape(-1).index_fill(0, {zeros}.new_zeros(1).long(), 1)"
    return f"({text}) + {first}.reshape(({text}).shape)"


def go_together(shape: torch.Size, other: torch.Size) -> bool:
    """Whether what has these shapes may be multiplied."""
    try:
        torch.broadcast_shapes(shape, other)
    except RuntimeError:
        return False
    return True


def views(name: Name, shape: torch.Size) -> Iterator[Name]:
    """A tensor as it goes with a shape: as it is, with a number for each row or matrix, or a part.

    The parts are those of a scan or a difference: all but the first one or two, or the last.
    """
    text, tensor = name
    if go_together(tensor.shape, shape):
        yield name
        return
    for more in range(1, len(shape) - tensor.ndim + 1):
        view = tensor[(..., *[None] * more)]
        if go_together(view.shape, shape):
            yield Name(f"{text}[...{', None' * more}]", view)
    if tensor.ndim == len(shape):
        pairs = enumerate(zip(tensor.shape, shape, strict=True))
        other = [
            (dim, own, size) for dim, (own, size) in pairs if own != size and 1 not in (own, size)
        ]
        if len(other) == 1 and 0 < other[0][1] - other[0][2] <= _AHEAD:
            ((dim, own, size),) = other
            before = f"{text}[{':, ' * dim}"
            yield Name(f"{before}:-{own - size}]", tensor.narrow(dim, 0, size))
            yield Name(f"{before}{own - size}:]", tensor.narrow(dim, own - size, size))


def along(dim: int, ndim: int) -> int:
    """How a dimension is written: the last one so that it is that of more dimensions, too."""
    return -1 if dim == ndim - 1 else dim


def is_size(name: Name) -> bool:
    """Whether a number is how many there are."""
    return ".shape[" in name.text or name.text.endswith(".numel()")


def named_factors(
    factor: float, numbers: Sequence[Name], close: float = CLOSE
) -> Iterator[tuple[int, str]]:
    """How a factor, known so closely, may be written, with ``{0}`` for what it multiplies."""
    known = [n for n in (*numbers, *_CONSTANTS) if n.value not in (0, 1, -1)]
    forms = [form for name in known for form in _forms(name)]
    whole = [
        _Form(2 + (n > 2), how, by)
        for n in _WHOLE
        for how, by in ((f"{n} * {{0}}", float(n)), (f"{{0}} / {n}", 1 / n))
    ]
    pairs = (form for one, two in itertools.combinations(known, 2) for form in _of_two(one, two))
    for form in itertools.chain(forms, whole, pairs):
        if abs(factor - form.value) <= close * abs(form.value):
            yield form.rank, form.how
        elif abs(factor + form.value) <= close * abs(form.value):
            yield form.rank, f"-{form.how}"
    yield from _together(factor, forms[:_MANY])


class _Form(NamedTuple):
    """A factor made of one number."""

    rank: int
    how: str
    value: float


def _forms(name: Name) -> Iterator[_Form]:
    text, value = name.text, float(name.value)
    size = type(name.value) is int and abs(value) > 2
    yield _Form(2 + size, f"{{0}} * {text}", value)
    yield _Form(2 + size, f"{{0}} / {text}", 1 / value)
    if size:
        yield _Form(3, f"{{0}} * ({text} - 1)", value - 1)
        yield _Form(3, f"{{0}} / ({text} - 1)", 1 / (value - 1))
        yield _Form(3, f"{{0}} * {text} / ({text} - 1)", value / (value - 1))
        yield _Form(3, f"{{0}} * ({text} - 1) / {text}", (value - 1) / value)
    else:
        for by, other in ((f"(1 - {text})", 1 - value), (f"(1 + {text})", 1 + value)):
            yield _Form(3, f"{{0}} * {by}", other)
            yield from [_Form(3, f"{{0}} / {by}", 1 / other)] * (other != 0)
    for power in (2, 0.5, 3) if value > 0 else (2, 3):
        rank = 3 if power == 2 else 4
        yield _Form(rank, f"{{0}} * {text} ** {power}", value**power)
        yield _Form(rank, f"{{0}} / {text} ** {power}", value**-power)


def _of_two(one: Name, other: Name) -> Iterator[_Form]:
    value, by = float(one.value), float(other.value)
    yield _Form(4, f"{{0}} * {one.text} * {other.text}", value * by)
    yield _Form(4, f"{{0}} / ({one.text} * {other.text})", 1 / (value * by))
    yield _Form(4, f"{{0}} * {one.text} / {other.text}", value / by)
    yield _Form(4, f"{{0}} * {other.text} / {one.text}", by / value)


def _together(factor: float, forms: Sequence[_Form]) -> Iterator[tuple[int, str]]:
    """Several numbers together, some by 2: of so many, few digits would be met by chance."""
    twice = [_Form(2, "2 * {0}", 2.0), _Form(2, "{0} / 2", 0.5)]
    both = [*itertools.combinations(forms, 2)]
    every: list[tuple[_Form, ...]] = [*itertools.product(twice, forms), *both]
    every += [(*two, last) for two in both for last in twice]
    for some in every:
        value = math.prod(form.value for form in some)
        if abs(abs(factor) - abs(value)) <= _SHARP * abs(value):
            how = "{0}"
            for form in some[::-1]:
                how = form.how.format(how)
            yield 4 + len(some), "-" * (factor * value < 0) + how


# Places -------------------------------------------------------------------------------------------


class Rewrite(NamedTuple):
    """Other expressions in the place of some."""

    rank: int  # those of a lower rank are likelier
    texts: Edit
    anew: bool = False  # whether it is compiled: what it replaces would have run before


Meant = Iterable[tuple[int, str, *tuple[str, ...]]]
"""What may have been meant: a rank, a text, and the name that it reads if that makes it likely."""


def is_plain(value: Any) -> bool:
    """Whether it may be another one: a device is lost for the process by a wrong index."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    harmless = value.device.type == "cpu" or value.dtype == torch.bool or is_continuous(value)
    return harmless and value.numel() > 0


def is_flag(e: Expression) -> bool:
    """Whether it asks which inputs need a gradient."""
    near = (n for n in (e.node, e.rule.parent[e.node]) if isinstance(n, ast.expr))
    return any("needs_input_grad" in e.rule.text(n) for n in near)


def lowers(e: Expression, text: str, noted: Watch) -> bool:
    """Whether an edit leaves out a cast to a lower precision."""
    match e.node:
        case ast.Call(func=ast.Attribute(value=of)) if text == e.rule.text(of):
            pair: list[Any] = [noted.first.get(e.rule.key(n)) for n in (of, e.node)]
            if all(isinstance(v, torch.Tensor) and v.is_floating_point() for v in pair):
                whole, value = (torch.finfo(v.dtype).eps for v in pair)
                return whole < value
    return False


def turned(atom: str, how: str = ".mT") -> str:
    """The text of a transpose; of one that is written as such, what it is of."""
    for ending in (".mT", ".t()", ".T"):
        if atom.endswith(ending):
            return atom.removesuffix(ending)
    return atom + how


@dataclass(frozen=True)
class Place:
    """An expression whose rewrites are listed."""

    e: Expression
    noted: Watch
    names: Sequence[Name]
    numbers: Sequence[Name]  # those among them, and sizes
    rules: Collection[Written]  # the functions of the author's that run

    @property
    def value(self) -> Any:
        """What it was."""
        return self.noted.first[self.e.key]

    def known(self, node: ast.AST) -> Any:
        """What an operand was."""
        return self.noted.first.get(self.e.rule.key(node))

    def to(self, rank: int, text: str, name: str = "") -> Rewrite:
        """An edit, likelier where it reads a name that nobody reads, most of all a given one."""
        unread = (name in self.e.rule.unread) + (name in self.e.rule.idle)
        return Rewrite(rank - 3 * unread, {self.e: text})

    def written(self, texts: Mapping[Any, str]) -> str:
        """Its text with other operands."""
        return self.e.rule.spliced(texts, self.e.node)

    @cached_property
    def tensors(self) -> Sequence[Name]:
        """The tensors that it may name."""
        return [name for name in self.names if is_plain(name.value)]

    @property
    def moving(self) -> Sequence[Name]:
        """Those of real or complex numbers."""
        return [name for name in self.tensors if is_continuous(name.value)]
