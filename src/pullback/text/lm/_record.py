"""`Record`, `Replay` and `Cached`: what was paid for comes from a journal."""

import difflib
import json
import os
import threading
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from pullback.errors import ArgumentError, RecordingError
from pullback.internal._arguments import checked
from pullback.internal._limiter import Limiter
from pullback.internal._setting import setting
from pullback.text.lm._account import may_be_billed
from pullback.text.lm._completion import Chunk, Completion, Usage
from pullback.text.lm._journal import MEMORY, Journal, here
from pullback.text.lm._lm import LM, Ask, Wrapper, hand_on
from pullback.text.lm._openai import idempotency_key
from pullback.text.lm._request import Request

__all__ = ["Cached", "Record", "Replay"]


@checked
class Record(Wrapper):
    """Write every call to a journal, and take from it what an earlier run has paid for.

    An answer belongs to a request at its place in the program (`pullback.tape.at`), so that equal
    requests may have different answers, as they do of a model, and each gets its own again
    whatever comes first; of equal ones at one place the first that this run has not taken.

    A call is written before it is sent, and its answer before it is handed on: a process that is
    killed loses no answer that arrived. A call without one is asked again with the same
    ``Idempotency-Key``.

    Arguments:
        inner: the model.
        journal: a `Journal`, or the path of one.

    Raises:
        RecordingError: the journal cannot be read.
    """

    def __init__(self, inner: LM, journal: Journal | str | os.PathLike[str]) -> None:
        super().__init__(inner)
        self.journal = journal if isinstance(journal, Journal) else Journal(journal)

    async def step(self, request: Request, ask: Ask) -> AsyncIterator[Chunk]:
        """Answer from the journal in one piece, or ask and write."""
        call = self.journal.take(request, self.model)
        assert call is not None  # it was to be made
        if call.answer is not None:
            hand_on(partial(self.journal.fail, call))
            yield Chunk(call.answer.text, call.answer)
            return
        # The order is the promise: `take` has written the call before it is sent, `settle` writes
        # the answer before it is handed on. Between the two a killed process leaves a row without
        # an answer: in doubt, and asked again under the key that a server may know.
        chunks, whole = ask(request), False
        try:
            while True:
                # Around each piece: a generator runs in the context of whoever asks for the next.
                with setting(idempotency_key, call.key):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    return
                if chunk.completion is not None:
                    whole = True
                    call = self.journal.settle(call, chunk.completion)
                    hand_on(partial(self.journal.fail, call))
                    chunk = Chunk(chunk.text, call.answer)
                yield chunk
        except BaseException as error:
            if not whole:
                self.journal.release(call, forget=not may_be_billed(error))
            raise


@checked
class Replay(LM):
    """Answer from a journal alone: nothing is sent, nothing is paid.

    Arguments:
        journal: a `Journal`, or the path of one.
        model: the model's name; that of the journal if None.

    Raises:
        RecordingError: the journal cannot be read, or, when asked, holds no such request; the
            message shows the difference to the one most alike.
        ArgumentError: the journal has several models and none is named.
    """

    def __init__(
        self, journal: Journal | str | os.PathLike[str], *, model: str | None = None
    ) -> None:
        self.journal = journal if isinstance(journal, Journal) else Journal(journal, read_only=True)
        models = [model] if model else sorted({call.model for call in self.journal.calls()})
        if len(models) > 1:
            raise ArgumentError("The journal has answers of several models.",
                                given=", ".join(models), mend="Pass model=.")  # fmt: skip
        self.model = models[0] if models else ""

    async def answer(self, request: Request) -> Completion:
        """Answer from the journal."""
        call = self.journal.take(request, self.model, make=False)
        if call is None:
            raise mismatch(self.journal, request, self.model)
        if call.answer is None:
            raise RecordingError(
                "The journal has this request, but its answer never arrived.",
                given=f"call {call.id} of {self.journal.path}", mend="Resume the run.",
            )  # fmt: skip
        return call.answer


