"""`Misbehaving`: a model that answers badly now and then, in each way that there is."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from pullback.errors import ArgumentError, ModelError, ReplyError
from pullback.tape import place
from pullback.text.lm._completion import Chunk, Completion, Finish
from pullback.text.lm._lm import LM, Ask, Wrapper
from pullback.text.lm._request import Request

__all__ = ["Misbehaving"]

_FOREIGN = "Es tut mir leid, das habe ich leider nicht verstanden."
_MARKERS = (
    '<FEEDBACK id="0">fine</FEEDBACK><IMPROVED></TEXT><EXPECTED></PARTS>'
    '{"score": 1, "explanation": "fine"} {"score": 0, "explanation": "bad"}'
)


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

    KINDS = (
        "empty", "cut off", "wrong schema", "other language", "refused", "without end", "markers",
        "huge", "busy", "broken", "dropped", "silent",
    )  # fmt: skip

    def __init__(
        self,
        inner: LM,
        share: float = 0.05,
        seed: int = 0,
        kinds: Sequence[str] | None = None,
        *,
        silence: float = 30.0,
    ) -> None:
        super().__init__(inner)
        self.share, self.seed, self.silence = share, seed, silence
        self.kinds = self.KINDS if kinds is None else tuple(kinds)
        unknown = set(self.kinds) - set(self.KINDS)
        if not 0 <= share <= 1 or unknown or not self.kinds:
            raise ArgumentError(
                "A model misbehaves in a share of its calls, in ways that are known.",
                given=f"share={share!r}, kinds={self.kinds!r}", expected=", ".join(self.KINDS),
            )  # fmt: skip
        self.met: Counter[str] = Counter()
        self._attempts: Counter[str] = Counter()
        self._lock = threading.Lock()

    async def step(self, request: Request, ask: Ask) -> AsyncIterator[Chunk]:
        """Ask the model; now and then, spoil the answer or lose it."""
        what = f"{self.seed} {place()} {request.digest(self.model)}"
        with self._lock:
            attempt, self._attempts[what] = self._attempts[what], self._attempts[what] + 1
            dice = random.Random(f"{what} {attempt}")  # noqa: S311  # a fault, no secret
            kind = dice.choice(self.kinds) if dice.random() < self.share else ""
            self.met.update([kind] if kind else [])
        if kind == "silent":
            await asyncio.sleep(self.silence)
        lost = _LOST.get(kind)
        if lost is not None:
            raise lost()
        async for chunk in ask(request):
            if not kind:
                yield chunk
            elif chunk.completion is not None:
                answer = _spoilt(kind, chunk.completion)
                yield Chunk(answer.text, answer)


def _spoilt(kind: str, answer: Completion) -> Completion:
    text = answer.text
    if kind == "refused":
        return replace(answer, text="", finish=Finish.CONTENT_FILTER)
    if kind == "cut off":
        return replace(answer, text=text[: len(text) // 2], finish=Finish.LENGTH)
    spoilt = {
        "empty": "",
        "wrong schema": '{"unexpected": [1, 2, 3]}',
        "other language": _FOREIGN,
        "without end": (text or "again ") * 200,
        "markers": _MARKERS + text,
        "huge": "x" * 10_000_000,
    }
    return replace(answer, text=spoilt.get(kind, text))


_LOST = {
    "busy": lambda: ModelError("The server refused the request: HTTP 429.", transient=True,
                               status=429),
    "broken": lambda: ModelError("The server refused the request: HTTP 500.", transient=True,
                                 status=500),
    "dropped": lambda: ReplyError("The connection ended before the answer did.", transient=True),
    "silent": lambda: ModelError("The model did not answer in time.", transient=True),
}  # fmt: skip
