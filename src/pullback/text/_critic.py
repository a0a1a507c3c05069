"""Critics: who says what the inputs of an operation should change; and `blame`."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from pullback.errors import ReplyError
from pullback.internal._arguments import Count, Natural, checked
from pullback.internal._setting import setting
from pullback.tape import Feedback, Variable, is_grad_enabled
from pullback.text._failure import attempted
from pullback.text._joining import Operation, as_variable
from pullback.text._module import Parameter
from pullback.text._prompts import (
    ask,
    between,
    fence_of,
    fill_prompt,
    listed,
    pattern_of,
    prompt,
    shorten,
)
from pullback.text.lm import LM, Request

__all__ = [
    "Blame",
    "Critic",
    "ModelCritic",
    "Relay",
    "Review",
    "Rule",
    "RuleCritic",
    "blame",
    "use_critic",
]


@dataclass(frozen=True, eq=False)
class Review:
    """One operation that is to be criticised.

    Arguments:
        purpose: what the operation is for, in words.
        inputs: its input Variables.
        output: the Variable that it gave.
        instructions: for each input, whether it tells the operation what to do; the others are
            what it works on.
        wanted: for each input, whether its feedback is asked for.
        feedback: what was said of the output.
        written: given its inputs, the operation as one text, for a model to read; its purpose
            and its inputs if None.
    """

    purpose: str
    inputs: tuple[Variable, ...]
    output: Variable
    instructions: tuple[bool, ...]
    wanted: tuple[bool, ...]
    feedback: Variable
    written: Callable[[Sequence[Variable]], str] | None = None


@runtime_checkable
class Critic(Protocol):
    """Says what each input of an operation should change.

    ``await critic.review(review)`` gives one answer an input: text Variables, `Feedback`, or None
    where there is nothing to say. What is to be criticised itself must be made by operations.
    """

    async def review(self, review: Review) -> Sequence[Any]:
        """One answer an input."""
        ...


async def criticised(
    ctx: Any,
    critic: Critic,
    purpose: str,
    telling: Sequence[bool],
    said: Variable,
    *,
    written: Callable[[Sequence[Variable]], str] | None = None,
) -> Sequence[Any]:
    """What a critic says to each input of the operation of a context: nothing where it fails.

    Nobody is asked where nothing was said, as of an item of a batch that succeeded. An input
    instructs the operation where it is marked so, and where it is a `Parameter`.
    """
    *inputs, output = ctx.saved_variables
    told: Sequence[Any] = [None] * len(inputs)
    if said or not isinstance(said._data, str):
        pairs = zip(telling, inputs, strict=True)
        instructions = tuple(each or isinstance(value, Parameter) for each, value in pairs)
        wanted = ctx.needs_input_grad[1:]
        review = Review(purpose, tuple(inputs), output, instructions, wanted, said, written)
        # What asks no model is no answer that could have failed.
        with nullcontext() if isinstance(critic, Relay | RuleCritic) else attempted():
            told = await critic.review(review)
    return told


class Relay:
    """Tells every input what was said of the output, as it is."""

    async def review(self, review: Review) -> Sequence[Any]:
        """The feedback, to each."""
        return [review.feedback if wanted else None for wanted in review.wanted]


@checked
@dataclass(frozen=True)
class Rule:
    """What must hold of an operation, whatever its input.

    Arguments:
        check: given the data of what the operation worked on (one, or a list of several) and of
            its output, says what is wrong, or None (or "") if nothing is.
        purpose: a pattern that the purpose of the operations it speaks of contains; all if empty.

    Example:
        >>> rule = Rule(lambda text, out: None if out.isupper() else "not upper case", "upper")
        >>> rule.check("a", "a")
        'not upper case'
    """

    check: Callable[[Any, Any], str | None]
    purpose: str = ""

    def __post_init__(self) -> None:
        pattern_of(self.purpose)

    def applies(self, purpose: str) -> bool:
        """Whether the rule speaks of operations with this purpose."""
        return re.search(self.purpose, purpose, re.IGNORECASE) is not None


@checked
class RuleCritic:
    """Criticises by rules, without a model: blames the operation that breaks one.

    An operation whose rules all hold did as it should with what it was given, so what was said is
    passed on to that. One that breaks a rule is told so where its instructions are, and what it
    worked on is told nothing. Where no rule speaks of an operation, all its inputs are told what
    was said.

    Arguments:
        rules: what must hold.

    Example:
        >>> critic = RuleCritic([Rule(lambda text, out: None if out else "empty", "summary")])
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)

    async def review(self, review: Review) -> Sequence[Any]:
        """The complaints to the instructions, or the feedback to the rest."""
        rules = [rule for rule in self.rules if rule.applies(review.purpose)]
        if not rules:
            return await Relay().review(review)
        worked_on = [
            value.data
            for value, instructs in zip(review.inputs, review.instructions, strict=True)
            if not instructs
        ]
        given = worked_on[0] if len(worked_on) == 1 else worked_on
        complaints = [rule.check(given, review.output.data) for rule in rules]
        found = [complaint for complaint in complaints if complaint]
        told = [
            Variable(complaint, f"feedback to {review.purpose or 'an operation'}")
            for complaint in found
        ]
        return [
            None if not wanted or instructs != bool(found)
            else Feedback(told) if found else review.feedback
            for wanted, instructs in zip(review.wanted, review.instructions, strict=True)
        ]  # fmt: skip