def mismatch(journal: Journal, request: Request, model: str) -> RecordingError:
    """The error for a request that a journal does not hold: how it differs from the nearest."""
    calls = journal.calls()
    digest = request.digest(model)
    equal = [call.place for call in calls if call.digest == digest]
    where = here()
    if count := equal.count(where):
        return RecordingError(
            "The request is in the journal, but was asked more often than there.",
            given=f"once more than {count} time{'s' * (count > 1)}", expected=f"{journal.path}",
        )  # fmt: skip
    if equal:
        return RecordingError(
            "The journal has this request at another place of the program.",
            given=f"asked at {where or 'the start'}",
            expected=f"at {', '.join(each or 'the start' for each in equal[:3])} of {journal.path}",
            mend="Run the program that was recorded, on the same items in their order.",
        )  # fmt: skip
    asked = _lines({"model": model, "request": request.written()})
    recorded = [_lines({"model": call.model, "request": call.request}) for call in calls]
    if not recorded:
        return RecordingError("The journal is empty.", given=str(journal.path))
    matcher = difflib.SequenceMatcher(b="\n".join(asked), autojunk=False)

    def likeness(lines: list[str]) -> float:
        matcher.set_seq1("\n".join(lines))
        return matcher.quick_ratio()

    nearest = max(recorded, key=likeness)
    difference = list(difflib.unified_diff(nearest, asked, "recorded", "asked", n=2, lineterm=""))
    text = "\n    ".join(line[:300] for line in difference[:40]) or "a secret, which is not written"
    return RecordingError(
        "The journal does not hold this request.", given=f"the difference to call "
        f"{calls[recorded.index(nearest)].id} of {journal.path}:\n    {text}",
        mend="Run the program that was recorded, or record anew.",
    )  # fmt: skip


def _lines(value: Any) -> list[str]:
    text = json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True)
    return text.replace("\\n", "\\n\n").splitlines()  # a long prompt differs in one of its lines


@checked
class Cached(Wrapper):
    """Give equal requests one answer, which is paid for once, also by other processes later.

    Equal means the same model, messages, options, schema and tools. Of equal requests of a process
    at the same time one is sent; two processes at the same time may each send it. An answer from
    the cache used nothing: its usage is zero and its metadata says what the first one used. One
    that could not be used is kept no longer. Ask without a cache where several samples are wanted.

    Arguments:
        inner: the model.
        path: an SQLite file, which several processes may share; memory if None.

    Raises:
        RecordingError: the file is corrupt or something else.

    Example:
        >>> from pullback.text.lm import Scripted
        >>> lm = Cached(Scripted(["first", "second"]))
        >>> lm("Hi").text, lm("Hi").text, lm("Ho").text
        ('first', 'first', 'second')
    """

    def __init__(self, inner: LM, path: str | os.PathLike[str] | None = None) -> None:
        super().__init__(inner)
        self._journal = Journal(MEMORY if path is None else path, shared=True)
        self._turns: WeakValueDictionary[str, Limiter] = WeakValueDictionary()
        self._lock = threading.Lock()

    async def step(self, request: Request, ask: Ask) -> AsyncIterator[Chunk]:
        """Answer from the cache in one piece, or ask and keep the whole."""
        digest = request.digest(self.model)
        # Of equal requests at the same time one is sent. The others wait for their turn and then
        # find its answer; where it failed, the next one asks. A turn is gone with who waits in it.
        with self._lock:
            turn = self._turns.setdefault(digest, Limiter(1))
        forget = lambda why: self._journal.forget(digest)  # noqa: E731
        async with turn.place():
            known = self._journal.find(digest)
            if known is not None:
                hand_on(forget)
                metadata = {**known.metadata, "cached": True, "first_usage": asdict(known.usage)}
                known = replace(known, usage=Usage(cost=0.0), metadata=metadata)
                yield Chunk(known.text, known)
                return
            async for chunk in ask(request):
                if chunk.completion is not None:
                    self._journal.keep(request, self.model, chunk.completion)
                    hand_on(forget)
                yield chunk

    def close(self) -> None:
        """Close the file."""
        self._journal.close()
