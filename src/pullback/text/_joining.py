"""Operations: what all have in common, and those that put texts together and take them apart."""

import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal._arguments import checked
from pullback.tape import Feedback, Function, Variable, space_of
from pullback.tape._layout import batch_in
from pullback.tape._variable import roles_of
from pullback.text._failure import Failure, failure_in
from pullback.text._prompts import Template, fill, shorten

__all__ = ["concat", "format", "join", "select", "split", "sum"]


class Operation(Function):
    """A Function of a specification and Variables: ``forward(spec, *variables)``.

    The specification holds what is no Variable, so that rules may read it at any order. A
    subclass writes forward and backward. There is no forward mode of texts: it is refused by name.

    Where an input is a `Failure`, so is the output: nobody is asked, and what is said of it goes
    back to that input alone. One that has ``takes_failures`` is run all the same.
    """

    gradient = "nonlinear"
    takes_failures = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "forward" in vars(cls) and not cls.takes_failures:
            cls.forward = staticmethod(_unless(_handed_on, cls.forward))
            cls.backward = staticmethod(_unless(_sent_back, cls.backward))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the specification, the inputs and the outputs."""
        spec, *variables = inputs
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.spec = spec
        ctx.save_for_backward(*variables, *outputs)


def _handed_on(spec: Any, *variables: Variable) -> Variable | None:
    """In place of forward: the first failure of the inputs; None where there is none."""
    found = failure_in([variable.data for variable in variables])
    return None if found is None else Variable(found, "failure")


def _sent_back(ctx: Any, *feedback: Any) -> tuple[Any, ...] | None:
    """In place of backward, of what was handed on: what was said, to the failed inputs alone."""
    wanted = ctx.needs_input_grad[1:]
    failed = [failure_in(each._data) is not None for each in ctx.saved_variables[: len(wanted)]]
    if not any(failed):
        return None
    told = zip(failed, wanted, strict=True)
    return (None, *[feedback[0] if each and need else None for each, need in told])


def _unless(first: Callable[..., Any], rule: Callable[..., Any]) -> Any:
    """The rule, where `first` has nothing to give in its place."""

    @functools.wraps(rule)
    def called(*args: Any) -> Any:
        found = first(*args)
        return rule(*args) if found is None else found

    @functools.wraps(rule)
    async def awaited(*args: Any) -> Any:
        found = first(*args)
        return await rule(*args) if found is None else found

    return awaited if inspect.iscoroutinefunction(rule) else called


NOTE = 2000  # characters of a note that an operation here writes, at most


def _made(make: Callable[..., Variable], *values: Variable) -> Variable:
    return make(*values)


def _told(ctx: Any, feedback: Any) -> Any:
    return (None, *[feedback if need else None for need in ctx.needs_input_grad[1:]])


class Join(Operation):
    """Texts made into one by a plain function; what is said of it is said to each, as it is."""

    forward, backward = staticmethod(_made), staticmethod(_told)


class Format(Join):
    """The same, of a template and the values of its fields."""


class Quote(Operation):
    """The same, of what may have failed, for it is only spoken of."""

    takes_failures = True
    forward, backward = staticmethod(_made), staticmethod(_told)


class Split(Operation):
    """The parts of a text; what is said of a part is said to the text, with the part's number."""

    @staticmethod
    def forward(cut: Callable[[str], list[str]], text: Variable) -> tuple[Variable, ...]:
        parts = cut(_text(text))
        if not parts:
            raise ArgumentError("A text without a part was split.", given=repr(text.data))
        return tuple(
            Variable(part, f"split part {number} of {text.role}")
            for number, part in enumerate(parts)
        )

    @staticmethod
    def backward(ctx: Any, *feedback: Any) -> Any:
        def located(number: int, said: Variable) -> Variable:  # cut, or it grew along a chain
            return Variable(shorten(f"On part {number} of the text: {said.data}", NOTE), said.role)

        return None, [
            Join.apply(partial(located, number), said)
            for number, said in enumerate(feedback)
            if said
        ]


@checked
def concat(*texts: Variable | str) -> Variable:
    """The texts, one after another.

    Raises:
        ArgumentError: none is given.
        ArgumentTypeError: one is no text.

    Example:
        >>> concat(Variable("abc", role="a"), Variable("def", role="b"))
        Variable('abcdef', role='a and b')
    """
    return _joined(texts)


@checked
def join(separator: str, texts: Sequence[Variable | str]) -> Variable:
    """The texts with a separator between them.

    Raises:
        ArgumentError: none is given.
        ArgumentTypeError: one, or the separator, is no text.

    Example:
        >>> join(", ", [Variable("abc"), "def"]).data
        'abc, def'
    """
    return _joined(texts, separator)


@checked
def sum(values: Sequence[Variable | str | float]) -> Variable:
    """The sum of numbers; of texts, each in ``<ITEM>`` tags, one after another.

    Raises:
        ArgumentError: there are none.
        ArgumentTypeError: some are texts and some are numbers, or one is neither.

    Example:
        >>> sum([Variable("abc"), Variable("def")]).data
        '<ITEM>abc</ITEM><ITEM>def</ITEM>'
        >>> sum([Variable(1.0), Variable(2.5)]).data
        3.5
    """
    variables = [as_variable(value) for value in values]
    batch = batch_in(variables)
    if batch is not None:
        return batch.lift(sum, (variables,))
    if variables and all(_is_number(value) for value in variables):
        return functools.reduce(operator.add, variables)
    return _joined(variables, tags=("<ITEM>", "</ITEM>"))


