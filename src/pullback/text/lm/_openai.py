"""`OpenAI`: any server that speaks OpenAI's chat completions, through OpenAI's own SDK."""

import calendar
import contextlib
import copy
import email.utils
import inspect
import json
import math
import os
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pullback.errors import ArgumentError, ModelError, ReplyError
from pullback.internal._arguments import Positive, checked
from pullback.internal._extras import require
from pullback.tape._concurrency import awaited, begin, runs
from pullback.text.lm._completion import Chunk, Completion, Finish, Usage
from pullback.text.lm._json import json_schema
from pullback.text.lm._lm import LM
from pullback.text.lm._request import Request, ToolCall
from pullback.text.lm._secrets import keep_secret, scrub
from pullback.text.prices import Price, price_of

__all__ = ["OpenAI"]


T = TypeVar("T")
HOME = "connections"  # the name of that loop

OPENAI = "https://api.openai.com"
NO_KEY = "none"  # what local servers take; they look at none

idempotency_key: ContextVar[str | None] = ContextVar("pullback.text.idempotency_key", default=None)
"""Sent as ``Idempotency-Key``, so that a server can tell a call that it has answered before."""


@checked
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

    # Seconds for which an unused connection is kept. Servers end theirs after five (uvicorn, so
    # vLLM; llama.cpp; Node), and a request that meets that end gets no answer: ours ends before.
    _kept = 2.0

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: Positive = 60.0,
        price: Price | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        sdk = require("openai", extra="openai", purpose="text.lm.OpenAI")
        url = base_url or os.environ.get("OPENAI_BASE_URL") or f"{OPENAI}/v1"
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in {"http", "https"} or not parts.netloc:
            raise ArgumentError("The base_url is no address of a server.",
                                expected="http://host/v1 or https://host/v1")  # fmt: skip
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
        self._sdk, sent = sdk, dict(headers or {})
        limits = copy.copy(sdk.DEFAULT_CONNECTION_LIMITS)
        limits.keepalive_expiry = self._kept
        self._make_client = lambda: sdk.AsyncOpenAI(
            base_url=url, api_key=key or NO_KEY, timeout=timeout, max_retries=0,
            default_headers=sent, http_client=sdk.DefaultAsyncHttpxClient(limits=limits),
        )  # fmt: skip
        self._open()
        self._known = set(inspect.signature(self._client.chat.completions.create).parameters)

    def _open(self) -> None:
        """Make the connections of this process."""
        self._client, self._process = self._make_client(), os.getpid()
        self._closing = weakref.finalize(self, _begin_at_home, self._client.close)
        self._closing.atexit = False  # type: ignore[missing-attribute] - the process ends them

    def _sent(self, body: dict[str, Any]) -> Any:
        if self._process != os.getpid():  # a child of a fork would write into those of its parent
            self._closing.detach()
            self._open()
        return self._guarded(self._client.chat.completions.create(**body))

    def __repr__(self) -> str:
        return scrub(f"OpenAI({self.model!r}, base_url={_plain(self.base_url)!r})")

    def close(self) -> None:
        """End the connections; this happens by itself when the model is dropped."""
        self._closing()

    async def answer(self, request: Request) -> Completion:
        """Ask the server."""
        reply = await _at_home(self._sent(self._body(request)))
        with _reading(reply):
            pieces = Pieces(self.model, finish="stop")
            pieces.add(reply)
            return pieces.completion()

    async def stream_answer(self, request: Request) -> AsyncIterator[Chunk]:
        """Ask the server for a stream."""
        body = {**self._body(request), "stream": True, "stream_options": {"include_usage": True}}
        pieces = Pieces(self.model)
        stream = await _at_home(self._sent(body))
        try:
            while (event := await _at_home(self._guarded(anext(stream, None)))) is not None:
                with _reading(event):
                    text = pieces.add(event)
                if text:
                    yield Chunk(text)
        finally:
            await _at_home(_end(stream))
        with _reading(pieces):
            whole = pieces.completion()
        yield Chunk("", whole)

    async def _guarded(self, awaitable: Any) -> Any:
        try:
            return await awaitable
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
        messages = [message.to_dict() for message in request.messages]
        text = json.dumps(messages, ensure_ascii=False)
        # Half a character, as a model may write it, cannot be sent: it becomes a mark.
        whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        body["messages"] = json.loads(whole)
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


