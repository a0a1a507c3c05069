"""`map_python` and `invoke`: any Python function, or a runnable, as an operation."""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pullback.errors import ArgumentTypeError, ProgramError
from pullback.internal._arguments import checked
from pullback.tape import Variable, backward, space_of
from pullback.text._critic import Critic, Relay, criticised, current_critic
from pullback.text._joining import Operation, as_variable, spoken
from pullback.text.lm import scrub

__all__ = ["StepError", "invoke", "map_python"]


class StepError(ProgramError):
    """A Python step of a pipeline has failed; what it worked on can be told so.

    Arguments:
        what: which step failed.
        inputs: the Variables that it was given.
        feedback: what is said back to them.
    """

    def __init__(self, what: str, inputs: tuple[Variable, ...], feedback: str) -> None:
        self.inputs = inputs
        self.feedback = feedback
        super().__init__(
            what, given=feedback, mend="error.backward() tells the steps before it.",
        )  # fmt: skip

    def __reduce__(self) -> Any:
        """As an executor hands it to another process, where its inputs have no history."""
        return StepError, (self.what, tuple(each.detach() for each in self.inputs), self.feedback)

    def told(self) -> tuple[list[Variable], list[Variable]]:
        """The inputs of the step that can be told, and what is said to each."""
        told = [each for each in self.inputs if each.requires_grad and isinstance(each.data, str)]
        return told, [Variable(self.feedback, "failure")] * len(told)

    def backward(self) -> None:
        """Run back from the inputs of the step that failed, with its exception as feedback."""
        told, notes = self.told()
        if told:
            backward(told, notes)


@dataclass(frozen=True, eq=False)
class Step:
    """A function and how to speak of it; whether the first input says what it should do."""

    function: Callable[..., Any]
    purpose: str
    role: str
    critic: Any
    instructed: bool

    @contextlib.contextmanager
    def given(self, inputs: tuple[Variable, ...]) -> Iterator[list[Any]]:
        """The data that the function is given; what it raises inside is that of the step."""
        try:
            yield [value.data for value in inputs[self.instructed :]]
        except Exception as error:
            name = self.purpose or getattr(self.function, "__name__", "a step")
            said = scrub(f"{name} failed: {type(error).__name__}: {error}")  # it is sent and kept
            raise StepError(f"The Python step {name!r} failed.", inputs, said) from error

    def output(self, result: Any) -> Variable:
        """What the function gave, on the tape."""
        if isinstance(result, Variable):
            raise ArgumentTypeError(
                f"The Python step {self.purpose!r} gave a Variable.", given=repr(result)[:80],
                expected="plain data: it is given plain data, too",
            )  # fmt: skip
        return Variable(result, self.role or self.purpose)


class MapPython(Operation):
    """A plain function, run where it is applied."""

    @staticmethod
    def forward(spec: Step, *inputs: Variable) -> Variable:
        with spec.given(inputs) as given:
            result = spec.function(*given)
        return spec.output(result)

    @staticmethod
    async def backward(ctx: Any, feedback: Any) -> tuple[Any, ...]:
        spec: Step = ctx.spec
        *inputs, output = ctx.saved_variables
        telling = [spec.instructed and not n for n in range(len(inputs))]
        told = await criticised(ctx, spec.critic, spec.purpose, telling, feedback)
        # Feedback on a structure is passed on as it is, in words to what has another structure.
        passed_on = not hasattr(feedback, "notes") and isinstance(output.data, list | tuple | dict)
        kind = space_of(output.data)
        return (None, *[
            spoken(each)
            if passed_on and each is feedback and space_of(value.data) != kind else each
            for each, value in zip(told, inputs, strict=True)
        ])  # fmt: skip


class MapPythonAwaited(MapPython):
    """A coroutine function, run beside others."""

    @staticmethod
    async def forward(spec: Step, *inputs: Variable) -> Variable:  # type: ignore[bad-override]
        with spec.given(inputs) as given:
            result = await spec.function(*given)
        return spec.output(result)


@checked
def map_python(
    function: Callable[..., Any],
    *inputs: Any,
    purpose: str | Variable = "",
    role: str = "",
    critic: Critic | None = None,
) -> Variable:
    """Any Python function of plain data, as an operation on the tape.

    Arguments:
        function: given the data of the inputs, gives plain data; may be a coroutine function.
        inputs: what it works on.
        purpose: what it is for, in words; if it is a Variable that requires a gradient, it is
            told what the step should change.
        role: what its result is; the purpose if empty.
        critic: says what the inputs should change; that of `use_critic` if None, else what is
            said of the result is said to each input.

    Raises:
        StepError: the function raised; `StepError.backward` makes its exception feedback.

    Example:
        >>> answer = Variable("42", role="answer", requires_grad=True)
        >>> map_python(int, answer, purpose="read the number").data
        42
    """
    instructed = isinstance(purpose, Variable)
    said = str(purpose.data) if isinstance(purpose, Variable) else purpose
    spec = Step(function, said, role, critic or current_critic() or Relay(), instructed)
    awaited = inspect.iscoroutinefunction(function)
    operation = MapPythonAwaited if awaited else MapPython
    given = [as_variable(value) for value in inputs]
    return operation.apply(spec, *([purpose] if instructed else []), *given)


@checked
def invoke(
    runnable: Any,
    value: Variable | str | Mapping[str, Any],
    *,
    purpose: str | Variable = "",
    role: str = "",
    critic: Critic | None = None,
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
