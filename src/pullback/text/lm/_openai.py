"""`OpenAI`: any server that speaks OpenAI's chat completions, through OpenAI's own SDK."""

import inspect
import os
import weakref
from collections.abc import AsyncIterator, Mapping
from contextvars import ContextVar
from typing import Any
from urllib.parse import urlsplit

from pullback.errors import ArgumentError, ModelError
from pullback.internal._extras import require
from pullback.text.lm._completion import Chunk, Completion
from pullback.text.lm._home import at_home, begin_at_home
from pullback.text.lm._lm import LM
from pullback.text.lm._openai_errors import explain
from pullback.text.lm._openai_reply import Pieces, read_reply
from pullback.text.lm._request import Request
from pullback.text.lm._schema import json_schema
from pullback.text.lm._secrets import keep_secret, scrub
from pullback.text.prices import Price, price_of

__all__ = ["OpenAI", "idempotency_key"]

OPENAI = "https://api.openai.com"
NO_KEY = "none"  # what local servers take; they look at none

idempotency_key: ContextVar[str | None] = ContextVar("pullback.text.idempotency_key", default=None)
"""Sent as ``Idempotency-Key``, so that a server can tell a call that it has answered before."""


class OpenAI(LM):
    """A model behind OpenAI's chat completions: OpenAI itself, or a server at any ``base_url``.

    Ollama, vLLM, LM Studio and llama.cpp speak it too. The SDK's own retries are off: see `Retry`.

    Arguments:
        model: its name there.
        base_url: for example ``"http://localhost:11434/v1"``; ``OPENAI_BASE_URL`` or OpenAI if
            None.
        api_key: ``OPENAI_API_KEY`` if None; a server other than OpenAI's may need none. It is
            never written anywhere.
        timeout: seconds for one call.
        price: what it costs; from the table of `pullback.text.prices` if None.
        headers: sent with every call; their values are kept secret like the key.

    Raises:
        ArgumentError: there is no key for OpenAI, or the timeout is not positive.
        ModelError: when asked: the server cannot be reached, refuses, or takes too long.
        ReplyError: when asked: what it answered cannot be read.

    Example:
        >>> lm = OpenAI("llama3.2", base_url="http://localhost:11434/v1")
        >>> lm.model
        'llama3.2'
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = 60.0,
        price: Price | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        sdk = require("openai", extra="openai", purpose="text.lm.OpenAI")
        if not timeout > 0:
            raise ArgumentError("The timeout is not positive.", given=f"{timeout} s")
        url = base_url or os.environ.get("OPENAI_BASE_URL") or f"{OPENAI}/v1"
        parts = urlsplit(url)
        if parts.query or "@" in parts.netloc:  # its connections log the address
            raise ArgumentError(
                "The base_url holds a user, a password or a query.",
                given=f"{_plain(url)} and what is not shown here",
                mend="Pass what is secret as api_key= or headers=.",
            )  # fmt: skip
        key = api_key or os.environ.get("OPENAI_API_KEY")
        self._is_openai = url.startswith(OPENAI)
        if not key and self._is_openai:
            raise ArgumentError(
                "OpenAI needs a key.", given="neither api_key nor OPENAI_API_KEY",
                mend="Set OPENAI_API_KEY, or pass base_url for another server.",
            )  # fmt: skip
        for secret in (key or "", *(headers or {}).values()):
            keep_secret(secret)
        self.model = model
        self.base_url = url
        self.price = price if price is not None else price_of(model)
        self._is_table_price = price is None and self.price is not None
        self._sdk = sdk
        self._client = sdk.AsyncOpenAI(
            base_url=url, api_key=key or NO_KEY, timeout=timeout, max_retries=0,
            default_headers=dict(headers or {}),
        )  # fmt: skip
        self._closing = weakref.finalize(self, begin_at_home, self._client.close)
        self._closing.atexit = False  # type: ignore[missing-attribute] - the process ends them
        self._known = set(inspect.signature(self._client.chat.completions.create).parameters)

    def __repr__(self) -> str:
        return scrub(f"OpenAI({self.model!r}, base_url={_plain(self.base_url)!r})")

    def close(self) -> None:
        """End the connections; this happens by itself when the model is dropped."""
        self._closing()

    async def answer(self, request: Request) -> Completion:
        """Ask the server."""
        create = self._client.chat.completions.create
        reply = await at_home(self._guarded(create(**self._body(request))))
        return read_reply(reply, self.price, self.model)

    async def stream_answer(self, request: Request) -> AsyncIterator[Chunk]:
        """Ask the server for a stream."""
        body = {**self._body(request), "stream": True, "stream_options": {"include_usage": True}}
        pieces = Pieces(self.price, self.model)
        stream = await at_home(self._guarded(self._client.chat.completions.create(**body)))
        try:
            while (event := await at_home(self._guarded(anext(stream, None)))) is not None:
                text = pieces.add(event)
                if text:
                    yield Chunk(text)
        finally:
            await at_home(stream.close())
        yield Chunk("", pieces.completion())

    async def _guarded(self, awaitable: Any) -> Any:
        try:
            return await awaitable
        except ModelError:
            raise
        except Exception as error:
            failed = explain(error, self.model, self._sdk)
        raise failed  # out here, so that what the SDK raised, with its request, is no context of it

    def _body(self, request: Request) -> dict[str, Any]:
        body: dict[str, Any] = {**request.to_dict()["options"], "model": self.model}
        tier = body.get("service_tier", "default")
        if self._is_table_price and tier not in {"default", "auto"}:
            raise ArgumentError(
                "The table of prices knows none of this service tier.", given=f"{tier=}",
                mend="OpenAI(..., price=Price(input, output)) with the prices of the tier.",
            )  # fmt: skip
        body["messages"] = _whole([message.to_dict() for message in request.messages])
        if self._is_openai and "max_tokens" in body:  # which OpenAI's newer models refuse
            body["max_completion_tokens"] = body.pop("max_tokens")
        if request.tools:
            body["tools"] = [tool.to_dict() for tool in request.tools]
        if request.schema is not None:
            schema = {"name": "answer", "schema": json_schema(request.schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        unknown = {name: body.pop(name) for name in sorted(set(body) - self._known)}
        if unknown:  # a server's own options, which the SDK takes so
            body["extra_body"] = unknown
        key = idempotency_key.get()
        if key is not None:
            body["extra_headers"] = {"Idempotency-Key": key}
        return body


def _whole(value: Any) -> Any:
    """JSON whose texts can be sent: half a character, as a model may write it, becomes a mark."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {name: _whole(each) for name, each in value.items()}
    return [_whole(each) for each in value] if isinstance(value, list) else value


def _plain(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
