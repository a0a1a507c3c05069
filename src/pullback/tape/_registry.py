"""`Space`: what the engine needs of a type of values; and which space a value belongs to."""

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, Never

from pullback.errors import ArgumentTypeError, UnsupportedError
from pullback.internal._arguments import checked
from pullback.internal._text import shown

__all__ = ["OPERATIONS", "Space", "register_space", "space_of"]

# The operations that a Variable has and does not know: filled by the modules that define them.
OPERATIONS: dict[str, Callable[..., Any]] = {}


class Space:
    """The values of one kind and structure, and the gradients that belong to them.

    A gradient is always a Variable; what its data is, the space says. Subclass this and
    `register_space` to put a type of your own on the tape. Two values are of the same space if
    their spaces are equal.

    Attributes:
        name: what messages call it.
        textual: whether a gradient holds notes, which are to say where they come from.
        differentiable: whether a gradient can flow to such a value.
        settled: the type of data that a gradient holds as it is: it need not be conformed.
        plain: whether the data is small and immutable, so that graphs may keep it for display.

    Example:
        >>> space_of(2.0).name, space_of("text").name
        ('number', 'text')
    """

    name = "value"
    settled: type | None = None
    textual = False
    differentiable = True
    plain = False

    def zero(self) -> Any:
        """The gradient that says nothing."""
        self._refuse("zero")

    def total(self, gradients: Sequence[Any]) -> Any:
        """The sum of gradients that `conform` gave, in their order."""
        self._refuse("add")

    def conform(self, gradient: Any, complain: Callable[[str], Exception]) -> Any:
        """A gradient as this space has it.

        Arguments:
            gradient: what a rule returned or a user gave.
            complain: makes the error, given what is wrong.
        """
        self._refuse("take a gradient")

    def accumulate(self, before: Any, gradient: Any) -> Any:
        """The ``.grad`` of a Variable after one more gradient, which nobody else can change."""
        return self.own(gradient) if before is None else self.total([before, gradient])

    def own(self, gradient: Any) -> Any:
        """The same gradient, which nobody else can change."""
        twin = OPERATIONS["own"](gradient)
        twin._data = self.copied(twin._data)
        return twin

    def copied(self, data: Any) -> Any:
        """The data of a gradient as it is, or a copy where it can be changed in place."""
        return data

    def empty(self) -> Any:
        """The ``.grad`` of a Variable before any gradient."""
        return None

    def seed(self) -> Any:
        """The gradient that `backward` starts from when none is given, or None."""
        return None

    def inner(self, gradient: Any, tangent: Any) -> Any:
        """The inner product of a gradient and a tangent, a number Variable."""
        self._refuse("form the inner product")

    def stamp(self, data: Any) -> Any:
        """What changes when the data is changed in place, or None if it cannot be."""
        return None

    def _refuse(self, verb: str) -> Never:
        raise UnsupportedError(
            f"The space {self.name!r} cannot {verb}.",
            mend="Give its Space class that method, or a rule of its own to the Function.",
        )

    def __repr__(self) -> str:
        return self.name


_SPACES: dict[type, Callable[[Any], Space] | Space] = {}


@checked
def register_space(kind: type, factory: Callable[[Any], Space] | Space) -> None:
    """Say which space the values of a type belong to, and those of its subclasses.

    Arguments:
        kind: the type of the data.
        factory: gives the `Space` of one value; or the one of all of them.

    Raises:
        ArgumentTypeError: the kind is no type or the factory cannot be called.

    Example:
        >>> class Celsius(float): ...
        >>> register_space(Celsius, space_of(0.0))
        >>> space_of(Celsius(3.0)).name
        'number'
    """
    _SPACES[kind] = factory


def space_of(data: Any) -> Space:
    """The space that a value belongs to.

    Raises:
        ArgumentTypeError: the type is not registered, or a list or mapping contains itself.
    """
    kind = type(data)
    factory = _SPACES.get(kind) or _find(kind)
    if isinstance(factory, Space):
        return factory
    if factory is None:
        raise ArgumentTypeError(
            f"The tape does not know values of the type {kind.__qualname__}.",
            given=shown(data),
            expected="a number, a text, a list, tuple or dict of them, a torch tensor, or a "
            "registered type",
            mend="pullback.tape.register_space(the_type, factory)",
        )
    try:
        return factory(data)
    except RecursionError:
        raise ArgumentTypeError(
            "A list or mapping on the tape is nested without end.",
            given=kind.__qualname__,
            mend="Take the reference to itself out of it.",
        ) from None


def _find(kind: type) -> Callable[[Any], Space] | Space | None:
    for base in kind.__mro__:
        if base in _SPACES:
            return _SPACES[base]
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(kind, torch.Tensor):
        # Imported by name when the first tensor is seen: the tape itself never imports torch.
        importlib.import_module("pullback.tape.tensor")
        return _SPACES[torch.Tensor]
    return None
