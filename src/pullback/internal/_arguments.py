"""What a callable takes is said once, by its annotations; whatever else it is given is refused."""

import contextlib
import functools
import inspect
import math
import numbers
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, Sized
from typing import Annotated, Any, NamedTuple, NoReturn, TypeVar

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal._secrets import names_secret
from pullback.internal._text import shown

__all__ = [
    "Amount",
    "Count",
    "Natural",
    "Positive",
    "Seconds",
    "Within",
    "check_counts",
    "checked",
    "is_whole",
    "reading",
]

T = TypeVar("T")


class Within(NamedTuple):
    """Which numbers an annotation takes: the words for them, and a test."""

    words: str
    holds: Callable[[Any], bool]

    def __repr__(self) -> str:
        return self.words


Count = Annotated[int, Within("positive (one or more)", lambda number: number >= 1)]
Natural = Annotated[int, Within("none or more", lambda number: number >= 0)]
Amount = Annotated[float, Within("not negative, and finite", lambda n: 0 <= n < math.inf)]
Positive = Annotated[float, Within("above 0", lambda number: number > 0)]
Seconds = Annotated[float, Within("not negative", lambda number: number >= 0)]


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number; True and False are none."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_counts(least: int = 1, /, **given: Any) -> None:
    """Refuse what is no whole number, or one below the least: 1, or 0.

    Raises:
        ArgumentError: it names the first such.
    """
    for name, value in given.items():
        if not is_whole(value) or int(value) < least:
            raise ArgumentError(
                f"{name} is no {'positive ' * least}whole number.", given=f"{name}={value!r:.60}",
                expected=f"{'one' if least else 'none'} or more",
            )  # fmt: skip


@contextlib.contextmanager
def reading(what: str, given: Any, expected: str | None = None) -> Iterator[None]:
    """Refuse what is read inside, where it is not what was once written.

    Raises:
        ArgumentError: it says what it is not, and why.
    """
    try:
        yield
    except (
        OSError, LookupError, TypeError, ValueError, AttributeError, RecursionError, OverflowError,
    ) as error:  # fmt: skip
        said = f"{shown(given, 200)} ({type(error).__name__}: {error})"
        raise ArgumentError(f"This is no {what}.", given=said, expected=expected) from None


def checked(given: T) -> T:
    """Refuse, before anything is done, arguments that are not what the annotations say.

    A number is no truth value and is not NaN, a text is no list, a class is none of its instances.
    Of a list the entries are looked at, too; of what can be gone through only once they are not.
    ``Any`` takes anything. Of a class the constructor and the public methods are guarded so.

    Raises:
        ArgumentTypeError: when it is called: it names the argument.

    Example:
        >>> @checked
        ... def half(number: float) -> float:
        ...     return number / 2
        >>> half("3")
        Traceback (most recent call last):
        pullback.errors.ArgumentTypeError: half cannot use what it was given as number.
          given:    number='3'
          expected: a number
    """
    if not isinstance(given, type):
        return _checked(given)  # type: ignore[bad-argument-type]
    for name, value in list(vars(given).items()):
        function = getattr(value, "__func__", value)
        if not inspect.isfunction(function) or (name.startswith("_") and name != "__init__"):
            continue
        made = _checked(function)
        setattr(given, name, made if function is value else type(value)(made))
    return given


def _checked(function: Any) -> Any:
    check = _check_of(function)
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            check(args, kwargs)
            return await function(*args, **kwargs)

        return awaited

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        check(args, kwargs)
        return function(*args, **kwargs)

    return called


def _check_of(function: Any) -> Callable[[tuple[Any, ...], dict[str, Any]], None]:
    """What refuses the arguments of a call that are not what the annotations name."""
    parameters = inspect.signature(function).parameters.values()
    placed = [p.name for p in parameters if p.kind < p.VAR_POSITIONAL]
    unnamed = sum(p.kind is p.POSITIONAL_ONLY for p in parameters)
    many = [p.name for p in parameters if p.kind is p.VAR_POSITIONAL]
    more = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), "")
    kinds: dict[str, _Kind] = {}

    def read() -> None:
        hints = typing.get_type_hints(function, include_extras=True)
        kinds.update((p.name, _kind(hints.get(p.name, Any))) for p in parameters)

    with contextlib.suppress(NameError):  # what an annotation names may be defined further below
        read()  # not at the first call, which Dynamo may trace

    def check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not kinds:
            read()
        for name in placed[unnamed : len(args)] if kwargs else ():
            if name in kwargs:
                raise ArgumentTypeError(
                    f"{_name_of(function)} was given {name} twice.",
                    given="by its place and by its name", expected="once",
                )  # fmt: skip
        names = placed[: len(args)] + many * (len(args) - len(placed))
        for name, value in [*zip(names, args, strict=True), *kwargs.items()]:
            kind = kinds.get(name) or kinds.get(more)
            if kind is None:
                raise ArgumentTypeError(
                    f"{_name_of(function)} has no argument of this name.", given=name,
                    expected=", ".join(each for each in kinds if each != "self") or "none",
                )  # fmt: skip
            if type(value) not in kind.known and not kind.takes(value):
                _refuse(function, name, value, kind)

    return check


def _name_of(function: Any) -> str:
    return function.__qualname__.removesuffix(".__init__")


