"""`Scripted`: answers by rule, in place of a model, and says so."""

import asyncio
import inspect
import re
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pullback.errors import ArgumentError, ArgumentTypeError, ModelError
from pullback.text.lm._completion import Chunk, Completion, Usage
from pullback.text.lm._lm import LM
from pullback.text.lm._request import Request
from pullback.text.prices import Price

__all__ = ["Scripted"]

NOTE = {"provider": "scripted", "note": "a script answered, not a language model"}


class Scripted(LM):
    """Answers by rule: no model, no network, no cost, and the same every time.

    Each answer's metadata says that it is no model's. Tokens are counted as words.

    Arguments:
        answers: a list: answered in turn; a mapping from a text or a compiled pattern to an
            answer: the first that the conversation's last message contains; or a function of the
            `Request`, plain or ``async``. An answer is a str, a `Completion`, an exception to
            raise, or (in a list or mapping) a function of the `Request`.
        model: its name.
        delay: seconds that each answer takes.

    Raises:
        ArgumentError: there is no answer at all, or the delay is negative.
        ModelError: when asked: no rule fits, or the list is used up.

    Example:
        >>> lm = Scripted({"capital of France": "Paris", re.compile("sum|add"): "4"})
        >>> lm("What is the capital of France?").text, lm("Please add 2 and 2.").text
        ('Paris', '4')
        >>> lm("2 + 2: the sum?").metadata["note"]
        'a script answered, not a language model'
    """

    def __init__(
        self,
        answers: Sequence[Any] | Mapping[Any, Any] | Callable[[Request], Any],
        *,
        model: str = "scripted",
        delay: float = 0.0,
    ) -> None:
        if isinstance(answers, str) or not (
            callable(answers) or isinstance(answers, Sequence | Mapping)
        ):
            raise ArgumentTypeError("A script is a list, a mapping or a function.",
                                    given=repr(answers)[:100])  # fmt: skip
        if not callable(answers) and not answers:
            raise ArgumentError("A script needs at least one answer.", given=repr(answers))
        if delay < 0:
            raise ArgumentError("The delay is negative.", given=f"{delay:g} s")
        self.model = model
        self.price = Price(0.0, 0.0)
        self._answers = answers
        self._delay = delay
        self._next = 0
        self._lock = threading.Lock()

    async def answer(self, request: Request) -> Completion:
        """Answer by the first rule that fits."""
        found = self._find(request)
        if self._delay:
            await asyncio.sleep(self._delay)
        if callable(found) and not isinstance(found, type):
            found = found(request)
            if inspect.isawaitable(found):
                found = await found
        if isinstance(found, BaseException):
            raise found
        return self._completion(found, request)

    async def stream_answer(self, request: Request) -> AsyncIterator[Chunk]:
        """Answer word by word."""
        completion = await self.answer(request)
        pieces = re.findall(r"\s*\S+\s*$|\s*\S+", completion.text) or [completion.text]
        for piece in pieces[:-1]:
            yield Chunk(piece)
        yield Chunk(pieces[-1], completion)

    def _find(self, request: Request) -> Any:
        if callable(self._answers):
            return self._answers
        if isinstance(self._answers, Mapping):
            text = request.messages[-1].text
            for rule, answer in self._answers.items():
                fits = rule.search(text) if isinstance(rule, re.Pattern) else rule in text
                if fits:
                    return answer
            raise ModelError(
                "No rule of the script fits the message.", given=repr(text)[:200],
                expected=", ".join(repr(rule) for rule in self._answers)[:400],
            )  # fmt: skip
        with self._lock:
            place, self._next = self._next, self._next + 1
        if place >= len(self._answers):
            raise ModelError("The script has no answer left.",
                             given=f"call {place + 1} of a list of {len(self._answers)}",
                             mend="Give it more answers, or a mapping or function.")  # fmt: skip
        return self._answers[place]

    def _completion(self, found: Any, request: Request) -> Completion:
        if isinstance(found, str):
            words = sum(len(message.text.split()) for message in request.messages)
            found = Completion(found, Usage(words, len(found.split()), cost=0.0))
        if not isinstance(found, Completion):
            raise ArgumentTypeError("A script answers with texts or Completions.",
                                    given=type(found).__name__)  # fmt: skip
        return replace(found, model=found.model or self.model, metadata={**found.metadata, **NOTE})