@checked
def format(template: Variable | str, /, *, role: str = "", **values: Any) -> Variable:
    """A template with its fields filled in: ``{name}`` stands for a value, ``{{`` for a brace.

    What is said of the result is said to the template and to each value, once.

    Raises:
        ArgumentError: a field has no value, a value no field, or the template is malformed.
        ArgumentTypeError: a value is neither a text nor a number, or the first a plain Variable.

    Example:
        >>> prompt = Template("Translate to {language}.", role="prompt", requires_grad=True)
        >>> format(prompt, language="Italian").data
        'Translate to Italian.'
    """
    if not isinstance(template, str | Template):
        raise ArgumentTypeError(
            "Only a template has fields.", given=repr(template)[:80],
            expected="a str or a Template", mend="Make it a Template, or a TemplateParameter.",
        )  # fmt: skip
    variables = [as_variable(value) for value in values.values()]

    def filled(template: Variable, *given: Variable) -> Variable:
        texts = dict(zip(values, map(written, given), strict=True))
        return Variable(fill(_text(template), texts), role or template.role)

    return Format.apply(filled, as_variable(template), *variables)


@checked
def split(text: Variable | str, separator: str | None = None, maxsplit: int = -1) -> list[Variable]:
    """The parts of a text, as `str.split` has them.

    Raises:
        ArgumentError: the separator is empty, or the text has no part.

    Example:
        >>> [part.role for part in split(Variable("a b", role="letters"))]
        ['split part 0 of letters', 'split part 1 of letters']
    """
    if separator == "":
        raise ArgumentError("A text was split at an empty separator.")
    parts = Split.apply(lambda whole: whole.split(separator, maxsplit), as_variable(text))
    return list(parts) if isinstance(parts, tuple) else [parts]


@checked
def select(value: Variable, *path: str | int) -> Variable:
    """An entry of a list or mapping, such as a field of a structured answer.

    Raises:
        ArgumentError: there is no such entry.

    Example:
        >>> select(Variable({"label": "spam", "why": ["links"]}), "why", 0).data
        'links'
    """
    if value.batched:
        return value.lift(select, (value, *path))  # type: ignore[missing-attribute]
    for key in path:
        if isinstance(value._data, Failure):  # a structure that failed has no entries
            return value
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            raise ArgumentError(
                "There is no such entry.", given=repr(key), expected=f"an entry of {value!r:.80}"
            ) from None
    return value


def as_variable(value: Any) -> Variable:
    """The Variable itself, or one of a plain text or number."""
    if isinstance(value, Feedback):  # of notes with a history: one that has theirs
        return space_of("").total((value,))
    return value if isinstance(value, Variable) else Variable(value)


def _joined(
    texts: Sequence[Variable | str], between: str = "", tags: tuple[str, str] = ("", "")
) -> Variable:
    variables = [as_variable(text) for text in texts]
    if not variables:
        raise ArgumentError("There is no text to put together.", expected="one or more")

    def joined(*given: Variable) -> Variable:
        pieces = [f"{tags[0]}{_text(each)}{tags[1]}" for each in given]
        return Variable(between.join(pieces), roles_of(given))

    return Join.apply(joined, *variables)


def _text(value: Variable) -> str:
    if not isinstance(value.data, str):
        raise ArgumentTypeError(
            "A text was expected.",
            given=repr(value)[:80],
            mend="Make it one: map_python(str, value). A batch of them runs inside tape.vmap.",
        )
    return value.data


def written(value: Variable) -> str:
    """A text, or a number that requires no gradient, as a text."""
    if not _is_number(value):
        return _text(value)
    if value.requires_grad:
        raise ArgumentTypeError(
            "A number that requires a gradient was put into a text, and feedback is no number.",
            given=repr(value), mend="Pass its detach().",
        )  # fmt: skip
    return str(value.data)


def spoken(feedback: Variable) -> Variable:
    """Feedback on a structured value as feedback on a text: each note says its field."""
    if hasattr(feedback, "notes"):
        return feedback
    told: list[Variable] = []
    for path, note in _leaves(feedback, ()):
        named = ".".join(map(str, path))
        told.append(format("field {named}: {note}", role="feedback", named=named, note=note))
    return join("\n", told) if told else Variable("")


def _leaves(feedback: Variable, path: tuple[Any, ...]) -> list[tuple[tuple[Any, ...], Variable]]:
    data = feedback._data
    if isinstance(data, dict | list | tuple) and not hasattr(feedback, "notes"):
        keys = list(data) if isinstance(data, dict) else range(len(data))
        return [leaf for key in keys for leaf in _leaves(feedback[key], (*path, key))]
    if isinstance(data, int | float) and data:
        return [(path, Variable(f"1 more of it changes what is judged by {data:g}"))]
    return [(path, feedback)] if hasattr(feedback, "notes") and feedback else []


def _is_number(value: Variable) -> bool:
    data = value.data
    return isinstance(data, int | float) and not isinstance(data, bool)