def _refuse(function: Any, name: str, value: Any, kind: "_Kind") -> NoReturn:
    mend = None
    if inspect.isawaitable(value):
        mend = "Await it, and pass what it gives."
    elif isinstance(value, type):
        mend = f"Pass an instance of {value.__name__}, if it was meant."
    said = type(value).__name__ if names_secret(name) else shown(value)
    error = ArgumentError if kind.is_form(value) else ArgumentTypeError
    raise error(
        f"{_name_of(function)} cannot use what it was given as {name}.", given=f"{name}={said}",
        expected=kind.words, mend=mend,
    )  # fmt: skip


class _Kind(NamedTuple):
    """What one annotation takes."""

    takes: Callable[[Any], bool]
    words: str  # what it takes
    # types of which it takes every value: most calls look no further
    known: tuple[type, ...] = ()  # no set: Dynamo (2.7) looks into none
    # whether a value that it does not take is of the right type
    is_form: Callable[[Any], bool] = lambda value: False


def _is_list(value: Any) -> bool:
    """Whether it has entries by number: an array and a data set do, and are no Sequence."""
    named = isinstance(value, str | bytes | type | Mapping | Set)
    return hasattr(value, "__len__") and hasattr(value, "__getitem__") and not named


def _is_gone_through(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | type)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not (isinstance(value, bool) or math.isnan(value))


def _instance_of(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


_ANYTHING = _Kind(lambda value: True, "anything")
_KINDS: dict[Any, _Kind] = {
    Any: _ANYTHING,
    object: _ANYTHING,
    bool: _Kind(_instance_of(bool), "True or False", (bool,)),
    int: _Kind(is_whole, "a whole number", (int,)),
    float: _Kind(_is_number, "a number", (int,)),
    str: _Kind(_instance_of(str), "a text", (str,)),
    bytes: _Kind(_instance_of(bytes, bytearray, memoryview), "bytes"),
    type(None): _Kind(lambda value: value is None, "None", (type(None),)),
}
_FORMS: dict[Any, tuple[Callable[[Any], bool], str]] = {
    Callable: (callable, "a function"),
    type: (_instance_of(type), "a class"),
    Sequence: (_is_list, "a list"),
    Iterable: (_is_gone_through, "a list or another iterable"),
    Mapping: (_instance_of(Mapping), "a dict"),
    Sized: (lambda v: hasattr(v, "__len__") and not isinstance(v, type), "what has a length"),
    list: (_instance_of(list), "a list"),
    tuple: (_instance_of(list, tuple), "a tuple"),
    dict: (_instance_of(dict), "a dict"),
}


@functools.cache
def _kind(hint: Any) -> _Kind:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    whole = origin or hint
    if isinstance(hint, TypeVar):
        return _ANYTHING
    if hint in _KINDS:
        return _KINDS[hint]
    if origin in (typing.Union, types.UnionType):
        kinds = [_kind(each) for each in inner]
        words = " or ".join(kind.words for kind in kinds)
        known = tuple(one for kind in kinds for one in kind.known)
        return _Kind(
            lambda value: any(kind.takes(value) for kind in kinds), words, known,
            lambda value: any(kind.is_form(value) for kind in kinds),
        )  # fmt: skip
    if origin is Annotated:
        kind, within = _kind(inner[0]), inner[1]
        takes = lambda value: kind.takes(value) and within.holds(value)  # noqa: E731
        return _Kind(takes, f"{kind.words}, {within.words}", is_form=kind.takes)
    if origin is typing.Literal:
        return _Kind(
            lambda value: any(type(value) is type(each) and value == each for each in inner),
            " or ".join(map(repr, inner)),
        )
    if whole in _FORMS:
        return _container(whole, () if whole in (Callable, type) else inner)
    claim = re.split("[.,:;]", inspect.getdoc(whole) or "")[0]  # a docstring begins with what it is
    claim = claim and f": {claim[:1].lower()}{claim[1:]}"
    return _Kind(
        lambda value: isinstance(value, whole) and not isinstance(value, type),
        f"an instance of {whole.__name__}{claim}",
        (whole,),
    )


def _container(whole: Any, inner: tuple[Any, ...]) -> _Kind:
    has_form, words = _FORMS[whole]
    if inner and inner[-1] is Ellipsis:  # of any length
        whole, inner = list, inner[:1]
    if issubclass(whole, Mapping):
        inner = inner[1:]  # what a dict is looked up by is the business of who does
    kinds = [_kind(each) for each in inner]
    if all(kind is _ANYTHING for kind in kinds):
        plain = (list, tuple, dict, set)
        return _Kind(has_form, words, tuple(each for each in plain if has_form(each())))
    several = whole is tuple and len(kinds) > 1  # a kind for each place

    def takes(value: Any) -> bool:
        if not has_form(value):
            return False
        if several:
            pairs = zip(kinds, value, strict=False)
            return len(value) == len(kinds) and all(kind.takes(each) for kind, each in pairs)
        if isinstance(value, dict):
            return all(map(kinds[0].takes, value.values()))
        return not isinstance(value, list | tuple) or all(map(kinds[0].takes, value))

    entries = ", ".join(kind.words for kind in kinds)
    return _Kind(takes, f"{words} ({'of ' * (not several)}{entries})")
