"""`Cached`: one answer for equal requests, over processes."""

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import AsyncIterator
from dataclasses import asdict, replace

from pullback.text.lm._completion import Chunk, Completion, Usage
from pullback.text.lm._journal import Journal
from pullback.text.lm._lm import LM, Ask, Wrapper
from pullback.text.lm._request import Request

__all__ = ["Cached"]


class Cached(Wrapper):
    """Give equal requests one answer, which is paid for once, also by other processes later.

    Equal means the same model, messages, options, schema and tools. Of equal requests at the same
    time one is sent. An answer from the cache used nothing: its usage is zero and its metadata
    says what the first one used. Ask without a cache where several samples are wanted.

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
        self._memory: dict[str, Completion] = {}
        self._journal = None if path is None else Journal(path, shared=True)
        self._lock = threading.Lock()
        self._asking: dict[str, concurrent.futures.Future[None]] = {}

    async def step(self, request: Request, ask: Ask) -> AsyncIterator[Chunk]:
        """Answer from the cache in one piece, or ask and keep the whole."""
        digest = request.digest(self.model)
        while True:
            with self._lock:
                under_way = self._asking.get(digest)
                known = self._find(digest) if under_way is None else None
                if under_way is None and known is None:
                    mine = self._asking[digest] = concurrent.futures.Future()
                    break
            if known is not None:
                yield Chunk(known.text, known)
                return
            await asyncio.wait([asyncio.wrap_future(under_way)])  # type: ignore[bad-argument-type]
        try:
            async for chunk in ask(request):
                if chunk.completion is not None:
                    self._keep(digest, request, chunk.completion)
                yield chunk
        finally:
            with self._lock:
                del self._asking[digest]
            mine.set_result(None)

    def close(self) -> None:
        """Close the file."""
        if self._journal is not None:
            self._journal.close()

    def _find(self, digest: str) -> Completion | None:
        answer = self._memory.get(digest)
        if answer is None and self._journal is not None:
            answer = self._journal.find(digest)
        if answer is None:
            return None
        metadata = {**answer.metadata, "cached": True, "first_usage": asdict(answer.usage)}
        return replace(answer, usage=Usage(cost=0.0), metadata=metadata)

    def _keep(self, digest: str, request: Request, answer: Completion) -> None:
        if self._journal is None:
            self._memory.setdefault(digest, answer)
        else:
            self._journal.keep(request, self.model, answer)
