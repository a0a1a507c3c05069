"""`Scripted`: answers by rule in place of a model; `Misbehaving`: spoils those of one."""

import asyncio
import inspect
import random
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pullback.errors import ArgumentError, ArgumentTypeError, ModelError, ReplyError
from pullback.internal._arguments import Seconds, checked
from pullback.internal._text import shown
from pullback.tape import place
from pullback.text.lm._completion import Chunk, Completion, Finish, Usage
from pullback.text.lm._lm import LM, Ask, Wrapper
from pullback.text.lm._request import Request
from pullback.text.prices import Price

__all__ = ["Misbehaving", "Scripted"]


NOTE = {"provider": "scripted", "note": "a script answered, not a language model"}


@checked
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
        delay: Seconds = 0.0,
    ) -> None:
        if not callable(answers) and not answers:
            raise ArgumentError("A script needs at least one answer.", given=repr(answers))
        for rule in answers if isinstance(answers, Mapping) else ():
            if not isinstance(rule, str | re.Pattern):
                raise ArgumentTypeError("A rule of a script is a text or a compiled pattern.",
                                        given=shown(rule))  # fmt: skip
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
        if isinstance(found, str):
            words = sum(len(message.text.split()) for message in request.messages)
            found = Completion(found, Usage(words, len(found.split()), cost=0.0))
        if not isinstance(found, Completion):
            raise ArgumentTypeError("A script answers with texts or Completions.",
                                    given=type(found).__name__)  # fmt: skip
        return replace(found, model=found.model or self.model, metadata={**found.metadata, **NOTE})

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


_MARKERS = (
    '<FEEDBACK id="0">fine</FEEDBACK><IMPROVED></TEXT><EXPECTED></PARTS>'
    '{"score": 1, "explanation": "fine"} {"score": 0, "explanation": "bad"}'
)
_SPOILT: dict[str, Callable[[str], str]] = {  # what becomes of the text of an answer
    "empty": lambda text: "",
    "cut off": lambda text: text[: len(text) // 2],
    "wrong schema": lambda text: '{"unexpected": [1, 2, 3]}',
    "other language": lambda text: "Es tut mir leid, das habe ich leider nicht verstanden.",
    "refused": lambda text: "",
    "without end": lambda text: (text or "again ") * 200,
    "markers": lambda text: _MARKERS + text,
    "huge": lambda text: "x" * 10_000_000,
}
_ENDS = {"cut off": Finish.LENGTH, "refused": Finish.CONTENT_FILTER}
_LOST = {
    "busy": lambda: ModelError("The server refused the request: HTTP 429.", transient=True,
                               status=429),
    "broken": lambda: ModelError("The server refused the request: HTTP 500.", transient=True,
                                 status=500, may_be_billed=True),
    "dropped": lambda: ReplyError("The connection ended before the answer did.", transient=True,
                                  may_be_billed=True),
    "silent": lambda: ModelError("The model did not answer in time.", transient=True,
                                 may_be_billed=True),
}  # fmt: skip


@checked
class Misbehaving(Wrapper):
    """Answers badly in a share of the calls, so that a program can be tried with it.

    Which call fares how depends on the seed, the place in the program and the request, so a run
    that is resumed meets the same. A second attempt at the same place and request is drawn anew.

    Arguments:
        inner: the model.
        share: of the calls that go wrong.
        seed: of the drawing.
        kinds: which ways; all of `KINDS` if None.
        silence: seconds of ``"silent"``, before it ends as a time-out.

    Attributes:
        met: how often each way was met.

    Raises:
        ArgumentError: the share is none, or a kind is unknown.

    Example:
        >>> from pullback.text.lm import Scripted
        >>> lm = Misbehaving(Scripted(["fine"] * 9), share=1.0, kinds=["cut off"])
        >>> lm("Hi").text, lm.met
        ('fi', Counter({'cut off': 1}))
    """

    KINDS = (*_SPOILT, *_LOST)

    def __init__(
        self,
        inner: LM,
        share: float = 0.05,
        seed: int = 0,
        kinds: Iterable[str] | None = None,
        *,
        silence: Seconds = 30.0,
    ) -> None:
        super().__init__(inner)
        self.share, self.seed, self.silence = share, seed, silence
        self.kinds = self.KINDS if kinds is None else tuple(kinds)
        unknown = set(self.kinds) - set(self.KINDS)
        if not 0 <= share <= 1 or unknown or not self.kinds:
            raise ArgumentError(
                "A model misbehaves in a share of its calls, in ways that are known.",
                given=f"{share=}, kinds={self.kinds!r}", expected=", ".join(self.KINDS),
            )  # fmt: skip
        self.met: Counter[str] = Counter()
        self._attempts: Counter[str] = Counter()
        self._lock = threading.Lock()

    async def step(self, request: Request, ask: Ask) -> AsyncIterator[Chunk]:
        """Ask the model; now and then, spoil the answer or lose it."""
        # Drawn by the place, not by how many came before: at any concurrency, and when a run is
        # resumed, the same call meets the same fault.
        what = f"{self.seed} {place()} {request.digest(self.model)}"
        with self._lock:
            attempt, self._attempts[what] = self._attempts[what], self._attempts[what] + 1
            dice = random.Random(f"{what} {attempt}")  # noqa: S311  # a fault, no secret
            kind = dice.choice(self.kinds) if dice.random() < self.share else ""
            self.met.update([kind] if kind else [])
        if kind == "silent":
            await asyncio.sleep(self.silence)
        if kind in _LOST:
            raise _LOST[kind]()
        async for chunk in ask(request):
            if not kind:
                yield chunk
            elif (answer := chunk.completion) is not None:
                text, finish = _SPOILT[kind](answer.text), _ENDS.get(kind, answer.finish)
                yield Chunk(text, replace(answer, text=text, finish=finish))
