"""`ReplayedFunction`: a lambda of a recorded call, with a name that other processes find."""

from collections.abc import Callable
from typing import Any

from pullback.conformance._recording import load_call
from pullback.conformance._shims import shim

__all__ = ["ReplayedFunction", "name_functions", "replayed"]

_SOURCE = """\
from pullback.conformance._replayed import replayed

_made = {{}}


def __getattr__(name):
    if not name.startswith("argument_"):
        raise AttributeError(name)
    if name not in _made:
        _made[name] = replayed({path!r}, {function!r}, {number!r}, name, __name__)
    return _made[name]
"""


class ReplayedFunction:
    """A lambda or inner function that was remade from a recording.

    Its ``repr`` is a literal, `placeholder`: a repro writes arguments down by their ``repr``, and
    the command then puts `load_call` in that place.

    Arguments:
        function: what is called.
        position: the place among the positional arguments of its call.
        module: the shim that holds it.
    """

    def __init__(self, function: Callable[..., Any], position: int, module: str) -> None:
        self.function = function
        self.position = position
        self.__module__ = module
        self.__qualname__ = f"argument_{position}"

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self.function(*args, **keywords)

    def __repr__(self) -> str:
        return repr(self.placeholder(self.position))

    @staticmethod
    def placeholder(position: int) -> str:
        """The text that stands for the argument at ``position``.

        Example:
            >>> ReplayedFunction.placeholder(3)
            'recorded argument 3'
        """
        return f"recorded argument {position}"


def name_functions(args: tuple[Any, ...], path: str, function: str, number: int) -> tuple[Any, ...]:
    """Replace the lambdas and inner functions among ``args`` by ones that can be found by name.

    Arguments:
        args: the arguments of a recorded call.
        path: the file of the recording.
        function: the name of the recorded Function.
        number: which of its calls.

    Returns:
        The arguments, with the same tensors.
    """
    if not any(_is_inner(value) for value in args):
        return args
    module = shim(_SOURCE.format(path=path, function=function, number=number))
    return tuple(
        getattr(module, f"argument_{position}") if _is_inner(value) else value
        for position, value in enumerate(args)
    )


def replayed(path: str, function: str, number: int, name: str, module: str) -> ReplayedFunction:
    """Load one recorded argument; called by the shim that names it."""
    position = int(name.removeprefix("argument_"))
    return ReplayedFunction(load_call(path, function, number)[1][position], position, module)


def _is_inner(value: Any) -> bool:
    return "<" in getattr(value, "__qualname__", "")
