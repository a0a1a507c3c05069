"""Steps before a model that keep nothing: `Retry`, `Limit`, `Budget` and `Traced`."""

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from pullback.errors import ArgumentError, ArgumentTypeError, ModelError
from pullback.internal._arguments import Count, Positive, Seconds, check_counts, checked, is_whole
from pullback.internal._extras import require
from pullback.internal._limiter import Limiter
from pullback.text.lm._account import Account, Spending
from pullback.text.lm._completion import Chunk, Completion, Usage, priced
from pullback.text.lm._json import canonical
from pullback.text.lm._lm import LM, Ask, Wrapper
from pullback.text.lm._request import Request
from pullback.text.lm._secrets import scrub
from pullback.text.prices import Price

__all__ = ["Budget", "Limit", "Retry", "Traced", "most_of", "spent_by"]


# In a program that shows no log, each retry would be a line on standard error that says nothing.
logging.getLogger("stamina").addHandler(logging.NullHandler())


@checked
class Retry(Wrapper):
    """Ask again after what passes: 429, 5xx, time-outs, dropped connections, broken replies.

    A reply is broken where no whole answer came. One that came and breaks its schema, or is empty,
    is an answer: it is read after this step, and who reads it asks again, or does not.

    Waits twice as long each time, with jitter, or as long as the server's ``Retry-After`` says. A
    refusal that the same request would meet again (400, 401, no quota) is raised at once. A
    stream is asked for again only while nothing of it was handed on.

    Arguments:
        inner: the model.
        attempts: the most times to ask.
        wait: seconds before the second attempt.
        longest_wait: seconds before any attempt at most; a ``Retry-After`` beyond it is raised.

    Raises:
        ArgumentError: a number that makes no sense.
        ModelError: of the last attempt, with how many there were.
    """

    def __init__(
        self, inner: LM, *, attempts: Count = 5, wait: Seconds = 0.5, longest_wait: float = 60.0
    ) -> None:
        super().__init__(inner)
        if longest_wait < wait:
            raise ArgumentError("The longest wait is not the longest.",
                                given=f"wait={wait:g}, longest_wait={longest_wait:g}")  # fmt: skip
        self._stamina = require("stamina", extra="text", purpose="text.lm.Retry")
        self.attempts = attempts
        self.wait = wait
        self.longest_wait = longest_wait

    def _again(self, error: Exception) -> bool | float:
        """Whether to ask again, or the seconds to wait before."""
        if not isinstance(error, ModelError) or not error.transient:
            return False
        wait = error.retry_after
        return True if wait is None else wait if wait <= self.longest_wait else False

    async def step(self, request: Request, ask: Ask) -> AsyncIterator[Chunk]:
        """Ask until an answer begins to come."""
        number = 0

        async def begun() -> tuple[Chunk, AsyncIterator[Chunk]]:
            nonlocal number
            number += 1
            chunks = ask(request)
            return await anext(chunks), chunks

        ask_again = self._stamina.AsyncRetryingCaller(
            attempts=self.attempts, timeout=None, wait_initial=self.wait,
            wait_max=self.longest_wait, wait_jitter=self.wait,
        )  # fmt: skip
        try:
            first, rest = await ask_again(self._again, begun)
            yield first
            async for chunk in rest:
                yield chunk
        except ModelError as error:
            if number > 1:
                error.add_note(f"  attempts: {number}")
            raise


@checked
class Limit(Wrapper):
    """Let at most so many calls be under way at once, and so many begin in any stretch of time.

    Who waits longest goes first. Right over threads and event loops.

    Arguments:
        inner: the model.
        concurrency: calls under way at most; any number if None.
        rate: calls that begin within any ``per`` seconds at most; any number if None.
        per: seconds.

    Raises:
        ArgumentError: a limit that is not positive, or none at all.
    """

    def __init__(
        self,
        inner: LM,
        *,
        concurrency: Count | None = None,
        rate: Count | None = None,
        per: Positive = 60.0,
    ) -> None:
        super().__init__(inner)
        if concurrency is None and rate is None:
            raise ArgumentError("A limit limits something.", expected="concurrency or rate")
        self._limiter = None if concurrency is None else Limiter(concurrency)
        self._turn = Limiter(1)  # who is first waits for the time, the others for their turn
        self._rate = rate
        self._per = per
        self._begun: deque[float] = deque(maxlen=rate)

    async def step(self, request: Request, ask: Ask) -> AsyncIterator[Chunk]:
        """Ask when there is a place, which is held until the answer ends."""
        async with self._limiter.place() if self._limiter is not None else nullcontext():
            if self._rate is not None:
                async with self._turn.place():
                    await self._begin(self._rate)
            async for chunk in ask(request):
                yield chunk

    async def _begin(self, rate: int) -> None:
        """Wait until a call may begin, which begins then."""
        while len(self._begun) == rate:
            wait = self._begun[0] + self._per - time.monotonic()
            if wait <= 0:
                break
            await asyncio.sleep(wait)
        self._begun.append(time.monotonic())