_critic: ContextVar[Any] = ContextVar("pullback.text.critic", default=None)


@checked
def use_critic(critic: Critic) -> AbstractContextManager[Critic]:
    """Have the operations that are applied inside criticised by this critic.

    Example:
        >>> with use_critic(RuleCritic([])):
        ...     pass
    """
    return setting(_critic, critic)


def current_critic() -> Any:
    """The critic of operations that are applied here, or None."""
    return _critic.get()


@checked
class ModelCritic:
    """Asks a language model what the texts of a call should change.

    It is one more call for each call that is criticised, whatever the number of texts; it is an
    operation itself, so that under ``create_graph`` the critique can be criticised: what is said
    of it is said to the texts that it speaks of and to what it was told.

    Arguments:
        lm: the model.
        retries: how many more times to ask where the answer cannot be read.
        limit: how many characters of feedback are sent at most.
        options: the model's own.

    Raises:
        ReplyError: when asked: no answer could be read.
    """

    def __init__(
        self, lm: LM, *, retries: Natural = 2, limit: Count = 8000, **options: Any
    ) -> None:
        Request.of("", **options)  # refuses what is no option before anything is paid for
        self.lm, self.retries, self.limit, self.options = lm, retries, limit, options

    async def review(self, review: Review) -> list[Any]:
        """One answer an input of the operation."""

        def named(inputs: Sequence[Variable]) -> str:
            shown = [f"{value.role or 'input'}: {value}" for value in inputs]
            return "\n".join([review.purpose, *shown])

        chosen = tuple(number for number, wanted in enumerate(review.wanted) if wanted)
        answers: list[Any] = [None] * len(review.wanted)
        if chosen:
            spec = self, chosen, review.written or named
            # Where nothing is recorded forward alone, which costs a tenth.
            criticise = Criticise.aapply if is_grad_enabled() else Criticise.forward
            said = as_variable(review.feedback)
            told = await criticise(spec, review.output, said, *review.inputs)
            for number, note in zip(chosen, told, strict=True):
                answers[number] = note if len(note) else None
        return answers


