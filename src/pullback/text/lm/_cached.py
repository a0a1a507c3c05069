"""`Cached`: one answer for equal requests, over processes."""

import asyncio
import concurrent.futures
import hashlib
import json
import os
import threading
from collections.abc import AsyncIterator
from dataclasses import replace

from pullback.errors import PullbackError
from pullback.text.lm._completion import Chunk, Completion, Usage
from pullback.text.lm._database import Database
from pullback.text.lm._json import canonical
from pullback.text.lm._lm import LM
from pullback.text.lm._request import Request
from pullback.text.lm._secrets import scrub
from pullback.text.lm._wrapper import Wrapper

__all__ = ["Cached"]

_MARK = 0x50424331  # "PBC1"
_SCHEMA = """
CREATE TABLE answers (digest TEXT PRIMARY KEY, answer TEXT NOT NULL, checksum TEXT NOT NULL) STRICT
"""


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
        self._database = None
        if path is not None:
            self._database = Database(path, mark=_MARK, schema=_SCHEMA, alone=False, what="cache")
        self._lock = threading.Lock()
        self._asking: dict[str, concurrent.futures.Future[None]] = {}

    async def answer(self, request: Request) -> Completion:
        """Answer from the cache, or ask."""
        digest = request.digest(self.model)
        while True:
            with self._lock:
                under_way = self._asking.get(digest)
                known = self._find(digest) if under_way is None else None
                if under_way is None and known is None:
                    mine = self._asking[digest] = concurrent.futures.Future()
                    break
            if known is not None:
                return known
            await asyncio.wait([asyncio.wrap_future(under_way)])  # type: ignore[bad-argument-type]
        try:
            answer = await self.inner.ask(request)
            self._keep(digest, answer)
            return answer
        finally:
            with self._lock:
                del self._asking[digest]
            mine.set_result(None)

    async def stream_answer(self, request: Request) -> AsyncIterator[Chunk]:
        """Answer from the cache in one piece, or ask bit by bit and keep the whole."""
        known = self._find(request.digest(self.model))
        if known is not None:
            yield Chunk(known.text, known)
            return
        async for chunk in self.inner.ask_stream(request):
            if chunk.completion is not None:
                self._keep(request.digest(self.model), chunk.completion)
            yield chunk

    def close(self) -> None:
        """Close the file."""
        if self._database is not None:
            self._database.close()

    def _find(self, digest: str) -> Completion | None:
        answer = self._memory.get(digest)
        if answer is None and self._database is not None:
            rows = self._database.rows(
                "SELECT answer, checksum FROM answers WHERE digest=?", digest
            )
            if not rows:
                return None
            [(text, checksum)] = rows
            try:
                if checksum != _checksum(digest, text):
                    raise ValueError("an answer has changed")
                answer = self._memory[digest] = Completion.from_dict(json.loads(text))
            except (ValueError, PullbackError) as error:
                raise self._database.corrupt(str(error)) from None
        if answer is None:
            return None
        metadata = {**answer.metadata, "cached": True, "first_usage": answer.usage.to_dict()}
        return replace(answer, usage=Usage(cost=0.0), metadata=metadata)

    def _keep(self, digest: str, answer: Completion) -> None:
        if self._database is not None:
            text = scrub(canonical(answer.to_dict()))
            self._database.execute(
                "INSERT OR IGNORE INTO answers VALUES (?, ?, ?)",
                digest, text, _checksum(digest, text),
            )  # fmt: skip
        else:
            self._memory.setdefault(digest, answer)


def _checksum(digest: str, text: str) -> str:
    return hashlib.sha256(f"{digest} {text}".encode()).hexdigest()