IMAGE_TOKENS = 40_000  # OpenAI's dearest: gpt-4o-mini counts 36,835 for a large image in detail
FRAME_TOKENS = 256  # what a chat template may add of its own
_LIMITS = ("max_completion_tokens", "max_tokens")


def most_of(request: Mapping[str, Any], price: Price | None, otherwise: int = 0) -> Spending:
    """The most that a request, as JSON, can use: an upper bound, known before it is sent.

    A tokenizer over bytes makes at most one token of a byte, so the bytes of the messages, tools
    and schema bound their tokens; those of the options too, which may hold functions, a grammar or
    a predicted answer. Images count 40,000 tokens each. A request that says nothing of how long its
    answer may be counts `otherwise` tokens for it; a predicted answer is billed where it is not
    taken, beside the real one.
    """
    contents = [message["content"] for message in request["messages"]]
    blocks = [block for each in contents if isinstance(each, list) for block in each]
    images = [block for block in blocks if block["type"] == "image_url"]
    counted = _bytes(request) - sum(map(_bytes, images)) + len(images) * IMAGE_TOKENS + FRAME_TOKENS
    options = request["options"]
    output = max([options[name] for name in _LIMITS if name in options], default=otherwise)
    output += _bytes(options["prediction"]) if "prediction" in options else 0
    cost = 0.0
    if price is not None:  # a provider's cache may also be dearer than its plain input
        dearest = replace(price, input=max(price.input, price.cached or 0.0), cached=None)
        cost = dearest.cost(counted, output)
    return Spending(1, counted + output, cost)


def spent_by(answer: Completion | None, most: Spending, price: Price | None) -> Spending:
    """What a call spent, as its answer tells; of what that does not tell, the most."""
    usage = Usage() if answer is None else priced(answer, price).usage
    is_told = usage.tokens or usage.cost == 0  # what cost nothing, as of a cache, used none
    tokens = usage.tokens if is_told else most.tokens
    return Spending(1, tokens, most.cost if usage.cost is None else usage.cost)


def _bytes(value: Any) -> int:
    # Half a character counts three bytes, as does the mark that is sent in its place.
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))


class Budget(Wrapper):
    """Refuse, before anything is sent, what could exceed a budget.

    The most that a call can use is reserved before it is sent, and what it did use is settled
    after, so the budget holds with any number of calls under way. A call whose answer never came,
    or does not tell what it used, counts as if it had used the most, for it may be billed. Under a
    limit on time, calls under way are ended with it.

    Arguments:
        inner: the model, or one that does not ask several times itself.
        account: what may be spent, to share it with other models; or its limits:
        calls, tokens, cost, seconds, proposals: as of `Account`.
        max_output_tokens: sent as ``max_tokens`` where a request has no such limit. A budget of
            tokens or cost needs it or the request's own.

    Raises:
        ArgumentError: no limit, one that is negative, an account and limits, `Retry` inside; or a
            limit on cost for a model of unknown price.
        BudgetError: when asked: there is no room for the call.
    """

    def __init__(
        self,
        inner: LM,
        account: Account | None = None,
        *,
        max_output_tokens: int | None = None,
        **limits: Any,
    ) -> None:
        super().__init__(inner)
        within: LM = inner
        while isinstance(within, Wrapper):
            if isinstance(within, Retry):
                raise ArgumentError(
                    "A budget around retries would count several attempts as one call.",
                    mend="Retry(Budget(model, ...)) counts each of them.",
                )
            within = within.inner
        if account is not None and limits:
            raise ArgumentError("A budget has an account, or limits of its own.",
                                given=f"both: {', '.join(limits)}")  # fmt: skip
        if not isinstance(account, Account | None):
            raise ArgumentTypeError(
                "A budget has an Account, or limits by their names.", given=repr(account)[:60],
                mend="Budget(model, calls=100)",
            )  # fmt: skip
        self.account = account if account is not None else Account(**limits)
        if max_output_tokens is not None:
            check_counts(max_output_tokens=max_output_tokens)
        self.max_output_tokens = max_output_tokens
        if "cost" in self.account.limits and self.price is None:
            raise ArgumentError(
                "A budget of money needs the price of the model.", given=repr(self.model),
                mend="OpenAI(..., price=Price(input, output)), or a file in PULLBACK_PRICES.",
            )  # fmt: skip

    async def step(self, request: Request, ask: Ask) -> AsyncIterator[Chunk]:
        """Ask where there is room; a stream that is left counts as its most."""
        is_held = self.account.covers(request)  # a budget further out is of the same account
        request = request if is_held else self._limited(request)
        most = most_of(request.to_dict(), self.price)
        async with nullcontext([]) if is_held else self.account.holding(most, request) as spent:
            async for chunk in ask(request):
                if chunk.completion is not None:
                    spent.append(spent_by(chunk.completion, most, self.price))
                yield chunk

    def _limited(self, request: Request) -> Request:
        """The request, with a limit on its answer where the budget needs one."""
        given = {name: request.options[name] for name in _LIMITS if name in request.options}
        for name, limit in given.items():
            if not is_whole(limit) or limit < 1:
                raise ArgumentError("The longest answer is a positive number of tokens.",
                                    given=f"{name}={limit!r}")  # fmt: skip
        if given:
            return request
        if self.max_output_tokens is not None:
            options = {**request.options, "max_tokens": self.max_output_tokens}
            return replace(request, options=options)
        if {"tokens", "cost"} & set(self.account.limits):
            raise ArgumentError(
                "A budget of tokens or money needs to know how long an answer may be.",
                given="a request without max_tokens",
                mend="Pass max_tokens=, or Budget(..., max_output_tokens=1024).",
            )
        return request


