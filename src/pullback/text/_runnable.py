"""`invoke`: a LangChain or LangGraph runnable, or whatever has its method, as an operation."""

from collections.abc import Mapping
from typing import Any

from pullback.errors import ArgumentTypeError
from pullback.tape import Variable
from pullback.text._python import map_python

__all__ = ["invoke"]


def invoke(
    runnable: Any,
    value: Variable | str | Mapping[str, Any],
    *,
    purpose: str | Variable = "",
    role: str = "",
    critic: Any = None,
) -> Variable:
    """A runnable as an operation: what it gives, and feedback to what it was given.

    Nothing of LangChain is needed here but the runnable's own method ``ainvoke`` or ``invoke``.

    Arguments:
        runnable: a LangChain or LangGraph runnable, or any object with one of these methods.
        value: its input, or a dict of Variables and plain values for an input of several fields.
        purpose: what it is for, as of `map_python`.
        role: what its result is.
        critic: as of `map_python`.

    Returns:
        Its output: a text, the content of a message, or plain data.

    Raises:
        ArgumentTypeError: it has no such method, or gives what the tape does not know.
        StepError: it raised.

    Example:
        >>> class Shout:
        ...     def invoke(self, text):
        ...         return text.upper()
        >>> word = Variable("hello", role="word", requires_grad=True)
        >>> out = invoke(Shout(), word, purpose="shout")
        >>> out.backward(Variable("too loud"))
        >>> out.data, word.grad[0].data
        ('HELLO', 'too loud')
    """
    method = getattr(runnable, "ainvoke", None) or getattr(runnable, "invoke", None)
    if not callable(method):
        raise ArgumentTypeError("A runnable has a method invoke.", given=type(runnable).__name__)
    named = isinstance(value, Mapping)
    fields: dict[str, Any] = dict(value) if isinstance(value, Mapping) else {"": value}
    variables = {k: v for k, v in fields.items() if isinstance(v, Variable | str)}
    rest = {k: v for k, v in fields.items() if k not in variables}

    def given(data: tuple[Any, ...]) -> Any:
        told = dict(zip(variables, data, strict=True))
        return {**told, **rest} if named else told[""]

    async def awaited(*data: Any) -> Any:
        return _plain(await method(given(data)))

    def called(*data: Any) -> Any:
        return _plain(method(given(data)))

    function = awaited if hasattr(runnable, "ainvoke") else called
    return map_python(
        function, *variables.values(), purpose=purpose or type(runnable).__name__, role=role,
        critic=critic,
    )  # fmt: skip


def _plain(value: Any) -> Any:
    """The content of a message, also inside the lists and dicts of a graph's state."""
    if isinstance(value, Mapping):
        return {str(key): _plain(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(below) for below in value]
    content = getattr(value, "content", value)
    return content if content is value else _plain(content)
