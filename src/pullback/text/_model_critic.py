"""`ModelCritic`: a language model says what the texts of an operation should change."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pullback.errors import ArgumentTypeError, ReplyError
from pullback.tape import Variable
from pullback.text._critic import Review
from pullback.text._joining import heard
from pullback.text._operation import Operation
from pullback.text._prompts import prompt
from pullback.text._replies import ask, check_retries, fill_prompt, listed, shorten
from pullback.text._templates import fence_of
from pullback.text.lm import LM

__all__ = ["ModelCritic", "read_feedback"]

_PART = re.compile(r'<FEEDBACK id="([^"]*)">(.*?)</FEEDBACK>', re.DOTALL)


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

    def __init__(self, lm: LM, *, retries: int = 2, limit: int = 8000, **options: Any) -> None:
        if not isinstance(lm, LM):
            raise ArgumentTypeError("A critic asks a language model.", given=type(lm).__name__)
        check_retries(retries)
        self.lm, self.retries, self.limit, self.options = lm, retries, limit, options

    async def review(self, review: Review) -> list[Any]:
        """One answer an input of the operation."""

        def named(inputs: Sequence[Variable]) -> str:
            shown = [f"{value.role or 'input'}: {_shown(value)}" for value in inputs]
            return "\n".join([review.purpose, *shown])

        chosen = tuple(number for number, wanted in enumerate(review.wanted) if wanted)
        answers: list[Any] = [None] * len(review.wanted)
        if chosen:
            spec = Critique(self, chosen, review.written or named)
            told = await Criticise.run(spec, review.output, heard(review.feedback), *review.inputs)
            for number, note in zip(chosen, told, strict=True):
                answers[number] = note if len(note) else None
        return answers


@dataclass(frozen=True, eq=False)
class Critique:
    """Who criticises, which of the inputs, and how all of them are shown."""

    critic: ModelCritic
    chosen: tuple[int, ...]
    written: Callable[[Sequence[Variable]], str]


class Criticise(Operation):
    """What each of the chosen inputs should change."""

    takes_failures = True

    @staticmethod
    async def forward(
        spec: Critique, output: Variable, said: Variable, *inputs: Variable
    ) -> tuple[Variable, ...]:
        critic, parts = spec.critic, [inputs[number] for number in spec.chosen]
        messages = fill_prompt(
            prompt("feedback"), call=spec.written(inputs), answer=_shown(output),
            said=listed(_sourced(said), critic.limit), parts=_numbered(parts),
        )  # fmt: skip
        read = lambda answer: read_feedback(answer, len(parts))  # noqa: E731
        told = await ask(critic.lm, messages, read, critic.retries, **critic.options)
        return tuple(
            Variable(text, f"feedback to {part.role or 'an input'}")
            for text, part in zip(told, parts, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *feedback: Any) -> Any:
        spec: Critique = ctx.spec
        _, _, need_said, *needed = ctx.needs_input_grad
        told: list[Any] = [None] * len(needed)
        for number, each in zip(spec.chosen, feedback, strict=True):
            told[number] = each if needed[number] else None
        return (None, None, [each for each in feedback if each] if need_said else None, *told)


def _shown(value: Variable) -> str:
    return str(value.data) if isinstance(value.data, str) else repr(value.data)


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


def read_feedback(answer: str, count: int) -> list[str]:
    """What a critic's answer says to each part; empty where it says nothing.

    Arguments:
        answer: ``<FEEDBACK id="0">...</FEEDBACK>`` for each part, in any order.
        count: how many parts there are.

    Raises:
        ReplyError: a part is missing, there twice, or unknown.

    Example:
        >>> read_feedback('<FEEDBACK id="0">Be brief.</FEEDBACK>', 1)
        ['Be brief.']
    """
    found: dict[str, str] = {}
    for number, text in _PART.findall(answer):
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
