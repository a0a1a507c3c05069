"""`Budget`: a model that refuses to spend more than it may."""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from pullback.errors import ArgumentError, ArgumentTypeError
from pullback.internal._arguments import check_counts, is_whole
from pullback.text.lm._account import Account, Spending
from pullback.text.lm._completion import Chunk, Completion
from pullback.text.lm._lm import LM, Ask, Wrapper
from pullback.text.lm._request import Request
from pullback.text.lm._retry import Retry
from pullback.text.prices import Price

__all__ = ["Budget"]


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


def _bytes(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


class Budget(Wrapper):
    """Refuse, before anything is sent, what could exceed a budget.

    The most that a call can use is reserved before it is sent, and what it did use is settled
    after, so the budget holds with any number of calls under way. A call whose answer never came
    counts as if it had used the most, for it may be billed. Under a limit on time, calls under
    way are ended with it.

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
        if self.account.covers(request):  # a budget further out is of the same account
            async for chunk in ask(request):
                yield chunk
            return
        request = self._limited(request)
        most = most_of(request.to_dict(), self.price)
        async with self.account.holding(most, request) as spent:
            async for chunk in ask(request):
                if chunk.completion is not None:
                    spent.append(self._used(chunk.completion, most))
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

    def _used(self, answer: Completion, most: Spending) -> Spending:
        if answer.metadata.get("usage") == "not reported":
            return most
        cost = answer.usage.cost
        return Spending(1, answer.usage.tokens, most.cost if cost is None else cost)