_OPTIONS = ("temperature", "top_p", "max_tokens", "seed", "frequency_penalty", "presence_penalty")


@checked
class Traced(Wrapper):
    """Make a span of each call: the model, its options, tokens, cost, how it ended.

    Names are those of OpenTelemetry's conventions for generative models; ``pullback.cost`` is in
    US dollars. Messages and answers are left out unless `content` is True; keys always are.

    Arguments:
        inner: the model.
        tracer: an OpenTelemetry tracer; that of the provider which the program has set if None.
        content: whether messages and answers are in the spans.

    Raises:
        MissingExtraError: opentelemetry-api is not installed.

    References:
        https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
    """

    def __init__(self, inner: LM, tracer: Any = None, *, content: bool = False) -> None:
        super().__init__(inner)
        self._trace: Any = require(
            "opentelemetry.trace", extra="otel", purpose="text.lm.Traced"
        )  # fmt: skip
        self._tracer = tracer or self._trace.get_tracer("pullback")
        self.content = content

    async def step(self, request: Request, ask: Ask) -> AsyncIterator[Chunk]:
        """Ask within a span, which ends with the answer, or where it is left."""
        known = {name: request.options.get(name) for name in _OPTIONS}
        said = {f"gen_ai.request.{n}": v for n, v in known.items() if isinstance(v, int | float)}
        said |= {"gen_ai.operation.name": "chat", "gen_ai.request.model": scrub(self.model)}
        if self.content:
            said["gen_ai.input.messages"] = scrub(canonical(request.to_dict()["messages"]))
        name, kind = scrub(f"chat {self.model}"), self._trace.SpanKind.CLIENT
        span = self._tracer.start_span(name, kind=kind, attributes=said)
        try:
            async for chunk in ask(request):
                if chunk.completion is not None:
                    self._end(span, chunk.completion)
                yield chunk
        except BaseException as error:
            span.set_attribute("error.type", type(error).__name__)
            if isinstance(error, ModelError) and error.status is not None:
                span.set_attribute("http.response.status_code", error.status)
            why = scrub(str(error)) if isinstance(error, Exception) else ""
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, why))
            raise
        finally:
            span.end()

    def _end(self, span: Any, answer: Completion) -> None:
        span.set_attributes({
            "gen_ai.response.model": scrub(answer.model),
            "gen_ai.response.finish_reasons": [answer.finish.value],
            "gen_ai.usage.input_tokens": answer.usage.input_tokens,
            "gen_ai.usage.output_tokens": answer.usage.output_tokens,
        })  # fmt: skip
        if answer.usage.cost is not None:
            span.set_attribute("pullback.cost", answer.usage.cost)
        if self.content:
            span.set_attribute("gen_ai.output.messages", scrub(answer.text))