def _plain(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@dataclass
class Pieces:
    """A reply that is put together, event by event."""

    model: str
    texts: list[str] = field(default_factory=list)
    head: Any = None
    usage: Any = None
    finish: str | None = None
    refusal: str = ""
    calls: dict[int, list[str]] = field(default_factory=dict)

    def add(self, event: Any) -> str:
        """Take an event of a stream, or a whole reply; what text is new in it."""
        self.head = self.head or event
        self.usage = event.usage or self.usage
        if not event.choices:
            return ""
        choice = event.choices[0]
        self.finish = choice.finish_reason or self.finish
        part = choice.delta if hasattr(choice, "delta") else choice.message
        self.refusal += getattr(part, "refusal", None) or ""
        for number, asked in enumerate(part.tool_calls or ()):
            call = self.calls.setdefault(getattr(asked, "index", number), ["", "", ""])
            function = asked.function
            call[0] = asked.id or call[0]
            call[1] += (function and function.name) or ""
            call[2] += (function and function.arguments) or ""
        text = scrub(part.content or "")
        self.texts.append(text)
        return text

    def completion(self) -> Completion:
        """The whole, if its end has come."""
        if not self.texts:
            raise ReplyError(
                "The server answered without a choice.", given=scrub(repr(self.head))[:300],
                expected="a chat completion with one choice", transient=True, may_be_billed=True,
            )  # fmt: skip
        if self.finish in (None, "error"):  # OpenRouter says so where a provider has failed
            raise ReplyError(
                "The answer of the server ended before it was whole.",
                given=f"{sum(map(len, self.texts))} characters", transient=True,
                may_be_billed=True,
            )  # fmt: skip
        calls = tuple(
            ToolCall(name or f"call_{number}", function, scrub(arguments))
            for number, (name, function, arguments) in sorted(self.calls.items())
        )
        usage, metadata = self._usage()
        metadata["id"] = scrub(str(getattr(self.head, "id", "") or ""))
        finish = Finish.STOP
        if self.refusal:
            finish, metadata["refusal"] = Finish.CONTENT_FILTER, scrub(self.refusal)
        elif self.finish in set(Finish):
            finish = Finish(self.finish)
        else:
            metadata["finish_reason"] = scrub(self.finish)
        model = scrub(getattr(self.head, "model", None) or self.model)
        text = scrub("".join(self.texts))
        return Completion(text, usage, finish, None, calls, model, metadata)

    def _usage(self) -> tuple[Usage, dict[str, Any]]:
        asked, said = (getattr(self.usage, f"{name}_tokens", None) for name in _COUNTED)
        if asked is None or said is None:
            return Usage(), {"usage": "not reported"}
        details = getattr(self.usage, "prompt_tokens_details", None)
        return Usage(asked, said, min(getattr(details, "cached_tokens", None) or 0, asked)), {}


@contextlib.contextmanager
def _reading(reply: Any) -> Iterator[None]:
    """Read what a server has sent, which may be anything: what it is not is an error of its own."""
    try:
        yield
    except ReplyError:
        raise
    except Exception:
        raise ReplyError(
            "The server answered with what is no completion.", given=scrub(repr(reply))[:300],
            transient=True, may_be_billed=True,
        ) from None  # fmt: skip


_COUNTED = ("prompt", "completion")
_TRANSIENT = {408, 409, 425, 429}
_DOUBTFUL = {408, 500, 502, 504}  # the model behind may have answered
_FINAL_CODES = {"insufficient_quota", "billing_hard_limit_reached"}  # of 429: waiting does not help
# What a server refuses because of an answer, the one that it got or one that the prompt holds.
_TOO_LONG = {"context_length_exceeded", "exceed_context_size_error"}  # OpenAI's, llama.cpp's
_WITHHELD = {"content_filter", "content_policy_violation", "invalid_prompt"}  # Azure's, OpenAI's
_SPOILT = {"json_validate_failed", "tool_use_failed"}  # Groq's: the model has broken a schema
_MENDS = {
    400: "Mend the request: its options or messages are not what the server takes.",
    401: "Check the key: api_key or OPENAI_API_KEY.",
    403: "The key may not use this model.",
    404: "Check the name of the model and base_url.",
}


def explain(error: Exception, model: str, sdk: Any) -> ModelError:
    """The error to raise instead of one that came out of the SDK.

    Keys are scrubbed; the original is not chained, for its text and request hold them.
    """
    said = scrub(str(error))[:500]
    status: Any = getattr(error, "status_code", None)
    codes = {str(getattr(error, name, "")) for name in ("code", "type")}  # either, by the server
    if codes & _TOO_LONG:
        return ModelError("The prompt is longer than the model's context.", given=said,
                          mend="Shorten the messages.", status=status, too_long=True)  # fmt: skip
    if codes & _WITHHELD:
        return ReplyError("The model's provider withheld the answer.", given=said, status=status)
    if codes & _SPOILT:
        return ReplyError("The answer of the model breaks its schema.", given=said, status=status,
                          transient=True, may_be_billed=True)  # fmt: skip
    if isinstance(error, sdk.APIStatusError):
        transient = not codes & _FINAL_CODES and (status in _TRANSIENT or status >= 500)
        mend = "Wrap the model in Retry." if transient else _MENDS.get(status)
        return ModelError(
            f"The server refused the request: HTTP {status}.", given=said, mend=mend,
            transient=transient, retry_after=seconds_to_wait(error.response.headers),
            status=status, may_be_billed=status in _DOUBTFUL,
        )  # fmt: skip
    connected = not type(error.__cause__).__name__.startswith(("Connect", "Pool"))
    if isinstance(error, sdk.APITimeoutError):
        return ModelError(
            f"The model {model!r} did not answer in time.", given=said,
            mend="Raise timeout=, or wrap it in Retry.", transient=True, may_be_billed=connected,
        )  # fmt: skip
    if isinstance(error, sdk.APIResponseValidationError | ValueError):
        return ReplyError("The server answered with what is no JSON of a completion.", given=said,
                          transient=True, may_be_billed=True)  # fmt: skip
    cause = scrub(f"{type(error.__cause__ or error).__name__}: {error.__cause__ or error}")
    return ModelError(f"The connection to the model {model!r} failed.", given=cause[:500],
                      mend="Check base_url and that the server runs, or wrap it in Retry.",
                      transient=True, may_be_billed=connected)  # fmt: skip


def seconds_to_wait(headers: Mapping[str, str]) -> float | None:
    """What ``Retry-After`` asks for, in seconds: a number of them, or a date; else None."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        text = headers.get(name, "")
        with contextlib.suppress(ValueError):
            seconds = float(text) * unit
            if math.isfinite(seconds):
                return max(seconds, 0.0)
        until = _seconds_of(text)
        if until is not None:  # by the clock of who says so, which may not be ours
            now = _seconds_of(headers.get("date", ""))
            return max(until - (time.time() if now is None else now), 0.0)
    return None


def _seconds_of(date: str) -> float | None:
    """Seconds since 1970 of a date in a header, which is of Greenwich where it names no zone."""
    found = email.utils.parsedate_tz(date)
    with contextlib.suppress(ValueError, OverflowError):
        return None if found is None else calendar.timegm(found[:6]) - (found[9] or 0)
    return None


async def _end(stream: Any) -> None:
    """Close a stream, and let what reads from its connection find that out."""
    await stream.close()
    with contextlib.suppress(Exception):  # of the connection that is gone
        async for _ in stream:  # else the SDK's generators are the garbage collector's
            pass


async def _at_home(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine that uses connections; cancelling this cancels it."""
    return await awaited(begin(coroutine, HOME))


def _begin_at_home(start: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Let a coroutine run there without waiting for it; nothing happens where no loop runs yet."""
    if runs(HOME):
        begin(start(), HOME)