class Criticise(Operation):
    """What the chosen inputs should change; the critic, and how all of them are shown."""

    takes_failures = True

    @staticmethod
    async def forward(
        spec: tuple[Any, ...], output: Variable, said: Variable, *inputs: Variable
    ) -> tuple[Variable, ...]:
        critic, chosen, written = spec
        parts = [inputs[number] for number in chosen]
        data = {"call": written(inputs), "answer": str(output), "parts": _numbered(parts),
                "said": listed(_sourced(said), critic.limit)}  # fmt: skip
        messages = fill_prompt(prompt("feedback"), **data)
        read = lambda answer: read_feedback(answer, len(parts), data.values())  # noqa: E731
        told = await ask(critic.lm, messages, read, critic.retries, critic.options)
        return tuple(
            Variable(text, f"feedback to {part.role or 'an input'}")
            for text, part in zip(told, parts, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *feedback: Any) -> Any:
        _, _, need_said, *needed = ctx.needs_input_grad
        told: list[Any] = [None] * len(needed)
        for number, each in zip(ctx.spec[1], feedback, strict=True):
            told[number] = each if needed[number] else None
        return (None, None, [each for each in feedback if each] if need_said else None, *told)


def _sourced(feedback: Variable) -> Iterator[str]:
    """Each note with where it comes from."""
    for note in getattr(feedback, "notes", (feedback,)):
        source = f"[on {note.origin.role}] " if note.origin and note.origin.role else ""
        yield f"{source}{note._data}"  # the history is that of the feedback


def _numbered(parts: Sequence[Variable]) -> str:
    """The texts that feedback is asked for, each with its number."""
    texts = [str(part.data) for part in parts]
    fence = fence_of({f"{number}": text for number, text in enumerate(texts)})
    named = [part.role.replace('"', "'") for part in parts]
    return "\n".join(
        f'<PART id="{number}" role="{role}" {fence}>\n{text}\n</PART {fence}>'
        for number, (role, text) in enumerate(zip(named, texts, strict=True))
    )


def read_feedback(answer: str, count: int, data: Iterable[str] = ()) -> list[str]:
    """What a critic's answer says to each of so many parts, each of which it must speak of once.

    What it quotes of the data it has not said.
    """
    found: dict[str, str] = {}
    for match, text in between(answer, '<FEEDBACK id="([^"]*)">', "</FEEDBACK>", data):
        number = match[1]
        if number in found:
            raise ReplyError(
                "The critic speaks of a part twice.", given=f"id={number!r}", expected="once each"
            )
        found[number] = text.strip()
    expected = [str(number) for number in range(count)]
    if sorted(found) != sorted(expected):
        raise ReplyError(
            "The critic does not speak of just the parts that it was asked about.",
            given=f"{', '.join(found) or 'none'} in {shorten(repr(answer), 200)}",
            expected=f'<FEEDBACK id="...">...</FEEDBACK> for each id of {", ".join(expected)}',
        )
    return [found[number] for number in expected]


@dataclass(frozen=True)
class Blame:
    """What was said of one part.

    Arguments:
        parameter: the part.
        share: its share of all notes, from 0 to 1.
        notes: what was said, each a text Variable with its origin.
    """

    parameter: Variable
    share: float
    notes: tuple[Variable, ...]

    def __str__(self) -> str:
        said = "; ".join(
            f"{note.data} (by {note.origin.function})" if note.origin else str(note.data)
            for note in self.notes
        )
        return f"{self.share:.0%} {self.parameter.role or 'a part'}: {said}"


@checked
def blame(parameters: Iterable[Variable]) -> list[Blame]:
    """The parts that feedback has reached, those that it speaks of most first.

    Arguments:
        parameters: text Variables, after backward.

    Example:
        >>> from pullback.text import Parameter
        >>> first, second = Parameter("x", role="first step"), Parameter("y", role="second step")
        >>> second.grad = [Variable("This is not upper case.")]
        >>> [str(each) for each in blame([first, second])]
        ['100% second step: This is not upper case.']
    """
    told = [(each, tuple(each.grad or ())) for each in parameters]
    total = sum(len(notes) for _, notes in told)
    found = [Blame(each, len(notes) / total, notes) for each, notes in told if notes]
    return sorted(found, key=lambda each: -each.share)
