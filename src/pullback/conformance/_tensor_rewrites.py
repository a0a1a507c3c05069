"""What may have been meant in the place of a tensor: another one, a factor, a term, a place."""

import ast
import itertools
from collections.abc import Iterator

import torch

from pullback.conformance._arguments import is_continuous
from pullback.conformance._changes import is_same
from pullback.conformance._names import along
from pullback.conformance._place import Place, Rewrite, turned
from pullback.conformance._written import names_read

__all__ = ["of_a_tensor"]

_LARGE = 2**16  # entries of a tensor for which only what is likely is tried
# Of a factor, what is read, the expression and an operand, with their ranks.
_WITH_ONE = {
    "{0} * {1}": 3, "{0} / {1}": 3, "{0} * (1 - {1})": 5, "{0} * {1}.sign()": 5,
    "{0} * {1} ** 2": 5, "{0} / {1} ** 2": 5, "{0} * (1 - {1} ** 2)": 6, "{2} + {1}": 6,
    "{2} - {1}": 6, "{0} * {1}.conj()": 6,
    # What a norm, a softmax or a projection takes away.
    "{0} - {1} * ({1} * {0}).sum(-1, keepdim=True)": 6,
    "{0} - {1} * ({1} * {0}).mean(-1, keepdim=True)": 6,
    "{2} - {1} * {3}.sum(-1, keepdim=True)": 6,
}  # fmt: skip
_TERMS = ("{2} + {1}", "{2} - {1}")
# Of an operand, a factor, and the expression.
_ALONE = ("1 - {1}", "{0} ** 2", "{0}.sqrt()", "1 / {0}", "{2} + 1", "{2} - 1", "1 - {0} ** 2")
# Of what forward left, one for the other: a logarithm, a logit, an angle.
_OF_NAMES = ("exp", "log", "sigmoid", "tanh", "sin", "cos", "sign", "abs")


def of_a_tensor(place: Place) -> Iterator[Rewrite]:
    """Rewrites of an expression that is a tensor."""
    value = place.value
    if isinstance(place.e.node, (ast.Name, ast.Attribute, ast.Subscript)):
        yield from _other_names(place)
    if value.dtype == torch.bool:
        yield place.to(1 if place.e.is_asked else 3, f"~{place.e.atom}")
    elif value.dtype == torch.int64:  # an index, one too far or not far enough
        yield from (place.to(4, f"{place.e.text} {by} 1") for by in "+-")
        yield place.to(3, f"{place.e.atom}.argsort()")  # an order, for its inverse
    elif is_continuous(value) and value.numel() <= _LARGE:
        yield from _with_names(place)
        yield from _alone(place)
        yield from _arranged(place)


def _other_names(place: Place) -> Iterator[Rewrite]:
    """Another tensor, there or wherever the same is read."""
    value, text = place.value, place.e.text
    same = [e for e in place.e.rule.expressions if e.text == text and e.key in place.noted.first]
    for number in place.numbers:
        yield place.to(5, number.text)
    if is_continuous(value):
        yield from (place.to(6, f"{text}.{name}()") for name in _OF_NAMES)
    for name in place.tensors():
        other = name.value
        if name.text != text and not is_same(other, value):
            near = other.shape == value.shape and other.dtype == value.dtype
            yield place.to(4 if near else 5, name.text, name.text)
            if len(same) > 1 and same[0] is place.e:
                yield Rewrite(5 - near, dict.fromkeys(same, name.text))


def _go_together(one: torch.Tensor, other: torch.Tensor) -> bool:
    try:
        torch.broadcast_shapes(one.shape, other.shape)
    except RuntimeError:
        return False
    return True


def _with_names(place: Place) -> Iterator[Rewrite]:
    """A factor or a term that is forgotten, or one too many."""
    value, factor, ends = place.value, place.e.factor, (place.e.text, place.e.atom)
    options = [n for n in place.names if type(n.value) is float]
    for number in options:
        yield place.to(4, f"{factor} * {number.text}")
        yield place.to(4, f"{factor} / {number.text}")
    for name in place.tensors():
        other = name.value
        views = [name.text] * _go_together(other, value)
        if other.ndim and _go_together(other[..., None], value) and not views:
            views.append(f"{name.text}[..., None]")
        for mask in views if other.dtype == torch.bool else ():
            yield place.to(4, f"{factor} * {mask}", name.text)
            yield place.to(5, f"{factor} * ~{mask}", name.text)
        if other.dtype == torch.int64 and bool(other.all()):  # how many each stands for
            yield from (place.to(4, f"{factor} / {count}", name.text) for count in views)
            yield from (place.to(5, f"{factor} * {count}", name.text) for count in views)
        if not is_continuous(other) or other.is_complex() > value.is_complex():
            continue
        if other.ndim > 1 and _go_together(other.mT, value):
            views.append(f"{name.text}.mT")
        idle = name.text in place.e.rule.idle
        for form, rank in _WITH_ONE.items():
            near = 3 if idle and form in _TERMS else rank  # as likely as that it is a factor
            for one in views:
                yield place.to(near, form.format(factor, one, *ends), name.text)
        for beside in place.tensors() if name.text in place.e.rule.unread else ():
            for sign in "-+":
                text = f"{ends[0]} {sign} {beside.text} * {name.text}"
                yield place.to(6, text, name.text)


def _alone(place: Place) -> Iterator[Rewrite]:
    """A function of the tensor alone, or another extent of it."""
    atom, form = place.e.atom, (place.e.atom, place.e.factor, place.e.text)
    yield from (place.to(5, how.format(*form)) for how in _ALONE)
    for number in place.numbers:
        if type(number.value) is float and number.value not in (0.0, 1.0, 2.0):
            yield place.to(4, f"{atom} ** {number.text}")
    for dim in (d for d, size in enumerate(place.value.shape) if size > 1):
        at = along(dim, place.value.ndim)
        for reduction in ("sum", "mean"):
            yield place.to(5, f"{atom}.{reduction}({at}, keepdim=True)")
            yield place.to(5, f"{atom}.{reduction}({at})")
        yield place.to(5, f"{place.e.text} - {atom}.mean({at}, keepdim=True)")


def _arranged(place: Place) -> Iterator[Rewrite]:
    """The same numbers at other places, or their complex conjugates."""
    value, atom = place.value, place.e.atom
    yield from (place.to(4, f"{atom}{ending}") for ending in place.e.rule.endings)
    if value.ndim:
        yield place.to(4, f"{atom}[..., None]")
    for one, other in itertools.combinations(range(value.ndim), 2):
        text = turned(atom, ".T") if value.ndim == 2 else f"{atom}.transpose({one}, {other})"
        yield place.to(3, text)
    own = names_read(place.e.node)
    # What does nothing here, as the conjugate of real numbers, is not to be lost.
    read = [n.text for n in place.tensors() if n.text in own and n.value.shape == value.shape
            and not torch.equal(n.value, value)]  # fmt: skip
    for text in dict.fromkeys([atom, *read]):
        yield from _shifted(place, text)
    if value.is_complex():
        yield place.to(1, f"{atom}.conj()")  # the slip of whoever differentiates in the plane


def _shifted(place: Place, text: str) -> Iterator[Rewrite]:
    """A tensor turned round along a dimension, or by one entry."""
    value = place.value
    for dim in (d for d, size in enumerate(value.shape) if size > 1):
        at = along(dim, value.ndim)
        lead = "..., " if value.ndim > 1 and at < 0 else ":, " * dim
        yield place.to(5, f"{text}.flip({at})")
        yield place.to(6, f"{text}.roll(1, {at})")
        yield place.to(6, f"{text}.roll(-1, {at})")
        zeros = f"torch.zeros_like({text}[{lead}:1])"
        yield place.to(5, f"torch.cat([{zeros}, {text}[{lead}:-1]], {at})")
        yield place.to(5, f"torch.cat([{text}[{lead}1:], {zeros}], {at})")
